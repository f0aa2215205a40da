"""Memory that is used again: for decoded frames, and for the arrays of batches."""

import sys
from collections import defaultdict, deque
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAST = 65_536
# The shelf's reference, and that of the question itself.
_NOBODY_ELSE = 2
_TRIES = 8


class FrameBuffers:
    """Gives memory, and takes it back by itself when nobody looks at it any more.

    Fresh memory costs a page fault for each 4 KiB: frames that are kept take 1.6 times as long to decode into it.
    What is given first is mostly given up first, so the oldest buffers of a size are asked whether they are free; one
    that somebody keeps goes to the end of the queue, and blocks nobody. Thread-safe.
    """

    def __init__(self) -> None:
        self._shelves: defaultdict[int, deque[NDArray[Any]]] = defaultdict(deque)
        self._lock = Lock()

    def take(self, size: int) -> memoryview:
        """Return `size` writable bytes; they are one's own until the last view of them has gone."""
        # Powers of two, so that batches of many sizes share few shelves; memory that is never touched is never taken.
        rounded = max(_LEAST, 1 << (size - 1).bit_length())
        with self._lock:
            shelf = self._shelves[rounded]
            for _ in range(min(_TRIES, len(shelf))):
                shelf.rotate(-1)
                if sys.getrefcount(shelf[-1]) == _NOBODY_ELSE:
                    return shelf[-1].data[:size]
            shelf.append(np.empty(rounded, np.uint8))
            return shelf[-1].data[:size]
