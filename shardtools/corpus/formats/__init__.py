"""One file for each way of storing rows. Each ends in a `Corpus`, which `shardtools.corpus.known` lists."""
