"""Rounds planned ahead, in a thread."""

import time
from concurrent.futures import CancelledError, Future
from functools import partial
from threading import Event

from streampipe.address import Addressed
from streampipe.stream import Stream
from streampipe.threads import TaskThreads

# While a plan is not waited for, planning sleeps this long between slices of about a millisecond, so that the training
# loop, which shares the interpreter lock, does not feel it. Measured in benchmarks/README.md.
_BREATH = 0.002


class PlannedRounds:
    """Rounds by number, the next one planned in a thread while the present one is used."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._thread = TaskThreads(1, "streampipe-plan")
        self._planned: dict[tuple[int, int], Future[Addressed]] = {}
        self._wanted = Event()
        self._closed = Event()

    def get(self, number: int, first: int) -> Addressed:
        """Return a round's plan, waiting for it if need be, and begin with the next.

        `first` is the sequences of the run before the round.
        """
        self._wanted.set()
        plan = self._begin(number, first).result()
        self._wanted.clear()
        self._planned = {key: f for key, f in self._planned.items() if key[0] >= number}
        if self._stream.planner.rounds is None or number + 1 < self._stream.planner.rounds:
            self._begin(number + 1, first + len(plan.plan))
        return plan

    def ready(self, number: int) -> bool:
        """Return whether `get` would not wait."""
        return any(key[0] == number and future.done() for key, future in self._planned.items())

    def close(self) -> None:
        """Plan no more; what is being planned is given up."""
        self._closed.set()
        self._thread.close()

    def _begin(self, number: int, first: int) -> Future[Addressed]:
        # Where a phase completes its last step with empty sequences, the next round begins later than was foreseen.
        key = (number, first if self._stream.planner.depends_on_first(number) else 0)
        if key not in self._planned:
            self._planned[key] = self._thread.submit(partial(self._stream.plan_round, number, self._breathe, first))
        return self._planned[key]

    def _breathe(self) -> None:
        if self._closed.is_set():
            raise CancelledError
        if not self._wanted.is_set():
            time.sleep(_BREATH)
