"""The indexes in memory, at most so many bytes of them."""

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable

from streampipe.shards.frame_index import FrameIndex


class IndexCache:
    """Keeps the indexes used last, up to `limit_bytes`; the one just loaded is always kept.

    Threads may share it: one load per shard at a time, loads of different shards side by side. After a fork the child
    keeps what was loaded but has its own locks, because an inherited one may be held by a thread that is not there.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._indexes: OrderedDict[int, FrameIndex] = OrderedDict()
        self._bytes = 0
        self._locks: dict[tuple[int, int | None], threading.Lock] = {}

    def __reduce__(self) -> tuple[type["IndexCache"], tuple[int]]:
        return type(self), (self._limit_bytes,)

    def get(self, shard: int, load: Callable[[int], FrameIndex]) -> FrameIndex:
        """Return the index of a shard; `load(shard)` reads it if it is not there."""
        index = self._find(shard)
        if index is None:
            with self._lock(shard):
                index = self._find(shard)
                if index is None:
                    index = load(shard)
                    self._keep(shard, index)
        return index

    def _lock(self, shard: int | None) -> threading.Lock:
        """Return this process's lock of a shard, or of the cache itself (None)."""
        return self._locks.setdefault((os.getpid(), shard), threading.Lock())

    def _find(self, shard: int) -> FrameIndex | None:
        # Without the lock, which a thread may hold while it waits for the interpreter: each call here is atomic.
        index = self._indexes.get(shard)
        if index is not None:
            with contextlib.suppress(KeyError):  # dropped meanwhile
                self._indexes.move_to_end(shard)
        return index

    def _keep(self, shard: int, index: FrameIndex) -> None:
        with self._lock(None):
            self._indexes[shard] = index
            self._bytes += index.nbytes
            while self._bytes > self._limit_bytes and len(self._indexes) > 1:
                dropped, old = self._indexes.popitem(last=False)
                self._bytes -= old.nbytes
                self._locks.pop((os.getpid(), dropped), None)
