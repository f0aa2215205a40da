"""Rows out of record batches."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from shardtools.corpus.corpus import NumberedRow, Reading
from shardtools.corpus.files import InputFile
from shardtools.corpus.units import Unit
from streampipe.errors import ConfigError

ROWS_AT_ONCE = 64
"""Rows turned to Python objects at once; more is hardly faster, and rows may be large."""


def span_of(units: Sequence[Unit]) -> tuple[int, int]:
    """Return the first row of units that follow each other, and where they end."""
    return units[0].start, units[-1].start + units[-1].length


def cut_rows(file: InputFile, rows: int, row: int, unit_length: int) -> Iterator[Unit]:
    """Cut a run of rows that begins at `row` into units of nearly the same length."""
    count = -(-rows // unit_length)
    borders = [row + rows * i // count for i in range(count + 1)] if rows else []
    yield from (Unit(file, a, b - a, first_line=a + 1) for a, b in pairwise(borders))


def wanted_columns(file: InputFile, there: Sequence[str], reading: Reading) -> list[str] | None:
    """Return which columns to read; None for all.

    Raises:
        ConfigError: if none of the wanted ones is there.
    """
    if reading.columns is None:
        return None
    columns = [name for name in reading.columns if name in there]
    if not columns:
        raise ConfigError(
            f"{file.address}: there is no column {reading.columns[0]!r}; it has {', '.join(there)}; "
            f"name the one with the text by --text-field"
        )
    return columns


def rows_of(file: InputFile, batch: Any, first: int, reading: Reading) -> Iterator[NumberedRow]:
    """Yield the rows of a batch, numbered from `first`; a row with text that is not UTF-8 is a bad one."""
    for start in range(0, batch.num_rows, ROWS_AT_ONCE):
        part = batch.slice(start, ROWS_AT_ONCE)
        try:
            yield from enumerate(part.to_pylist(), first + start)
        except UnicodeDecodeError:
            yield from _one_by_one(file, part, first + start, reading)


def _one_by_one(file: InputFile, batch: Any, first: int, reading: Reading) -> Iterator[NumberedRow]:
    for i in range(batch.num_rows):
        try:
            row = batch.slice(i, 1).to_pylist()[0]
        except UnicodeDecodeError as error:
            reading.tally.bad("not_utf8", file.place(first + i), f"the text is not UTF-8 ({error.reason})")
        else:
            yield first + i, row
