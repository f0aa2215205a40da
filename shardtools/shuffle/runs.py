"""Runs: the documents of one slice of the input, sorted by key, in one object a chunk.

    int64 [2]              documents D, buckets B
    int64 [2, B + 1]       of plain documents, then of candidates: the first row of each bucket, and the end
    ROW [D]                plain documents by key, then candidates by key
    payloads

Candidates are the documents that may turn out to be held out; which of them are is known once all slices are done. So
a bucket needs two ranges of rows of each chunk, and the held-out split the candidates only.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardtools.shuffle.order import Order
from streampipe.errors import StreampipeError
from streampipe.storage import Range

ROW = np.dtype(
    [
        ("key", "<u8"),
        ("held", "<u8"),  # the number that decides whether it is held out
        ("offset", "<u8"),  # of its payload in the object
        ("size", "<u8"),
        ("check", "<u8"),  # xxh3 of its payload
        ("row", "<i8"),
        ("file", "<i4"),
        ("position", "<u4"),  # in its slice
    ]
)
_INT = 8
READ_AT_ONCE = 48
"""Objects looked at in one call, because a store may keep each of them open."""


class Chunk:
    """Documents of a slice that are waiting to be sorted.

    Args:
        order: gives the buckets.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._payloads: list[bytes] = []
        self._columns = {name: array("q" if ROW[name].kind == "i" else "Q") for name in ROW.names or ()}
        self.bytes = 0

    def add(self, payload: bytes, **row: int) -> None:
        """Take one document: what stands in `ROW` but for offset, size and check."""
        row.update(offset=0, size=len(payload), check=xxhash.xxh3_64_intdigest(payload))
        for name, value in row.items():
            self._columns[name].append(value)
        self._payloads.append(payload)
        self.bytes += len(payload)

    def held(self) -> NDArray[np.uint64]:
        """Return the held-out numbers of all documents: uint64 [documents]."""
        return np.array(self._columns["held"], np.uint64)

    def encode(self, candidates: NDArray[np.bool_]) -> bytes:
        """Return the object; `candidates` [documents] tells which may be held out."""
        rows = np.empty(len(self._payloads), ROW)
        for name, column in self._columns.items():
            rows[name] = np.array(column, column.typecode)
        order = np.lexsort((rows["key"], candidates))  # stable: equal keys stay in input order
        rows, plain = rows[order], len(rows) - int(candidates.sum())
        borders = self._order.borders()
        starts = np.stack([_starts(rows["key"][:plain], borders), _starts(rows["key"][plain:], borders) + plain])
        head = np.array([len(rows), self._order.buckets], "<i8").tobytes() + starts.astype("<i8").tobytes()
        sizes = rows["size"]
        rows["offset"] = np.cumsum(sizes) - sizes + np.uint64(len(head) + rows.nbytes)
        return b"".join((head, rows.tobytes(), *(self._payloads[i] for i in order.tolist())))


def _starts(keys: NDArray[np.uint64], borders: NDArray[np.uint64]) -> NDArray[np.int64]:
    return np.append(np.searchsorted(keys, borders), len(keys)).astype(np.int64)


ReadRanges = Callable[[Sequence[Range]], list[bytes]]


@dataclass(frozen=True)
class ChunkName:
    """Where a chunk is, and which slice it belongs to."""

    name: str
    slice: int


@dataclass(frozen=True)
class Part:
    """Which rows to read.

    Attributes:
        buckets: a range of them: first, and one after the last.
        candidates: the candidates, or the plain documents.
    """

    buckets: tuple[int, int]
    candidates: bool


Selected = tuple[NDArray[Any], NDArray[np.int64], list[str]]
"""Rows [D] by chunk, then key; the slice of each [D]; the object of each."""


def read_rows(read: ReadRanges, chunks: Sequence[ChunkName], buckets: int, part: Part) -> Selected:
    """Return the rows of a part of all chunks.

    Raises:
        StreampipeError: if a chunk is shorter than it says.
    """
    tables: list[NDArray[Any]] = []
    slices: list[NDArray[np.int64]] = []
    names: list[str] = []
    first, stop = part.buckets
    table = 2 * _INT + (buckets + 1) * _INT * part.candidates
    rows_at = 2 * _INT * (buckets + 2)
    for some in _groups(chunks):
        wanted = [(chunk.name, table + _INT * at, _INT) for chunk in some for at in (first, stop)]
        numbers = [_int_of(data, wanted[i][0]) for i, data in enumerate(read(wanted))]
        spans = list(zip(some, numbers[::2], numbers[1::2], strict=True))
        ranges = [(chunk.name, rows_at + ROW.itemsize * a, ROW.itemsize * (b - a)) for chunk, a, b in spans]
        for (chunk, a, b), data in zip(spans, read(ranges), strict=True):
            if len(data) != ROW.itemsize * (b - a):
                raise _damaged(chunk.name, "is too short")
            tables.append(np.frombuffer(data, ROW))
            slices.append(np.full(b - a, chunk.slice, np.int64))
            names += [chunk.name] * (b - a)
    if not tables:
        return np.empty(0, ROW), np.empty(0, np.int64), []
    return np.concatenate(tables), np.concatenate(slices), names


def read_payloads(read: ReadRanges, rows: NDArray[Any], names: Sequence[str]) -> list[memoryview]:
    """Return the payloads of rows in their order; neighbours in an object are read as one range.

    Raises:
        StreampipeError: if one is damaged.
    """
    offsets, sizes = rows["offset"].tolist(), rows["size"].tolist()
    runs: list[list[int]] = []
    for i in range(len(rows)):
        if runs and names[i] == names[i - 1] and offsets[i] == offsets[i - 1] + sizes[i - 1]:
            runs[-1].append(i)
        else:
            runs.append([i])
    found: list[memoryview] = [memoryview(b"")] * len(rows)
    for some in _groups(runs):
        ranges = [(names[run[0]], offsets[run[0]], offsets[run[-1]] + sizes[run[-1]] - offsets[run[0]]) for run in some]
        for run, data in zip(some, read(ranges), strict=True):
            for i in run:
                at = offsets[i] - offsets[run[0]]
                found[i] = memoryview(data)[at : at + sizes[i]]
    for payload, check, name in zip(found, rows["check"].tolist(), names, strict=True):
        if xxhash.xxh3_64_intdigest(payload) != check:
            raise _damaged(name, "does not hold what was written")
    return found


def _groups(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), READ_AT_ONCE):
        yield items[start : start + READ_AT_ONCE]


def _int_of(data: bytes, name: str) -> int:
    if len(data) != _INT:
        raise _damaged(name, "is too short")
    return int.from_bytes(data, "little")


def _damaged(name: str, fault: str) -> StreampipeError:
    return StreampipeError(
        f"{name}: {fault}: something changed the scratch files of this build; remove them and run it again"
    )
