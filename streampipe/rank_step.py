"""What one rank gets of one step: its pieces, micro batch after micro batch."""

from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.address import Addressed
from streampipe.assemble.batch import NO_MARKS, Paper, assemble
from streampipe.assemble.fim import transform
from streampipe.assemble.segments import Frames, Segments
from streampipe.cursor import Cursor
from streampipe.errors import CursorMismatchError
from streampipe.parallel import Topology
from streampipe.plan.documents import costs_of_packed, deal_sequences, pack_documents
from streampipe.plan.loss import TrainedSpans
from streampipe.plan.schedule import StepPlan
from streampipe.shards.buffers import FrameBuffers
from streampipe.stream import Stream


@dataclass(frozen=True)
class RankStep:
    """The pieces of a rank's share of a step, in the order of delivery.

    Attributes:
        step: the step over all ranks.
        sequence_ids: int64 [rows], the canonical number of each of the rank's sequences; where a step packs documents,
            that of its first document, and -1 for an empty one.
        segments: of all its micro batches; `row` counts over the share, `frame` over `views`.
        bounds: int64 [micro batches + 1], the first piece of each micro batch.
        rounds: the rounds that the step lies in; their frame tables stand one after the other.
        loss_tokens: trained tokens of the whole step over all ranks; at least 1.
        before, after: the cursors of the step's borders.
    """

    step: StepPlan
    sequence_ids: NDArray[np.int64]
    segments: Segments
    bounds: NDArray[np.int64]
    rounds: tuple[Addressed, ...]
    loss_tokens: int
    before: dict[str, Any]
    after: dict[str, Any]

    @property
    def micro_batches(self) -> int:
        """Micro batches of the share."""
        return len(self.bounds) - 1

    def frames_of(self, micro_batch: int) -> NDArray[np.int64]:
        """Return the frame of each piece of a micro batch, numbered over the frame tables of the rounds."""
        return self.segments.frame[self.bounds[micro_batch] : self.bounds[micro_batch + 1]]

    def views(self) -> list[Any]:
        """Return the decoded frames of the rounds, one after the other."""
        if len(self.rounds) == 1:
            return self.rounds[0].views
        return [view for round_ in self.rounds for view in round_.views]


def rank_step(stream: Stream, topology: Topology, step: StepPlan, rounds: tuple[Addressed, ...]) -> RankStep:
    """Cut a rank's share out of a step.

    Args:
        stream: the stream.
        topology: the rank.
        step: the step over all ranks.
        rounds: of the step's spans.
    """
    batch = stream.config.batch
    if batch.batch_by == "documents":
        taken = _packed_share(stream, topology, step)
    else:
        rows = step.rows_of_rank(topology.dp_size, topology.dp_rank)
        taken = _Taken(rows, np.arange(len(rows)), step.before.sequences + rows)
    segments = _joined(_parts(step, taken, rounds))
    borders = np.arange(0, len(taken.sequence_ids) + 1, batch.micro_batch_size)
    bounds = np.searchsorted(segments.row, borders)
    loss_tokens = sum(
        int(round_.trained_before[span.last] - round_.trained_before[span.first])
        for span, round_ in zip(step.spans, rounds, strict=True)
    )
    # A step of documents of one token trains nothing; divided by 1 its loss is 0, not NaN.
    before, after = (stream.cursor(place).to_dict() for place in (step.before, step.after))
    return RankStep(step, taken.sequence_ids, segments, bounds, rounds, max(1, loss_tokens), before, after)


@dataclass(frozen=True)
class _Taken:
    """What a rank takes of a step: R sequences made of K of the step's canonical ones (or of its documents).

    Attributes:
        number: int64 [K], which of the step.
        row: int64 [K], the rank's sequence that it lies in, ascending.
        sequence_ids: int64 [R].
    """

    number: NDArray[np.int64]
    row: NDArray[np.int64]
    sequence_ids: NDArray[np.int64]


