"""The threads between a plan and its batches: plan a round ahead, read frames ahead, assemble micro batches ahead.

    planning thread ──rounds──> assembling thread ──batches──> whoever iterates (and assembles when none is ready)
                                 │            ↑
                              requests      frames
                                 ↓            │
                                reading threads

Nothing here decides anything: a stream gives the same batches however far each thread has run ahead.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.address import Addressed
from streampipe.cursor import Cursor
from streampipe.parallel import Topology
from streampipe.plan.round_plan import RoundPlan
from streampipe.plan.schedule import Schedule, StepPlan
from streampipe.rank_steps import RankSteps, delivered_of_step, micro_batches_of, rank_steps, require_within
from streampipe.shards.buffers import FrameBuffers
from streampipe.shards.frame_reader import FrameReader, Read
from streampipe.stream import Stream

# While a plan is not waited for, planning sleeps this long between slices of about a millisecond, so that the training
# loop, which shares the interpreter lock, does not feel it. Measured in benchmarks/README.md.
_BREATH = 0.002
# Batches are made ahead when the consumer has not come back for this long; while it comes back at once, whether it does
# is looked at less and less often, since each look takes the interpreter lock from it.
_LEAD, _LONGEST_LEAD = 0.002, 0.008
# Jobs whose frames are asked for before they are assembled; the budget of the reader usually ends it sooner.
_JOBS_AHEAD = 4096
# Small steps are cut out of their round together, this many times what is assembled at once.
_CUT_AT_ONCE = 4


@dataclass(frozen=True)
class Stride:
    """Every `workers`-th micro batch, from number `worker` on: what one of several worker processes makes."""

    worker: int = 0
    workers: int = 1


@dataclass(frozen=True)
class _Job:
    """Micro batches to assemble: numbers of a share."""

    share: RankSteps
    numbers: range
    reads: list[Read]
    raw_bytes: int


class PlannedRounds:
    """Rounds by number, the next one planned in a thread while the present one is used."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="streampipe-plan")
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
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, number: int, first: int) -> Future[Addressed]:
        # Where a phase completes its last step with empty sequences, the next round begins later than was foreseen.
        key = (number, first if self._stream.planner.depends_on_first(number) else 0)
        if key not in self._planned:
            self._planned[key] = self._pool.submit(self._stream.plan_round, number, self._breathe, first)
        return self._planned[key]

    def _breathe(self) -> None:
        if self._closed.is_set():
            raise CancelledError
        if not self._wanted.is_set():
            time.sleep(_BREATH)


@dataclass(frozen=True)
class _Item:
    """Batches made at once; or the end, without any; or an error."""

    batches: list[dict[str, Any]]
    error: BaseException | None = None


