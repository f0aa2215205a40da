"""READING. Files of any kind in, rows and texts out, in an order and with an accounting that depend on contents alone.

`discover` finds the input files, `scan` looks at each once (hash, size, cutting points), `plan_tasks` deals the units
to tasks, and `TextReader` or `RowReader` gives a task its texts or whole rows. How rows are stored is a `Corpus`, one
file of `formats/` each; `known.py` lists them, and finds those of other packages.
"""
