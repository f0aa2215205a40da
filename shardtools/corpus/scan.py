"""One look at every input file: its hash, and the places where it can be cut.

A unit is the smallest piece of a file that goes to one task: whole lines, a run of Parquet rows, or a plain file.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow.parquet as pq
import xxhash

from shardtools.corpus.blocks import START, Block, Seek, chunks, decompressed, open_input
from shardtools.corpus.inputs import InputFile
from streampipe.errors import SourceError


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest piece of a file that a task can take.

    Attributes:
        file: where it is.
        start: its first decompressed byte (lines), its first row (Parquet, from 0), or 0.
        length: decompressed bytes, rows, or bytes.
        first_line: the number of its first line, from 1, for messages.
        digest: xxh3 of its decompressed bytes (lines, plain); "" for Parquet.
        seek: where decompression can start.
    """

    file: InputFile
    start: int
    length: int
    first_line: int = 1
    digest: str = ""
    seek: Seek = START


@dataclass(frozen=True, slots=True)
class Scan:
    """What one look at a file found.

    Attributes:
        file: the file, with the size that was read.
        sha256: of its bytes as they are.
        units: the pieces, in order; together the whole file.
    """

    file: InputFile
    sha256: str
    units: tuple[Unit, ...]


def scan(file: InputFile, unit_length: int, options: Mapping[str, Any]) -> Scan:
    """Read a file once.

    Args:
        file: what to read.
        unit_length: how long a unit is at least: bytes for lines, rows for Parquet; a plain file is one unit.
        options: for the filesystem of a URL.

    Raises:
        SourceError: if it cannot be read, is truncated or damaged.
    """
    hashed = _Hashed(chunks(file, 0, options))
    if file.kind == "lines":
        units = tuple(_line_units(file, decompressed(file, iter(hashed)), unit_length))
    elif file.kind == "plain":
        digest = xxhash.xxh3_64()
        for chunk in hashed:
            digest.update(chunk)
        units = (Unit(file, 0, hashed.bytes, digest=digest.hexdigest()),)
    else:
        for _ in hashed:
            pass
        units = tuple(_row_units(file, unit_length, options))
    if hashed.bytes != file.bytes:
        raise SourceError(
            f"{file.address}: has {hashed.bytes} bytes, but had {file.bytes} when it was found; "
            f"wait until nobody writes to it",
            path=file.address,
        )
    return Scan(file, hashed.sha256(), units)


class _Hashed:
    """Chunks on their way through, hashed and counted."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self.bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._source:
            self._hash.update(chunk)
            self.bytes += len(chunk)
            yield chunk

    def sha256(self) -> str:
        return self._hash.hexdigest()


def _line_units(file: InputFile, blocks: Iterator[Block], unit_length: int) -> Iterator[Unit]:
    """Cut after the first line end at which a unit is long enough."""
    start = position = lines = 0
    first_line, seek, digest = 1, START, xxhash.xxh3_64()
    for block, block_seek in blocks:
        at = 0
        while at < len(block):
            if position == start:
                seek = block_seek
            earliest = at + max(0, start + unit_length - 1 - position)
            end = block.find(b"\n", earliest) + 1 if earliest < len(block) else 0
            stop = end or len(block)
            digest.update(memoryview(block)[at:stop])
            lines += block.count(b"\n", at, stop)
            position += stop - at
            at = stop
            if end:
                yield Unit(file, start, position - start, first_line, digest.hexdigest(), seek)
                start, first_line, digest = position, 1 + lines, xxhash.xxh3_64()
    if position > start:
        yield Unit(file, start, position - start, first_line, digest.hexdigest(), seek)


def _row_units(file: InputFile, unit_length: int, options: Mapping[str, Any]) -> Iterator[Unit]:
    """Cut each row group into runs of rows of nearly the same length."""
    with open_parquet(file, options) as table:
        row = 0
        for group in range(table.metadata.num_row_groups):
            rows = table.metadata.row_group(group).num_rows
            count = -(-rows // unit_length)
            borders = [row + rows * i // count for i in range(count + 1)] if rows else []
            yield from (Unit(file, a, b - a, first_line=a + 1) for a, b in pairwise(borders))
            row += rows


def open_parquet(file: InputFile, options: Mapping[str, Any]) -> Any:
    """Open a Parquet file; it is read in batches inside a row group, through a small buffer.

    Raises:
        SourceError: if it is not a whole Parquet file.
    """
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
