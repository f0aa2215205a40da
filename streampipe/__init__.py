"""Feed LLM training from object storage: deterministic, elastic, packed, resumable to the token."""
