"""Parquet, read in batches inside a row group, so that memory stays small however large a group is."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardtools.corpus.blocks import open_input
from shardtools.corpus.corpus import ROWS, SAMPLE_ROWS, Corpus, NumberedRow, Options, Reading
from shardtools.corpus.files import InputFile, Packing
from shardtools.corpus.formats.columnar import cut_rows, rows_of, span_of, wanted_columns
from shardtools.corpus.units import HashedChunks, Scan, Unit
from streampipe.errors import SourceError, StreampipeError

NAME = re.compile(r"\.(parquet|pq)$", re.IGNORECASE)
BATCH_BYTES = 4 << 20
"""About how much of a row group is decoded at once."""
BATCH_ROWS = 64
"""At most so many rows, because repeated values take next to nothing in the file and their full size when decoded."""


def _packing(name: str, records: bool) -> Packing | None:
    return "" if NAME.search(name) else None


def _scan(file: InputFile, unit_length: int, options: Options) -> Scan:
    hashed = HashedChunks(file, options)
    for _ in hashed:
        pass
    return hashed.finish(tuple(_units(file, unit_length, options)))


def _units(file: InputFile, unit_length: int, options: Options) -> Iterator[Unit]:
    """Cut each row group into runs of rows of nearly the same length."""
    with _open(file, options) as table:
        row = 0
        for group in range(table.metadata.num_row_groups):
            rows = table.metadata.row_group(group).num_rows
            yield from cut_rows(file, rows, row, unit_length)
            row += rows


def _open(file: InputFile, options: Options) -> Any:
    opened = open_input(file, options)
    size = opened.seek(0, 2)
    if size != file.bytes:
        opened.close()
        raise SourceError(
            f"{file.address}: has {size} bytes, but had {file.bytes} when it was found; wait until nobody writes to it",
            path=file.address,
        )
    try:
        return _ClosingParquet(opened)
    except Exception as error:  # pyarrow raises ArrowInvalid, OSError and ValueError, depending on what is missing
        opened.close()
        raise SourceError(
            f"{file.address}: not a whole Parquet file: {error}; copy or write it again", path=file.address
        ) from error


class _ClosingParquet(pq.ParquetFile):  # type: ignore[misc]
    """A Parquet file that closes what it was opened from."""

    def __init__(self, opened: Any) -> None:
        super().__init__(opened, buffer_size=1 << 20, pre_buffer=False)
        self._opened = opened

    def __exit__(self, *args: object) -> None:
        super().__exit__(*args)
        self._opened.close()


def _read(file: InputFile, units: Sequence[Unit], reading: Reading) -> Iterator[NumberedRow]:
    """Yield rows; row groups before the span are not read.

    Raises:
        ConfigError: if no column can hold what is wanted.
        SourceError: if the file is damaged.
    """
    with _open(file, reading.options) as table:
        columns = wanted_columns(file, table.schema_arrow.names, reading)
        start, stop = span_of(units)
        row = 0
        for group in range(table.metadata.num_row_groups):
            rows = table.metadata.row_group(group).num_rows
            if row < stop and row + rows > start:
                span = max(start - row, 0), min(stop - row, rows)
                for first, batch in _batches(table, file, group, columns, span):
                    yield from rows_of(file, batch, row + first, reading)
            row += rows


def _batches(
    table: Any, file: InputFile, group: int, columns: list[str] | None, span: tuple[int, int]
) -> Iterator[tuple[int, Any]]:
    """Yield (first row within the group, batch) of a run of rows of a row group."""
    start, stop = span
    described = table.metadata.row_group(group)
    batch_rows = min(max(BATCH_BYTES * described.num_rows // max(described.total_byte_size, 1), 1), BATCH_ROWS)
    row = 0
    try:
        # Asking for "a" reads all leaves below a struct column "a"; a column named "a.b" is asked for by that name.
        for batch in table.iter_batches(batch_size=batch_rows, row_groups=[group], columns=columns):
            first, last = max(start - row, 0), min(stop - row, batch.num_rows)
            if first < last:
                found = batch.slice(first, last - first)
                names = found.schema.names if columns is None else [n for n in found.schema.names if n in columns]
                yield row + first, found.select(names)
            row += batch.num_rows
            if row >= stop:
                return
    except StreampipeError:
        raise
    except Exception as error:  # pyarrow raises ArrowInvalid, OSError and others, depending on what is damaged
        what = "its rows are too large to be read" if isinstance(error, pa.ArrowNotImplementedError) else "cannot read"
        raise SourceError(
            f"{file.address}: row group {group}, rows from {row + 1} on: {what}: {error}; copy or write the file again"
            + (" with smaller row groups" if isinstance(error, pa.ArrowNotImplementedError) else ""),
            path=file.address,
        ) from error


def _sample(file: InputFile, spots: int, reading: Reading) -> tuple[int, list[Any]]:
    rows = [row for _, row in islice(_read(file, [Unit(file, 0, SAMPLE_ROWS)], reading), SAMPLE_ROWS)]
    return len(rows), rows


PARQUET = Corpus("parquet", "Parquet (.parquet, .pq)", _packing, _scan, _read, _sample, guess=ROWS)
