"""What one rank gets of one step: its pieces, micro batch after micro batch."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.address import Addressed
from streampipe.assemble.batch import NO_MARKS, Paper, assemble
from streampipe.assemble.fim import Marks, transform
from streampipe.assemble.fim_copies import counted
from streampipe.assemble.megatron_windows import transform_windows
from streampipe.assemble.segments import FRAME, Frames, Ground, joined, lay_out
from streampipe.cursor import Cursor
from streampipe.errors import CursorMismatchError
from streampipe.parallel import Topology
from streampipe.plan.documents import costs_of_packed, deal_sequences, pack_documents
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
        ground: its sequences, one a row; frames are counted over `views`.
        micro_batch_size: rows of a micro batch.
        rounds: the rounds that the step lies in; their frames stand one after the other.
        loss_tokens: trained tokens of the whole step over all ranks; at least 1.
        stream: tells cursors.
    """

    step: StepPlan
    sequence_ids: NDArray[np.int64]
    ground: Ground
    micro_batch_size: int
    rounds: tuple[Addressed, ...]
    loss_tokens: int
    stream: Stream

    @cached_property
    def before(self) -> dict[str, Any]:
        """The cursor of the step's beginning."""
        return self.stream.cursor(self.step.before).to_dict()

    @property
    def micro_batches(self) -> int:
        """Micro batches of the share."""
        return len(self.sequence_ids) // self.micro_batch_size

    def frames_of(self, micro_batch: int) -> NDArray[np.int64]:
        """Return the frame of each segment of a micro batch, numbered over those of the rounds."""
        first, size = self.ground.first, self.micro_batch_size
        return self.ground.table[FRAME, first[micro_batch * size] : first[(micro_batch + 1) * size]]

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
        ground, sequence_ids = _packed_share(stream, topology, step, rounds)
    else:
        rows = step.rows_of_rank(topology.dp_size, topology.dp_rank)
        ground, sequence_ids = _ground_of(step, rounds, rows), step.before.sequences + rows
    loss_tokens = sum(
        int(round_.trained_before[span.last] - round_.trained_before[span.first])
        for span, round_ in zip(step.spans, rounds, strict=True)
    )
    # A step of documents of one token trains nothing; divided by 1 its loss is 0, not NaN.
    return RankStep(step, sequence_ids, ground, batch.micro_batch_size, rounds, max(1, loss_tokens), stream)


def _ground_of(step: StepPlan, rounds: tuple[Addressed, ...], rows: NDArray[np.int64]) -> Ground:
    """Return sequences of a step, in the order asked for; those behind its spans are empty."""
    last, empty = step.spans[-1], len(step.spans[-1].plan)
    if len(step.spans) == 1:
        own = rows + last.first
        own[own >= last.last] = empty
        return rounds[0].ground.take(own)
    parts = [round_.ground.between(span.first, span.last) for span, round_ in zip(step.spans, rounds, strict=True)]
    shifts = np.cumsum([0, *(len(round_.views) for round_ in rounds[:-1])]).tolist()
    whole = joined([*parts, rounds[-1].ground.between(empty, empty + 1)], [*shifts, shifts[-1]])
    return whole.take(np.minimum(rows, len(whole.first) - 2))


def _packed_share(
    stream: Stream, topology: Topology, step: StepPlan, rounds: tuple[Addressed, ...]
) -> tuple[Ground, NDArray[np.int64]]:
    """Pack the documents of a step; return a rank's sequences and their ids."""
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
    documents = np.concatenate([np.empty(0, np.int64), *parts])
    row = np.repeat(rows, [len(part) for part in parts])
    pieces = _ground_of(step, rounds, documents).pieces()
    pieces = replace(pieces, row=row[pieces.row])
    return lay_out(pieces, len(dealt), step.seq_length, _pad_frame(rounds)), ids


def _pad_frame(rounds: tuple[Addressed, ...]) -> int:
    return len(rounds[0].views) - 1


def micro_batch_of(
    stream: Stream, topology: Topology, share: RankStep, number: int, buffers: FrameBuffers
) -> dict[str, Any]:
    """Assemble a micro batch of a share whose frames have been read, with the cursor of the place after it."""
    batch_config = stream.config.batch
    size, micro_batches, seq_length = share.micro_batch_size, share.micro_batches, share.step.seq_length
    ground = share.ground.between(number * size, (number + 1) * size)
    views: Frames = share.views()
    marks = NO_MARKS
    if ground.copies is not None:
        marks = Marks(counts=counted(ground.table, stream.fim_sources))
    elif stream.fim_sources or stream.fim_windows is not None:
        pieces = ground.pieces()
        if stream.fim_windows is not None:
            pieces, views, marks = transform_windows(pieces, views, stream.fim_windows)
        else:
            multiple = lcm(*(stream.planner.layout(r.plan.round).packing.document_multiple for r in share.rounds))
            aligned = batch_config.labels == "aligned"
            pieces, views, marks = transform(pieces, views, stream.fim_sources, multiple, aligned=aligned)
        one_per_row = batch_config.layout == "sbhd"
        ground = lay_out(pieces, size, seq_length, _pad_frame(share.rounds), one_per_row=one_per_row)
    batch = assemble(ground, views, Paper(size, seq_length, stream.pad_id), batch_config, buffers, marks)
    if marks.counts:
        batch["fim"] = {stream.config.sources[n].name: vars(done) for n, done in sorted(marks.counts.items())}
    if stream.sources[0].members == 2:
        batch["pair_ids"] = batch["document_ids"]
    batch["sequence_ids"] = share.sequence_ids[number * size : (number + 1) * size].copy()
    batch["step_loss_tokens"] = share.loss_tokens
    batch["step"], batch["micro_batch"], batch["num_micro_batches"] = share.step.before.step, number, micro_batches
    if number + 1 == micro_batches:
        batch["cursor"] = stream.cursor(share.step.after).to_dict()
    else:
        within = [number + 1, topology.dp_size, size, share.step.global_batch_size]
        batch["cursor"] = {**share.before, "within": within}
    return batch


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
