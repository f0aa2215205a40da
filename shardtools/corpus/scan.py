"""One look at every input file: its hash, and the places where it can be cut."""

from collections.abc import Mapping
from typing import Any

from shardtools.corpus.files import InputFile
from shardtools.corpus.known import corpus_of
from shardtools.corpus.units import Scan, Unit

__all__ = ["Scan", "Unit", "scan"]


def scan(file: InputFile, unit_length: int, options: Mapping[str, Any]) -> Scan:
    """Read a file once.

    Args:
        file: what to read.
        unit_length: how long a unit is at least: bytes or rows, as its corpus counts; a plain file is one unit.
        options: for the filesystem of a URL.

    Raises:
        SourceError: if it cannot be read, is truncated or damaged.
    """
    return corpus_of(file.kind).scan(file, unit_length, options)
