"""ORDER OF A BUILD. Documents are scattered to buckets by key, and each bucket is ordered by key.

In: rows and their documents, in input order. Out: documents in the order of a shard. What lies between is on disk, in
runs: objects that hold the documents of one slice of the input, sorted by key.
"""
