"""Arrow: IPC files and streams, which is also what `datasets` saves."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from shardtools.corpus.blocks import open_input
from shardtools.corpus.corpus import ROWS, SAMPLE_ROWS, Corpus, NumberedRow, Options, Reading
from shardtools.corpus.files import InputFile, Packing
from shardtools.corpus.formats.columnar import cut_rows, rows_of, span_of, wanted_columns
from shardtools.corpus.units import HashedChunks, Scan, Unit
from streampipe.errors import SourceError, StreampipeError

NAME = re.compile(r"\.(arrow|feather|ipc|arrows)$", re.IGNORECASE)
MAGIC = b"ARROW1"
END = b"\xff\xff\xff\xff\0\0\0\0"
"""Ends a stream. Readers take a stream without it for a whole one, so one that was cut would only be shorter."""


def _packing(name: str, records: bool) -> Packing | None:
    return "" if NAME.search(name) else None


def _scan(file: InputFile, unit_length: int, options: Options) -> Scan:
    hashed = HashedChunks(file, options)
    for _ in hashed:
        pass
    units, row = list[Unit](), 0
    for batch in _batches(file, None, Reading(options=options)):
        units += cut_rows(file, batch.num_rows, row, unit_length)
        row += batch.num_rows
    return hashed.finish(tuple(_joined(units, unit_length)))


def _joined(units: Sequence[Unit], unit_length: int) -> Iterator[Unit]:
    """Join units of small batches until they are long enough."""
    run: list[Unit] = []
    for unit in units:
        run.append(unit)
        start, stop = span_of(run)
        if stop - start >= unit_length:
            yield Unit(unit.file, start, stop - start, first_line=start + 1)
            run.clear()
    if run:
        start, stop = span_of(run)
        yield Unit(run[0].file, start, stop - start, first_line=start + 1)


def _batches(file: InputFile, span: tuple[int, int] | None, reading: Reading) -> Iterator[Any]:
    """Yield the record batches of a file, or those rows of them that lie in the span."""
    with open_input(file, reading.options) as opened:
        try:
            yield from _in_span(_stored(file, opened), span)
        except StreampipeError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(file, str(error)) from error


def _stored(file: InputFile, opened: Any) -> Iterator[Any]:
    if opened.read(len(MAGIC)) == MAGIC:
        opened.seek(0)
        table = pa.ipc.open_file(pa.PythonFile(opened, mode="r"))
        for i in range(table.num_record_batches):
            yield table.get_batch(i)
        return
    if opened.seek(0, 2) < len(END):
        raise _damaged(file, "it is too short for an Arrow stream")
    opened.seek(-len(END), 2)
    if opened.read() != END:
        raise _damaged(file, "the stream has no end marker, so it is truncated or still being written")
    opened.seek(0)
    yield from pa.ipc.open_stream(pa.PythonFile(opened, mode="r"))


def _in_span(batches: Iterator[Any], span: tuple[int, int] | None) -> Iterator[Any]:
    row = 0
    for batch in batches:
        if span is None:
            yield batch
        else:
            first, last = max(span[0] - row, 0), min(span[1] - row, batch.num_rows)
            if first < last:
                yield batch.slice(first, last - first)
            row += batch.num_rows
            if row >= span[1]:
                return


def _damaged(file: InputFile, why: str) -> SourceError:
    return SourceError(
        f"{file.address}: not a whole Arrow file or stream: {why}; copy or write it again", path=file.address
    )


def _read(file: InputFile, units: Sequence[Unit], reading: Reading) -> Iterator[NumberedRow]:
    span = span_of(units)
    row = span[0]
    for batch in _batches(file, span, reading):
        columns = wanted_columns(file, batch.schema.names, reading)
        yield from rows_of(file, batch if columns is None else batch.select(columns), row, reading)
        row += batch.num_rows


def _sample(file: InputFile, spots: int, reading: Reading) -> tuple[int, list[Any]]:
    rows = [row for _, row in islice(_read(file, [Unit(file, 0, SAMPLE_ROWS)], reading), SAMPLE_ROWS)]
    return len(rows), rows


ARROW = Corpus(
    "arrow",
    "Arrow files and streams (.arrow, .feather), folders saved by `datasets`",
    _packing,
    _scan,
    _read,
    _sample,
    guess=ROWS,
)