def _packed_share(stream: Stream, topology: Topology, step: StepPlan) -> _Taken:
    """Pack the documents of a step and take a rank's sequences."""
    batch = stream.config.batch
    sequence = pack_documents(step.slots(), step.costs(), step.seq_length, batch.sequence_multiple)
    order = np.argsort(sequence, kind="stable")  # documents of a sequence stand in canonical order
    starts = np.searchsorted(sequence[order], np.arange(int(sequence.max()) + 2))
    costs = costs_of_packed(sequence, step.costs())
    dealt = deal_sequences(costs, topology.dp_size, batch.micro_batch_size)[topology.dp_rank]
    rows = np.flatnonzero(dealt >= 0)
    parts = [order[starts[n] : starts[n + 1]] for n in dealt[rows].tolist()]
    ids = np.full(len(dealt), -1)
    ids[rows] = step.before.sequences + order[starts[dealt[rows]]]
    number = np.concatenate([np.empty(0, np.int64), *parts])
    return _Taken(number, np.repeat(rows, [len(part) for part in parts]), ids)


def micro_batch_of(
    stream: Stream, topology: Topology, share: RankStep, number: int, buffers: FrameBuffers
) -> dict[str, Any]:
    """Assemble a micro batch of a share whose frames have been read, with the cursor of the place after it."""
    batch_config = stream.config.batch
    size, micro_batches = batch_config.micro_batch_size, share.micro_batches
    lo, hi = int(share.bounds[number]), int(share.bounds[number + 1])
    whole = share.segments
    columns: dict[str, Any] = {name: getattr(whole, name)[lo:hi] for name in whole.arrays()}
    columns["row"] = columns["row"] - number * size
    for name in ("trained", "fragments"):
        columns[name] = _of_pieces(getattr(whole, name), lo, hi)
    segments = Segments(**columns)
    views: Frames = share.views()
    marks = NO_MARKS
    if stream.fim_sources:
        multiple = lcm(*(stream.planner.layout(r.plan.round).packing.document_multiple for r in share.rounds))
        segments, views, marks = transform(
            segments, views, stream.fim_sources, multiple, aligned=batch_config.labels == "aligned"
        )
    paper = Paper(size, share.step.seq_length, stream.pad_id)
    batch = assemble(segments, views, paper, batch_config, buffers, marks)
    if stream.fim_sources:
        batch["fim"] = {stream.config.sources[n].name: vars(done) for n, done in sorted(marks.counts.items())}
    if stream.sources[0].members == 2:
        batch["pair_ids"] = batch["document_ids"]
    batch["sequence_ids"] = share.sequence_ids[number * size : (number + 1) * size].copy()
    batch["step_loss_tokens"] = share.loss_tokens
    batch["step"], batch["micro_batch"], batch["num_micro_batches"] = share.step.before.step, number, micro_batches
    if number + 1 == micro_batches:
        batch["cursor"] = share.after
    else:
        within = [number + 1, topology.dp_size, size, share.step.global_batch_size]
        batch["cursor"] = {**share.before, "within": within}
    return batch


