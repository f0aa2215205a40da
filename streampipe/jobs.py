"""What is to be assembled next, with its frames asked for: plan, schedule and reader brought together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.address import Addressed
from streampipe.cursor import Cursor
from streampipe.parallel import Topology
from streampipe.plan.round_plan import RoundPlan
from streampipe.plan.schedule import Schedule, StepPlan
from streampipe.planned_rounds import PlannedRounds
from streampipe.rank_steps import RankSteps, rank_steps
from streampipe.shards.frame_reader import FrameReader, Read
from streampipe.stream import Stream
from streampipe.within import delivered_of_step, require_in_step

# Small steps are cut out of their round together, this many times what is assembled at once.
_CUT_AT_ONCE = 4


@dataclass(frozen=True)
class Stride:
    """Every `workers`-th micro batch, from number `worker` on: what one of several worker processes makes."""

    worker: int = 0
    workers: int = 1


@dataclass(frozen=True)
class Job:
    """Micro batches to assemble: numbers of a share."""

    share: RankSteps
    numbers: range
    reads: list[Read]
    raw_bytes: int

    def wait(self) -> None:
        """Wait for its frames; raises what went wrong."""
        for read in self.reads:
            read.result()


class Jobs(Iterator[Job]):
    """The jobs of one rank from a cursor on.

    Args:
        stream: the stream.
        topology: the rank.
        cursor: where to begin.
        stride: which micro batches.
        reader: whom frames are asked of.
    """

    def __init__(self, stream: Stream, topology: Topology, cursor: Cursor, stride: Stride, reader: FrameReader) -> None:
        self._stream = stream
        self._topology = topology
        self._stride = stride
        self._skipped = delivered_of_step(cursor, stream, topology)
        self._rounds = PlannedRounds(stream)
        self._reader = reader
        self._addressed: dict[int, Addressed] = {}
        self._schedule = Schedule(stream.planner, stream.place(cursor), self._plan_of)
        self._all = self._jobs()

    def __next__(self) -> Job:
        return next(self._all)

    def advance_at_once(self) -> bool:
        """Return whether the next needs no round that is still being planned."""
        place = self._schedule.place
        left = len(self._addressed[place.round].plan) - place.offset if place.round in self._addressed else 0
        return left >= self._stream.size_of_step(place) or self._rounds.ready(place.round + 1 if left else place.round)

    def again(self, share: RankSteps, number: int) -> Job:
        """Return the job of one micro batch, for which frames that are not there are asked for once more."""
        first = 0
        for round_ in share.rounds:
            own = _of_round(share.frames_of(number, number + 1), first, len(round_.asked))
            missing = [frame for frame in own.tolist() if round_.views[frame] is None]
            round_.asked[missing] = False
            first += len(round_.asked)
        return self._job(share, range(number, number + 1))

    def close(self) -> None:
        """Plan no more."""
        self._rounds.close()

    def _plan_of(self, number: int, first: int) -> RoundPlan:
        self._addressed[number] = self._rounds.get(number, first)
        return self._addressed[number].plan

    def _jobs(self) -> Iterator[Job]:
        made = 0  # micro batches, those of other workers included
        while steps := self._next_steps():
            rounds = tuple(self._addressed[span.plan.round] for span in steps[0].spans)
            for past in [number for number in self._addressed if number < rounds[-1].plan.round]:
                del self._addressed[past]
            share, at_once = rank_steps(self._stream, self._topology, steps, rounds), self._at_once(steps[0].seq_length)
            require_in_step(self._skipped, share.micro_batches_of_step, steps[0].before.step)
            first = self._skipped
            while first < share.micro_batches:
                # Few at first, so that the first batch waits for its own frames alone.
                stop = min(first + at_once, first + max(1, made), share.micro_batches)
                if made % self._stride.workers == self._stride.worker:
                    yield self._job(share, range(first, stop))
                made += stop - first
                first = stop
            self._skipped = 0

    def _next_steps(self) -> list[StepPlan]:
        """Return the next step, with those behind it that can be cut out of the same round at once; [] at the end."""
        batch, size_of = self._stream.config.batch, self._stream.size_of_step
        if batch.batch_by == "documents":
            return self._schedule.several(size_of, 1)
        rows = self._at_once(self._schedule.seq_length()) * batch.micro_batch_size * self._topology.dp_size
        return self._schedule.several(size_of, _CUT_AT_ONCE * rows // size_of(self._schedule.place))

    def _at_once(self, seq_length: int) -> int:
        """Return how many micro batches are assembled at once."""
        return 1 if self._stride.workers > 1 else self._stream.micro_batches_at_once(seq_length)

    def _job(self, share: RankSteps, numbers: range) -> Job:
        """Ask for the frames that nobody has asked for yet, source by source."""
        reads: list[Read] = []
        needed = share.frames_of(numbers.start, numbers.stop)
        raw_bytes = first = 0
        for round_ in share.rounds:
            own = _of_round(needed, first, len(round_.asked))
            if len(new := own[~round_.asked[own]]):
                raw_bytes += self._request(round_, np.unique(new), reads)
            first += len(round_.asked)
        return Job(share, numbers, reads, raw_bytes)

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
            opened = self._stream.sources[source]
            reads += self._reader.request(
                opened, keys, size, _placer(round_.views, members, opened.token_dtype, self._stream.stored_dtype)
            )
            total += size
        return total


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
