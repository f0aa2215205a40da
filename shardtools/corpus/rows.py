"""From the units of a task to its rows, whole."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from shardtools.corpus.corpus import Corpus, Reading
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
            corpus = corpus_of(file.kind)
            for number, value in corpus.read(file, list(of_file), Reading(tally, self.options)):
                yield Row(file, number, own_fields(corpus, value))

    def sample(self, file: InputFile, spots: int) -> tuple[int, list[Any]]:
        """Return how long some rows of a file are (bytes or rows, as its units), and the rows; bad ones left out."""
        corpus = corpus_of(file.kind)
        length, values = corpus.sample(file, spots, Reading(options=self.options))
        return length, [own_fields(corpus, value) for value in values]


def own_fields(corpus: Corpus, value: Any) -> Any:
    """Return a row without the null fields that columnar files put into dicts because other rows have such fields.

    Top-level fields stay, as a null column says nothing else than a missing one. Nulls inside lists stay. A null that
    the row itself had inside a dict cannot be told from these, so it goes too.
    """
    if not corpus.columnar or not isinstance(value, Mapping):
        return value
    return {key: _without_nulls(inner) for key, inner in value.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value
