"""RUNNING. Tasks are independent and commit themselves; an engine only decides where and when each one runs."""
