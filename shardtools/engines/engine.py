"""What an engine is to a build."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from shardtools.ledger import Record
from shardtools.making import Meter
from shardtools.worker import BuildTask


class Worker(Protocol):
    """Runs tasks in one process."""

    def run(self, task: BuildTask, meter: Meter) -> Record:
        """Run one task, which commits itself, and return its record."""
        ...


MakeWorker = Callable[[], Worker]
"""Picklable; called once in each process."""


class Board(Protocol):
    """Where the work is."""

    def totals(self) -> tuple[int, int]:
        """Return documents and tokens encoded so far, since the engine started."""
        ...

    def slow(self, seconds: float) -> list[str]:
        """Return the places at which workers have been for longer than `seconds`."""
        ...


Report = Callable[[Board, list[Record]], None]
"""Called a few times a second with the board and the records of tasks that ended since the last call; it may raise."""


class Engine(Protocol):
    """Runs tasks somewhere."""

    def run(self, tasks: Sequence[BuildTask], report: Report) -> None:
        """Run all tasks; the bytes that they write do not depend on where or beside whom.

        Raises:
            StreampipeError: the first error of a task; the other tasks are stopped before it is raised.
        """
        ...


OpenEngine = Callable[[], AbstractContextManager[Engine]]
