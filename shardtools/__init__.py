"""Turn text, code, chats and preference pairs into compressed, indexed shards of tokens."""
