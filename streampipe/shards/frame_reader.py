"""Frames read, checked and decoded in threads, ahead of need and within a budget."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import msgspec

from streampipe.errors import ConfigError

# Frames of one read: enough to keep several ranges in flight, few enough to spread decoding over the threads.
_FRAMES_A_READ = 8
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
        prefetch_bytes: decoded bytes read ahead of the batch being assembled; an integer, or a text such as 256MiB.
        threads: reads and decodes at a time.
    """

    prefetch_bytes: int | str = "256MiB"
    threads: int = 4

    def check(self) -> None:
        """Raise ConfigError for sizes that cannot be."""
        if self.budget() < 1:
            raise ConfigError(f"$.storage.prefetch_bytes: must be at least 1 byte, but got {self.prefetch_bytes!r}")
        if not 1 <= self.threads <= 256:
            raise ConfigError(f"$.storage.threads: must be within 1 and 256, but got {self.threads}")

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

    def read_frames(self, frames: Sequence[tuple[int, int]]) -> Sequence[Any]:
        """Return the raw bytes of frames (shard, frame), checked and decoded."""


class FrameReader:
    """Reads frames in threads. It is `full` when as much as the budget has been requested and not yet been consumed."""

    def __init__(self, config: StorageConfig) -> None:
        self._budget = config.budget()
        self._threads = config.threads
        self._pool: ThreadPoolExecutor | None = None
        self._ahead = 0

    def full(self) -> bool:
        """Return whether requests should wait for `consumed`."""
        return self._ahead >= self._budget

    def request(
        self, source: FrameSource, frames: Sequence[tuple[int, int]], raw_bytes: int, place: Callable[[int, Any], None]
    ) -> list[Future[None]]:
        """Start reading frames.

        Args:
            source: whose frames.
            frames: (shard, frame) pairs.
            raw_bytes: decoded size of all of them; give it back to `consumed`.
            place: called from a thread with each frame's position in `frames` and its bytes.

        Returns:
            futures to wait for; an error of the source is theirs.
        """
        self._ahead += raw_bytes
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="streampipe-read")
        starts = range(0, len(frames), _FRAMES_A_READ)
        return [self._pool.submit(self._read, source, frames, first, place) for first in starts]

    def consumed(self, raw_bytes: int) -> None:
        """Say that a batch has been assembled, for which this much had been requested."""
        self._ahead -= raw_bytes

    def close(self) -> None:
        """Stop: what has not begun to be read is not read any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _read(
        source: FrameSource, frames: Sequence[tuple[int, int]], first: int, place: Callable[[int, Any], None]
    ) -> None:
        for number, raw in enumerate(source.read_frames(frames[first : first + _FRAMES_A_READ])):
            place(first + number, raw)