class _Pipeline:
    """The threads behind one iterator.

    It knows nothing of the iterator, so that the iterator can be collected.
    """

    def __init__(self, stream: Stream, topology: Topology, cursor: Cursor, stride: Stride) -> None:
        self.stream = stream
        self.topology = topology
        self.stride = stride
        self.cursor = cursor
        self.skipped = delivered_of_step(cursor, stream, topology)
        self.rounds = PlannedRounds(stream)
        self.reader = FrameReader(stream.config.storage)
        self.buffers = FrameBuffers()
        self.addressed: dict[int, Addressed] = {}
        self.schedule = Schedule(stream.planner, stream.place(cursor), self._plan_of)
        self.ready: deque[_Item] = deque()
        self.room = Event()  # set when batches that were ready have been taken
        self.stopped = Event()
        self._asking = False
        self._left = 0.0  # when the consumer was last given something
        self._making = Lock()  # whoever holds it makes the next batches
        self._coming = self._batches()
        self._last: _Item | None = None

    def start(self) -> None:
        Thread(target=self._make_ahead, name="streampipe-assemble", daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()
        self.room.set()
        self.rounds.close()
        self.reader.close()

    def next(self) -> "_Item":
        """Return batches that are ready, or make some here and now."""
        self._asking = True
        try:
            while not self.ready:
                with self._making:
                    if not self.ready:
                        return self._make()
            item = self.ready.popleft()
            self.room.set()  # now, not before: who waits for it looks whether there is any
            return item
        finally:
            self._left = time.perf_counter()
            self._asking = False

    def _make_ahead(self) -> None:
        """Make batches while the consumer is busy with the last ones.

        A consumer that comes back at once makes its own: handing them over from thread to thread would take longer.
        """
        lead = _LEAD
        while not self.stopped.is_set() and self._last is None:
            if self._enough():
                self.room.wait()
                self.room.clear()
                continue
            time.sleep(lead)
            if self._asking or time.perf_counter() - self._left < _LEAD:
                lead = min(2 * lead, _LONGEST_LEAD)
                continue
            lead = _LEAD
            with self._making:
                if not self._enough():
                    self.ready.append(self._make())

    def _enough(self) -> bool:
        ready = tuple(self.ready)  # at once: the consumer takes from it
        return sum(len(item.batches) for item in ready) >= self.stream.config.loader.prefetch

    def _make(self) -> "_Item":
        """Make the next batches; the end and an error are made again and again."""
        if self._last is None:
            try:
                batches = next(self._coming, None)
            except BaseException as error:
                self._last = _Item([], error)
            else:
                if batches is not None:
                    return _Item(batches)
                self._last = _Item([])
        return self._last

    def _batches(self) -> Iterator[list[dict[str, Any]]]:
        coming: deque[_Job] = deque()
        jobs = self._jobs()
        while True:
            # Two more for each one that goes, so that running ahead never makes the next batch wait.
            for _ in range(2):
                if coming and (len(coming) == _JOBS_AHEAD or self.reader.full() or not self._advances_at_once()):
                    break
                if (coming_next := next(jobs, None)) is None:
                    break
                coming.append(coming_next)
            if not coming:
                return
            job = coming.popleft()
            try:
                _wait_for(job)
            except Exception:
                if self.stopped.is_set():
                    raise
                yield from self._one_by_one(job)
            else:
                yield micro_batches_of(self.stream, self.topology, job.share, job.numbers, self.buffers)
            self.reader.consumed(job.raw_bytes)

    def _one_by_one(self, job: _Job) -> Iterator[list[dict[str, Any]]]:
        """Make what a job can give although frames could not be read: up to the first micro batch that needs them."""
        share = job.share
        for number in job.numbers:
            first = 0
            for round_ in share.rounds:
                own = _of_round(share.frames_of(number, number + 1), first, len(round_.asked))
                missing = [frame for frame in own.tolist() if round_.views[frame] is None]
                round_.asked[missing] = False
                first += len(round_.asked)
            again = self._job(share, range(number, number + 1))
            _wait_for(again)
            yield micro_batches_of(self.stream, self.topology, share, again.numbers, self.buffers)
            self.reader.consumed(again.raw_bytes)

    def _plan_of(self, number: int, first: int) -> RoundPlan:
        self.addressed[number] = self.rounds.get(number, first)
        return self.addressed[number].plan

    def _advances_at_once(self) -> bool:
        """Return whether the next step needs no round that is still being planned."""
        place = self.schedule.place
        left = len(self.addressed[place.round].plan) - place.offset if place.round in self.addressed else 0
        return left >= self.stream.size_of_step(place) or self.rounds.ready(place.round + 1 if left else place.round)

    def _jobs(self) -> Iterator[_Job]:
        made = 0  # micro batches, those of other workers included
        while steps := self._next_steps():
            rounds = tuple(self.addressed[span.plan.round] for span in steps[0].spans)
            for past in [number for number in self.addressed if number < rounds[-1].plan.round]:
                del self.addressed[past]
            share, at_once = rank_steps(self.stream, self.topology, steps, rounds), self._at_once(steps[0].seq_length)
            require_within(self.skipped, share.micro_batches_of_step, steps[0].before.step)
            first = self.skipped
            while first < share.micro_batches:
                # Few at first, so that the first batch waits for its own frames alone.
                stop = min(first + at_once, first + max(1, made), share.micro_batches)
                if made % self.stride.workers == self.stride.worker:
                    yield self._job(share, range(first, stop))
                made += stop - first
                first = stop
            self.skipped = 0

    def _next_steps(self) -> list[StepPlan]:
        """Return the next step, with those behind it that can be cut out of the same round at once; [] at the end."""
        batch, place = self.stream.config.batch, self.schedule.place
        if batch.batch_by == "documents":
            return self.schedule.several(self.stream.size_of_step, 1)
        rows = self._at_once(self.schedule.seq_length()) * batch.micro_batch_size * self.topology.dp_size
        return self.schedule.several(self.stream.size_of_step, _CUT_AT_ONCE * rows // self.stream.size_of_step(place))

    def _at_once(self, seq_length: int) -> int:
        """Return how many micro batches are assembled at once."""
        return 1 if self.stride.workers > 1 else self.stream.micro_batches_at_once(seq_length)

    def _job(self, share: RankSteps, numbers: range) -> _Job:
        """Ask for the frames that nobody has asked for yet, source by source."""
        reads: list[Read] = []
        needed = share.frames_of(numbers.start, numbers.stop)
        raw_bytes = first = 0
        for round_ in share.rounds:
            own = _of_round(needed, first, len(round_.asked))
            if len(new := own[~round_.asked[own]]):
                raw_bytes += self._request(round_, np.unique(new), reads)
            first += len(round_.asked)
        return _Job(share, numbers, reads, raw_bytes)

    def _request(self, round_: Addressed, new: NDArray[np.int64], reads: list[Read]) -> int:
        table = round_.plan.frames
        round_.asked[new] = True
        by_source: dict[int, list[int]] = {}
        for frame in new.tolist():
            by_source.setdefault(int(table.source[frame]), []).append(frame)
        total = 0
        for source, members in by_source.items():
            keys = [(int(table.shard[frame]), int(table.frame[frame])) for frame in members]
            size = int(round_.raw_bytes[members].sum())
            opened = self.stream.sources[source]
            reads += self.reader.request(
                opened, keys, size, _placer(round_.views, members, opened.token_dtype, self.stream.stored_dtype)
            )
            total += size
        return total


def _wait_for(job: _Job) -> None:
    """Wait for the frames of a job; raises what went wrong."""
    for read in job.reads:
        read.result()


def _of_round(frames: NDArray[np.int64], first: int, count: int) -> NDArray[np.int64]:
    """Return those of some frames that lie in a round of `count`, whose first has the number `first`."""
    return frames[(frames >= first) & (frames < first + count)] - first


def _placer(
    views: list[Any], members: list[int], dtype: "np.dtype[Any]", stored: "np.dtype[Any]"
) -> Callable[[int, Any], None]:
    """Return what puts a decoded frame where it belongs, as a memoryview of ids in the stream's stored dtype."""

    def place(number: int, raw: Any) -> None:
        ids = np.frombuffer(raw, dtype)
        same = dtype.itemsize == stored.itemsize and dtype.isnative
        views[members[number]] = (ids.view(stored) if same else ids.astype(stored)).data

    return place


class MicroBatches:
    """An iterator over the micro batches of one rank, dicts of numpy arrays, in lists of those that were made at once.

    Threads start with the first `next`.
    """

    def __init__(self, stream: Stream, topology: Topology, cursor: Cursor, stride: Stride | None = None) -> None:
        self._pipeline = _Pipeline(stream, topology, cursor, stride or Stride())
        self._started = False
        self._error: BaseException | None = None
        self._ended = False
        self._finalizer = weakref.finalize(self, self._pipeline.stop)

    def __iter__(self) -> "MicroBatches":
        return self

    def __next__(self) -> list[dict[str, Any]]:
        if self._error is not None:
            raise self._error
        if self._ended:
            raise StopIteration
        if not self._started:
            self._pipeline.start()
            self._started = True
        item = self._pipeline.next()
        if item.batches:
            return item.batches
        self._finalizer()
        if item.error is None:
            self._ended = True
            raise StopIteration
        self._error = item.error
        raise item.error

    def close(self) -> None:
        """Stop the threads; nothing more comes."""
        self._ended = True
        self._finalizer()
