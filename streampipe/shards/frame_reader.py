"""Frames read, checked and decoded in threads, ahead of need and within a budget."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from streampipe.errors import ConfigError
from streampipe.shards.buffers import FrameBuffers
from streampipe.shards.frame import StoredFrame
from streampipe.shards.frame_decoder import FrameDecoder
from streampipe.threads import TaskThreads

# Frames of one read: enough to keep several ranges in flight, few enough to spread decoding over the threads.
_FRAMES_A_READ = 8
_THREADS = 4
_UNITS = {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "B": 1,
}


class StorageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How frames are read ahead.

    Attributes:
        prefetch_bytes: decoded bytes read ahead of the batch being assembled, in each worker process if there are any;
            an integer, or a text such as 256MiB.
        threads: reads and decodes at a time; 0 reads and decodes where frames are needed, in the thread that assembles.
            Null for 4; but where the source is local the thread that assembles reads, ahead of need, and one more
            decodes.
    """

    prefetch_bytes: int | str = "256MiB"
    threads: int | None = None

    def check(self) -> None:
        """Raise ConfigError for sizes that cannot be."""
        if self.budget() < 1:
            raise ConfigError(f"$.storage.prefetch_bytes: must be at least 1 byte, but got {self.prefetch_bytes!r}")
        if self.threads is not None and not 0 <= self.threads <= 256:
            raise ConfigError(f"$.storage.threads: must be within 0 and 256, but got {self.threads}")

    def budget(self) -> int:
        """Return prefetch_bytes as a number.

        Raises:
            ConfigError: for a text that is no size.
        """
        if isinstance(self.prefetch_bytes, int):
            return self.prefetch_bytes
        text = self.prefetch_bytes.strip()
        unit = next((u for u in _UNITS if text.endswith(u)), "")
        try:
            return int(float(text.removesuffix(unit)) * _UNITS.get(unit, 1))
        except (ValueError, OverflowError) as error:
            raise ConfigError(
                f"$.storage.prefetch_bytes: must be a size such as 256MiB or 268435456, but got {self.prefetch_bytes!r}"
            ) from error


class FrameSource(Protocol):
    """Whatever gives decoded frames."""

    @property
    def is_local(self) -> bool:
        """Whether its bytes are on this machine."""

    def read_frames(self, frames: Sequence[tuple[int, int]], buffers: FrameBuffers | None = None) -> Sequence[Any]:
        """Return the raw bytes of frames (shard, frame), checked and decoded."""

    def fetch_frames(self, frames: Sequence[tuple[int, int]]) -> Sequence[StoredFrame] | None:
        """Return frames as they are stored, checked; None from a source that makes its frames."""


class Read(Protocol):
    """A read that was asked for."""

    def result(self) -> None:
        """Wait for it, or do it; raises what went wrong."""


@dataclass(frozen=True)
class _HereAndNow:
    """A read that is done by whoever needs it."""

    read: Callable[[], None]

    def result(self) -> None:
        self.read()


class FrameReader:
    """Reads frames, in threads or where they are needed.

    It is `full` when as much as the budget has been requested and not yet been consumed; or at once, as long as no
    thread reads: frames that are made or read where they are needed come no sooner for being asked for early.
    """

    def __init__(self, config: StorageConfig) -> None:
        self._budget = config.budget()
        self._threads = config.threads
        self._readers: TaskThreads | None = None
        self._decoder = FrameDecoder()
        self._buffers = FrameBuffers()
        self._ahead = 0
        self._in_threads = False

    def full(self) -> bool:
        """Return whether requests should wait for `consumed`."""
        return not self._in_threads or self._ahead >= self._budget

    def request(
        self, source: FrameSource, frames: Sequence[tuple[int, int]], raw_bytes: int, place: Callable[[int, Any], None]
    ) -> Sequence[Read]:
        """Start reading frames.

        Args:
            source: whose frames.
            frames: (shard, frame) pairs.
            raw_bytes: decoded size of all of them; give it back to `consumed`.
            place: called from a thread with each frame's position in `frames` and its bytes.

        Returns:
            what to wait for; an error of the source is theirs.
        """
        self._ahead += raw_bytes
        if self._threads is None and source.is_local:
            return [self._read_here(source, frames, place)]
        threads = self._threads if self._threads is not None else _THREADS
        if not threads:
            return [_HereAndNow(lambda: self._read(source, frames, 0, len(frames), place))]
        self._in_threads = True
        if self._readers is None:
            self._readers = TaskThreads(threads, "streampipe-read")
        starts = range(0, len(frames), _FRAMES_A_READ)
        return [
            self._readers.submit(partial(self._read, source, frames, first, first + _FRAMES_A_READ, place))
            for first in starts
        ]

    def _read_here(
        self, source: FrameSource, frames: Sequence[tuple[int, int]], place: Callable[[int, Any], None]
    ) -> Read:
        """Read at once and let another thread decode; what went wrong is told when the frames are needed."""
        try:
            stored = source.fetch_frames(frames)
        except Exception as error:
            failed: Future[None] = Future()
            failed.set_exception(error)
            return failed
        if stored is None:
            return _HereAndNow(lambda: self._read(source, frames, 0, len(frames), place))
        self._in_threads = True
        return self._decoder.submit(stored, place)

    def consumed(self, raw_bytes: int) -> None:
        """Say that a batch has been assembled, for which this much had been requested."""
        self._ahead -= raw_bytes

    def close(self) -> None:
        """Stop: what has not begun to be read is not read any more."""
        self._decoder.close()
        if self._readers is not None:
            self._readers.close()

    def _read(
        self,
        source: FrameSource,
        frames: Sequence[tuple[int, int]],
        first: int,
        last: int,
        place: Callable[[int, Any], None],
    ) -> None:
        for number, raw in enumerate(source.read_frames(frames[first:last], self._buffers)):
            place(first + number, raw)
