"""What a corpus is: one way in which rows are stored."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from shardtools.corpus.files import InputFile, Packing
from shardtools.corpus.tally import Tally
from shardtools.corpus.units import Scan, Unit

Options = Mapping[str, Any]
"""For the filesystems of URLs."""

NumberedRow = tuple[int, Any]
"""The number of a row in its file, from 0, and what JSON would make of it (a dict, if it is a good one)."""

SAMPLE_BYTES = 1 << 17
SAMPLE_ROWS = 256
"""How much of a file is looked at to guess how many tokens it holds."""

BYTES = Fraction(1, 4)
ROWS = Fraction(256)
"""Guesses of tokens a byte and tokens a row, where a sample tells nothing."""


@dataclass(frozen=True)
class Reading:
    """How rows are read.

    Attributes:
        tally: counts rows that cannot be read, or stops at them.
        options: for the filesystems of URLs.
        columns: the only ones wanted, where reading fewer is cheaper; None for all.
        own_fields: whether dicts must be without the null fields that columnar files put into them because other rows
            have such fields.
    """

    tally: Tally = field(default_factory=lambda: Tally("count"))
    options: Options = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    own_fields: bool = False


@dataclass(frozen=True)
class Corpus:
    """One way in which rows are stored. All functions must give the same for the same contents, in any process.

    Attributes:
        kind: its name.
        files: what it looks like, in words.
        packing: tells from the name of a file how it is packed, or None if it is not of this kind; the second argument
            says whether the argument of the command names records by itself (`data/*.json`) rather than a folder.
        scan: looks at a file once: hash, size and units of at least the length given (bytes or rows).
        read: yields the rows of units of one file that follow each other.
        sample: returns how long (bytes or rows) some rows are, and the rows; the second argument says in how many
            places of the file to look, where that is possible.
        guess: tokens a byte or row, if a sample tells nothing: `BYTES` or `ROWS`.
        prefix: for corpora that are no files: what their arguments begin with, e.g. `hf:`.
        find: for such: what one argument stands for.
    """

    kind: str
    files: str
    packing: Callable[[str, bool], Packing | None]
    scan: Callable[[InputFile, int, Options], Scan]
    read: Callable[[InputFile, Sequence[Unit], Reading], Iterator[NumberedRow]]
    sample: Callable[[InputFile, int, Reading], tuple[int, list[Any]]]
    guess: Fraction = BYTES
    prefix: str = ""
    find: Callable[[str, Options], list[InputFile]] | None = None


def never(name: str, records: bool) -> Packing | None:
    """Claim no file: the `packing` of a corpus that has a prefix instead."""
    return None
