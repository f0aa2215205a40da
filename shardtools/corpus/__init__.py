"""READING. Files of any kind in, texts out, in an order and with an accounting that depend on the contents alone.

`discover` finds the input files, `scan` reads each once (hash, size, cutting points), `plan_tasks` deals the units to
tasks, and `read_texts` gives a task its texts.
"""
