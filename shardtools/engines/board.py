"""A few numbers that workers write and the parent reads: no lock, no queue, so nothing can hang."""

import time
from multiprocessing.context import BaseContext
from typing import Any

from shardtools.making import StoppedError

SLOT = 4
"""Numbers a task: documents, tokens, time of the last sign of life in ms, 1 while it runs."""

WHERE_BYTES = 256


class Board:
    """Shared progress of all workers.

    Each worker writes to a slot of its own, and the parent sums them up.

    Args:
        context: of multiprocessing.
        workers: how many slots.
    """

    def __init__(self, context: BaseContext, workers: int) -> None:
        self.numbers: Any = context.RawArray("q", SLOT * workers)
        self.places: Any = [context.RawArray("c", WHERE_BYTES) for _ in range(workers)]
        self.stopped: Any = context.RawValue("b", 0)
        self.workers = workers

    def stop(self) -> None:
        """Ask all tasks to give up at their next batch."""
        self.stopped.value = 1

    def totals(self) -> tuple[int, int]:
        """Return documents and tokens so far."""
        return sum(self.numbers[0::SLOT]), sum(self.numbers[1::SLOT])

    def slow(self, seconds: float) -> list[str]:
        """Return the places at which workers have been for longer than `seconds`."""
        now = int(time.monotonic() * 1000)
        return [
            self.places[i].value.decode(errors="replace")
            for i in range(self.workers)
            if self.numbers[i * SLOT + 3] and now - self.numbers[i * SLOT + 2] > seconds * 1000
        ]


class SlotMeter:
    """Writes one worker's progress to the board."""

    def __init__(self, board: Board, slot: int) -> None:
        self._board = board
        self._base = slot * SLOT
        self._slot = slot

    def advance(self, documents: int, tokens: int) -> None:
        """Count what was done; give up if the build is being stopped."""
        numbers = self._board.numbers
        numbers[self._base] += documents
        numbers[self._base + 1] += tokens
        if self._board.stopped.value:
            raise StoppedError

    def at(self, where: str) -> None:
        """Say what is being encoded."""
        self._board.places[self._slot].value = where.encode()[-WHERE_BYTES + 1 :]
        self._board.numbers[self._base + 2] = int(time.monotonic() * 1000)
        self._board.numbers[self._base + 3] = 1

    def idle(self) -> None:
        """Say that nothing is being done."""
        self._board.numbers[self._base + 3] = 0
