"""ENCODING. Texts in, token ids out, and what a manifest says of the tokenizer."""