def _parts(step: StepPlan, taken: _Taken, rounds: tuple[Addressed, ...]) -> list[Segments]:
    """Return the pieces of the rank's rows, round by round."""
    rows = taken.number
    parts: list[Segments] = []
    before = frames = 0  # rows of the step and frames of the tables in earlier rounds
    for span, round_ in zip(step.spans, rounds, strict=True):
        places = np.flatnonzero((rows >= before) & (rows < before + span.last - span.first))
        sequences = rows[places] - before + span.first
        starts, plan = span.plan.sequence_start, span.plan.pieces
        counts = starts[sequences + 1] - starts[sequences]
        # Sequences with 2 and 3 pieces that begin at 10 and 40 give 10, 11, 40, 41, 42.
        take = np.repeat(starts[sequences] - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        parts.append(
            Segments(
                row=np.repeat(taken.row[places], counts),
                frame=plan.occurrence[take] + frames,
                offset=round_.offset[take],
                length=plan.length[take],
                slot=plan.slot[take],
                goes_on=plan.goes_on[take],
                source=round_.source[take],
                epoch=round_.epoch[take],
                document=round_.document[take],
                trained=None if round_.trained is None else _flat(round_.trained.take(take)),
                fim=None if plan.fim is None else plan.fim[take],
                trained_count=None if plan.fim is None else round_.trained_count[take],
                fragments=None if plan.fragments is None else plan.fragments.take(take).table(),
            )
        )
        before += span.last - span.first
        frames += len(span.plan.frames)
    return parts


def _flat(spans: TrainedSpans) -> NDArray[np.int64]:
    piece = np.repeat(np.arange(len(spans.first) - 1), np.diff(spans.first))
    return np.column_stack([piece, spans.begin, spans.end])


def _joined(parts: list[Segments]) -> Segments:
    """Put the pieces of several rounds into the order of their rows."""
    if len(parts) == 1:
        return parts[0]
    row = np.concatenate([part.row for part in parts])
    order = np.argsort(row, kind="stable")
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])[order] for name in parts[0].arrays()
    }
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    shifts = np.cumsum([0, *(len(part) for part in parts)])
    for name in ("trained", "fragments"):
        columns[name] = _moved([getattr(part, name) for part in parts], shifts, place)
    return Segments(**columns)


def _of_pieces(table: NDArray[np.int64] | None, lo: int, hi: int) -> NDArray[np.int64] | None:
    """Return the rows of a table, each of which begins with its piece, of the pieces `[lo, hi)`, counted from 0."""
    if table is None:
        return None
    rows = table[slice(*np.searchsorted(table[:, 0], (lo, hi)))].copy()
    rows[:, 0] -= lo
    return rows


def _moved(
    tables: list[NDArray[np.int64] | None], shifts: NDArray[np.int64], place: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Join tables, each row of which begins with its piece, where the pieces of all now stand at `place`."""
    found = [table for table in tables if table is not None]
    if len(found) < len(tables):
        return None
    joined = np.concatenate(found)
    joined[:, 0] = place[joined[:, 0] + np.repeat(shifts[:-1], [len(table) for table in found])]
    return joined[np.argsort(joined[:, 0], kind="stable")]


def delivered_of_step(cursor: Cursor, stream: Stream, topology: Topology) -> int:
    """Return how many micro batches of the cursor's step have been delivered.

    Raises:
        CursorMismatchError: for a cursor inside a step that was cut otherwise, or behind the end of its step.
    """
    within = cursor.within
    if within is None:
        return 0
    batch = stream.config.batch
    now = {
        "dp_size": topology.dp_size,
        "micro_batch_size": batch.micro_batch_size,
        "global_batch_size": (size := stream.size_of_step(stream.place(cursor))),
    }
    if differing := tuple(name for name, value in now.items() if getattr(within, name) != value):
        listed = "; ".join(
            f"{name}: the cursor has {getattr(within, name)}, this stream {now[name]}" for name in differing
        )
        raise CursorMismatchError(
            f"the cursor stands inside step {cursor.step}, after {within.micro_batches} micro batches of each rank, "
            "and the step was cut otherwise: "
            f"{listed}; resume with the same sizes, or from a state that was taken at the end of a step",
            differing,
        )
    due = topology.check_batch(size, batch.micro_batch_size, batch.batch_by)
    if due is not None:  # else the step tells, once it is planned
        require_within(within.micro_batches, due, cursor.step)
    return within.micro_batches


def require_within(delivered: int, due: int, step: int) -> None:
    """Refuse a cursor that stands behind the end of its step.

    Raises:
        CursorMismatchError: saying how many micro batches the step has.
    """
    if delivered >= due:
        raise CursorMismatchError(
            f"the cursor says that {delivered} micro batches of step {step} have been delivered, but inside a step it "
            f"can be {due - 1} at most; the cursor is damaged; load a state that state_dict() gave",
            ("within",),
        )
