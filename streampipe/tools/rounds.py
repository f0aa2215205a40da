"""Rounds planned ahead over all cores, for what walks a run without reading a token."""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from streampipe.config import StreamConfig
from streampipe.cursor import Cursor
from streampipe.mock import MockSource
from streampipe.plan.documents import costs_of_packed, deal_sequences, pack_documents
from streampipe.plan.planner import Planner
from streampipe.plan.round_plan import RoundPlan
from streampipe.stream import Stream, open_stream


@dataclass(frozen=True)
class RoundStats:
    """What a round costs to read.

    Attributes:
        plan: of the round, without its frames and pieces.
        documents, pieces: how many.
        split: documents that lie in several sequences.
        frames: how many it takes; reads: how often ranks read one.
        stored_bytes: that ranks read from storage, compressed.
    """

    plan: RoundPlan
    documents: int
    pieces: int
    split: int
    frames: int
    reads: int
    stored_bytes: int


class Rounds:
    """Round after round, planned in worker processes. A context manager.

    A round whose plan depends on where in the run it begins (`plan.balance: cost`) is planned here, when that is known.

    Args:
        config: the stream.
        cursor: where to begin.
        dp_size: ranks that read.
        processes: 1 plans in this process; None takes a process for each core.
    """

    def __init__(self, config: StreamConfig, cursor: Cursor, dp_size: int = 1, processes: int | None = None) -> None:
        self._config = config
        self._cursor = cursor
        self._dp_size = dp_size
        self._processes = processes if processes is not None else os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None
        self._ahead: deque[Future[RoundStats]] = deque()
        self._stream: Stream | None = None
        self._next = cursor.round

    def __enter__(self) -> "Rounds":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def plan(self, planner: Planner, number: int, first: int) -> RoundStats:
        """Return the next round; `first` is the sequences of the run before it.

        Raises:
            RuntimeError: when it is not the one after the round before.
        """
        if number != self._next:
            raise RuntimeError(f"round {number} was asked for out of order; report this as a bug")
        self._next += 1
        if self._processes == 1 or planner.depends_on_first(number):
            if self._stream is None:
                self._stream = open_stream(self._config).resumed(self._cursor)
            return _stats(self._stream, number, first, self._dp_size)
        if self._pool is None:
            arguments = (self._config, self._cursor, self._dp_size)
            self._pool = ProcessPoolExecutor(self._processes, get_context("spawn"), _open, arguments)
        while len(self._ahead) < 2 * self._processes:
            following = number + len(self._ahead)
            if (planner.rounds is not None and following >= planner.rounds) or planner.depends_on_first(following):
                break
            self._ahead.append(self._pool.submit(_plan, following))
        return self._ahead.popleft().result()


_opened: dict[str, Any] = {}


def _open(config: StreamConfig, cursor: Cursor, dp_size: int) -> None:
    _opened.update(stream=open_stream(config).resumed(cursor), dp_size=dp_size)


def _plan(number: int) -> RoundStats:
    return _stats(_opened["stream"], number, 0, _opened["dp_size"])


def _stats(stream: Stream, number: int, first: int, dp_size: int) -> RoundStats:
    plan = stream.planner.round(number, first=first)
    rank = _ranks(stream, plan, dp_size)
    reader = np.repeat(rank, np.diff(plan.sequence_start))
    pairs = np.unique(reader * max(1, len(plan.frames)) + plan.pieces.occurrence)
    stored = _stored_bytes(stream, plan)[pairs % max(1, len(plan.frames))].sum()
    begun = plan.pieces.begun()
    nothing = np.empty(0, np.int64)
    thin = replace(plan, frames=plan.frames.take(nothing), pieces=plan.pieces.take(nothing))
    split = int((begun & plan.pieces.goes_on).sum())
    return RoundStats(thin, int(begun.sum()), len(plan.pieces), split, len(plan.frames), len(pairs), int(stored))


def _ranks(stream: Stream, plan: RoundPlan, dp_size: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return which rank reads each sequence of a round, or document, as if a step began with it."""
    batch, size = stream.config.batch, stream.step_size.at(0, 0, plan.seq_length)
    ranks = np.empty(-(-len(plan) // size) * size, np.int64)
    for first in range(0, len(plan), size):
        if batch.batch_by == "documents":
            slots, costs = plan.slots[first : first + size], plan.cost[first : first + size]
            sequence = pack_documents(slots, costs, plan.seq_length, batch.sequence_multiple)
            dealt = deal_sequences(costs_of_packed(sequence, costs), dp_size, batch.micro_batch_size)
            rank_of = np.empty(int(sequence.max()) + 2, np.int64)  # -1, an empty one, is the last
            rank_of[dealt] = np.arange(dp_size)[:, None]
            ranks[first : first + len(sequence)] = rank_of[sequence]
        else:
            order = np.argsort((first + np.arange(size)) % plan.windows, kind="stable")
            ranks[first + order] = np.arange(size) * dp_size // size
    return ranks[: len(plan)]


def _stored_bytes(stream: Stream, plan: RoundPlan) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return the compressed size of each frame of a round; of mock frames the size of their tokens."""
    frames = plan.frames
    sizes = np.empty(len(frames), np.int64)
    for row, (source, shard, frame) in enumerate(
        zip(frames.source.tolist(), frames.shard.tolist(), frames.frame.tolist(), strict=True)
    ):
        opened = stream.sources[source]
        index = opened.index(shard)
        sizes[row] = (index.raw_bytes if isinstance(opened, MockSource) else index.compressed_bytes)[frame]
    return sizes


def in_order(rounds: Rounds, planner: Planner, met: Callable[[RoundStats], None]) -> Callable[[int, int], RoundPlan]:
    """Return what gives a schedule its rounds, one after the other; `met` sees each."""

    def plan_round(number: int, first: int) -> RoundPlan:
        stats = rounds.plan(planner, number, first)
        met(stats)
        return stats.plan

    return plan_round
