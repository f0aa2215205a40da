"""Frames decoded in a thread of their own, beside the thread that has read them."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import RLock
from typing import Any, NamedTuple

from streampipe.shards.frame import StoredFrame, decode_frames
from streampipe.threads import start_thread

# Decoded bytes of one call: few at first, so that what is waited for comes soon; more while more is waiting.
_LEAST, _MOST = 2**20, 2**24


class _Work(NamedTuple):
    frames: Sequence[StoredFrame]
    place: Callable[[int, Any], None]
    done: "Future[None]"


class FrameDecoder:
    """Decodes whatever is waiting in one call.

    A thread that takes the interpreter lock for each frame waits for it up to 5 ms each time that another thread does
    not let it go; one call for many frames takes it once.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[_Work | None] = SimpleQueue()
        self._started = False
        # So that nothing is put behind the None that ends the queue; the garbage collector may close this in `submit`.
        self._lock = RLock()
        self._closed = False

    def submit(self, frames: Sequence[StoredFrame], place: Callable[[int, Any], None]) -> "Future[None]":
        """Let frames be decoded.

        Args:
            frames: any number.
            place: called from the thread with each frame's position in `frames` and its bytes.

        Returns:
            what is done when all are in place; ShardCorruptError is its exception. Cancelled if this is closed.
        """
        work = _Work(frames, place, Future())
        with self._lock:
            if not self._closed and not self._started:
                start_thread(self._run, "streampipe-decode", self.close)
                self._started = True
            if self._closed:
                work.done.cancel()
            else:
                self._waiting.put(work)
        return work.done

    def close(self) -> None:
        """Stop: what has not begun to be decoded is cancelled."""
        with self._lock:
            self._closed = True
            self._waiting.put(None)

    def _run(self) -> None:
        size = _LEAST
        while (work := self._waiting.get()) is not None and not self._closed:
            group, raw_bytes = [work], _raw_bytes(work)
            while raw_bytes < size and (more := self._next()) is not None:
                group.append(more)
                raw_bytes += _raw_bytes(more)
            size = min(_MOST, 2 * size) if raw_bytes >= size else _LEAST
            _decode(group)
        while work is not None:
            work.done.cancel()
            work = self._next()

    def _next(self) -> _Work | None:
        try:
            work = self._waiting.get_nowait()
        except Empty:
            return None
        if work is None:
            self._waiting.put(None)  # for whoever asks next
        return work


def _raw_bytes(work: _Work) -> int:
    return sum(frame.raw_bytes for frame in work.frames)


def _decode(group: Sequence[_Work]) -> None:
    """Decode and put in place; whatever goes wrong is told to those who wait, or they would wait for ever."""
    frames = [frame for work in group for frame in work.frames]
    try:
        decoded = iter(decode_frames(frames))
    except Exception as error:
        if len(group) == 1:
            group[0].done.set_exception(error)
            return
        for work in group:  # so that each has its own error, or none
            _decode([work])
        return
    for work in group:
        raws = [next(decoded) for _ in work.frames]
        try:
            for number, raw in enumerate(raws):
                work.place(number, raw)
        except Exception as error:
            work.done.set_exception(error)
        else:
            work.done.set_result(None)
