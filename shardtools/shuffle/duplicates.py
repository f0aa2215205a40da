"""Finding copies with bounded memory: hashes are scattered, one range of hashes is looked at at a time.

    hashes of a slice:   int64 [RANGES + 1] first row of each range, and the end; HASH, sorted by hash
    drops of a range:    int64 [buckets + 1] likewise of each bucket; DROP, sorted by key

Of several rows with one content the first of the input stays, with all documents made of it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardtools.shuffle.runs import ReadRanges
from streampipe.storage import Range

RANGES = 1024
HASH = np.dtype([("high", "<u8"), ("low", "<u8"), ("key", "<u8"), ("row", "<u4"), ("position", "<u4")])
"""`row` counts the rows of a slice; a row may have made several documents, one entry each."""

DROP = np.dtype([("key", "<u8"), ("slice", "<u4"), ("position", "<u4")])


def encode_hashes(entries: Sequence[tuple[bytes, int, int, int]]) -> bytes:
    """Return the hashes of a slice: (identity, key, row, position) of each document."""
    rows = np.empty(len(entries), HASH)
    rows["high"] = [int.from_bytes(entry[0][:8], "little") for entry in entries]
    rows["low"] = [int.from_bytes(entry[0][8:], "little") for entry in entries]
    for i, name in enumerate(("key", "row", "position"), 1):
        rows[name] = [entry[i] for entry in entries]
    rows = rows[np.lexsort((rows["position"], rows["low"], rows["high"]))]
    return _with_starts(rows, rows["high"], _range_borders())


def find_duplicates(
    read: ReadRanges, names: Sequence[tuple[int, str]], ranges: tuple[int, int], borders: NDArray[np.uint64]
) -> tuple[bytes, int]:
    """Return the drops of a range of hashes, and how many there are.

    Args:
        read: reads scratch objects.
        names: of the hashes: (slice, object).
        ranges: first, and one after the last, of `RANGES`.
        borders: first key of each bucket.
    """
    parts = [_read_part(read, name, RANGES, ranges, HASH) for _, name in names]
    rows = np.concatenate(parts)
    slices = np.repeat([number for number, _ in names], [len(part) for part in parts])
    order = np.lexsort((rows["position"], slices, rows["low"], rows["high"]))
    rows, slices = rows[order], slices[order]
    new = np.ones(len(rows), bool)
    new[1:] = (rows["high"][1:] != rows["high"][:-1]) | (rows["low"][1:] != rows["low"][:-1])
    first = np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0))
    copies = (slices != slices[first]) | (rows["row"] != rows["row"][first])
    drops = np.empty(int(copies.sum()), DROP)
    drops["key"], drops["slice"], drops["position"] = rows["key"][copies], slices[copies], rows["position"][copies]
    drops = drops[np.lexsort((drops["position"], drops["slice"], drops["key"]))]
    return _with_starts(drops, drops["key"], borders), len(drops)


def read_drops(read: ReadRanges, names: Sequence[str], buckets: int, span: tuple[int, int]) -> set[tuple[int, int]]:
    """Return (slice, position) of the documents in a range of buckets that are copies."""
    found: set[tuple[int, int]] = set()
    for name in names:
        rows = _read_part(read, name, buckets, span, DROP)
        found.update(zip(rows["slice"].tolist(), rows["position"].tolist(), strict=True))
    return found


def _range_borders() -> NDArray[np.uint64]:
    return np.arange(RANGES, dtype=np.uint64) << np.uint64(64 - RANGES.bit_length() + 1)


def _with_starts(rows: NDArray[Any], keys: NDArray[np.uint64], borders: NDArray[np.uint64]) -> bytes:
    starts = np.append(np.searchsorted(keys, borders), len(keys)).astype("<i8")
    return starts.tobytes() + rows.tobytes()


def _read_part(read: ReadRanges, name: str, count: int, span: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    numbers: list[Range] = [(name, 8 * at, 8) for at in span]
    start, stop = (int.from_bytes(data, "little") for data in read(numbers))
    (data,) = read([(name, 8 * (count + 1) + dtype.itemsize * start, dtype.itemsize * (stop - start))])
    return np.frombuffer(data, dtype, stop - start)
