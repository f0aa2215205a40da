"""WORK. The tasks of a build: each is a pure function of what it reads, and is committed whole."""
