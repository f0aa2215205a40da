"""The indexes in memory, at most so many bytes of them."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable

from streampipe.shards.frame_index import FrameIndex


class IndexCache:
    """Keeps the indexes used last, up to `limit_bytes`; the one just loaded is always kept.

    Threads may share it: one load per shard at a time, loads of different shards side by side. After a fork the child
    keeps what was loaded and makes its own locks, because an inherited one may be held by a thread that is not there.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._indexes: OrderedDict[int, FrameIndex] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._loading: dict[int, threading.Lock] = {}
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[type["IndexCache"], tuple[int]]:
        return type(self), (self._limit_bytes,)

    def get(self, shard: int, load: Callable[[int], FrameIndex]) -> FrameIndex:
        """Return the index of a shard; `load(shard)` reads it if it is not there."""
        if self._pid != os.getpid():
            self._renew()
        with self._lock:
            index = self._indexes.get(shard)
            if index is not None:
                self._indexes.move_to_end(shard)
                return index
            loading = self._loading.setdefault(shard, threading.Lock())
        with loading:
            with self._lock:
                index = self._indexes.get(shard)
            if index is None:
                index = load(shard)
                self._keep(shard, index)
        return index

    def _keep(self, shard: int, index: FrameIndex) -> None:
        with self._lock:
            self._loading.pop(shard, None)
            self._indexes[shard] = index
            self._bytes += index.nbytes
            while self._bytes > self._limit_bytes and len(self._indexes) > 1:
                _, dropped = self._indexes.popitem(last=False)
                self._bytes -= dropped.nbytes

    def _renew(self) -> None:
        self._lock, self._loading, self._pid = threading.Lock(), {}, os.getpid()
        self._bytes = sum(index.nbytes for index in self._indexes.values())
