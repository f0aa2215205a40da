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
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any

from streampipe.cursor import Cursor
from streampipe.jobs import Job, Jobs, Stride
from streampipe.parallel import Topology
from streampipe.rank_steps import micro_batches_of
from streampipe.shards.buffers import FrameBuffers
from streampipe.shards.frame_reader import FrameReader
from streampipe.stream import Stream
from streampipe.threads import start_thread

# Batches are made ahead when the consumer has not come back for this long; while it comes back at once, whether it does
# is looked at less and less often, since each look takes the interpreter lock from it.
_LEAD, _LONGEST_LEAD = 0.002, 0.008
# Jobs whose frames are asked for before they are assembled; the budget of the reader usually ends it sooner.
_JOBS_AHEAD = 4096


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
        self.reader = FrameReader(stream.config.storage)
        self.jobs = Jobs(stream, topology, cursor, stride, self.reader)
        self.buffers = FrameBuffers()
        self.ready: deque[_Item] = deque()
        self.room = Event()  # set when batches that were ready have been taken
        self.stopped = Event()
        self._asking = False
        self._left = 0.0  # when the consumer was last given something
        self._making = Lock()  # whoever holds it makes the next batches
        self._coming = self._batches()
        self._last: _Item | None = None

    def start(self) -> None:
        start_thread(self._make_ahead, "streampipe-assemble", self.stop)

    def stop(self) -> None:
        self.stopped.set()
        self.room.set()
        self.jobs.close()
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
        coming: deque[Job] = deque()
        while True:
            # Two more for each one that goes, so that running ahead never makes the next batch wait.
            for _ in range(2):
                if coming and (len(coming) == _JOBS_AHEAD or self.reader.full() or not self.jobs.advance_at_once()):
                    break
                if (coming_next := next(self.jobs, None)) is None:
                    break
                coming.append(coming_next)
            if not coming:
                return
            job = coming.popleft()
            try:
                job.wait()
            except Exception:
                if self.stopped.is_set():
                    raise
                yield from self._one_by_one(job)
            else:
                yield micro_batches_of(self.stream, self.topology, job.share, job.numbers, self.buffers)
            self.reader.consumed(job.raw_bytes)

    def _one_by_one(self, job: Job) -> Iterator[list[dict[str, Any]]]:
        """Make what a job can give although frames could not be read: up to the first micro batch that needs them."""
        for number in job.numbers:
            again = self.jobs.again(job.share, number)
            again.wait()
            yield micro_batches_of(self.stream, self.topology, again.share, again.numbers, self.buffers)
            self.reader.consumed(again.raw_bytes)


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
