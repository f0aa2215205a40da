"""From the units of a task to its rows, whole."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from shardtools.corpus.corpus import Reading
from shardtools.corpus.files import InputFile
from shardtools.corpus.known import corpus_of
from shardtools.corpus.tally import Tally
from shardtools.corpus.units import Unit


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        file: where it was.
        row: its line or row there, from 0.
        value: what JSON would make of it: a dict, if it is a good one. A plain file is `{"text": ...}`.
    """

    file: InputFile
    row: int
    value: Any

    @property
    def where(self) -> str:
        """The file and the place in it, for messages."""
        return self.file.place(self.row)


@dataclass(frozen=True)
class RowReader:
    """Reads rows of any shape, each with its own fields only.

    Attributes:
        options: for the filesystems of URLs.
    """

    options: Mapping[str, Any] = field(default_factory=dict)

    def read(self, units: Sequence[Unit], tally: Tally) -> Iterator[Row]:
        """Yield the rows of units that follow each other, and count those that cannot be read.

        Raises:
            SourceError: for a bad row (unless `tally` counts it), a damaged file, or one that changed since the scan.
        """
        for file, of_file in groupby(units, key=lambda unit: unit.file):
            for number, value in corpus_of(file.kind).read(file, list(of_file), self._reading(tally)):
                yield Row(file, number, value)

    def sample(self, file: InputFile, spots: int) -> tuple[int, list[Any]]:
        """Return how long some rows of a file are (bytes or rows, as its units), and the rows; bad ones left out."""
        return corpus_of(file.kind).sample(file, spots, self._reading(Tally("count")))

    def _reading(self, tally: Tally) -> Reading:
        return Reading(tally, self.options, own_fields=True)
