"""What one rank gets of steps: its pieces, micro batch after micro batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.address import Addressed
from streampipe.assemble.batch import NO_MARKS, Paper, assemble
from streampipe.assemble.fim import transform
from streampipe.assemble.fim_copies import counted
from streampipe.assemble.megatron_windows import transform_windows
from streampipe.assemble.segments import FRAME, Frames, Ground, joined, lay_out
from streampipe.parallel import Topology
from streampipe.plan.documents import costs_of_packed, deal_sequences, pack_documents
from streampipe.plan.schedule import StepPlan, rows_of_rank
from streampipe.shards.buffers import FrameBuffers
from streampipe.stream import Stream


@dataclass(frozen=True)
class RankSteps:
    """The pieces of a rank's share of consecutive steps, in the order of delivery.

    Attributes:
        steps: over all ranks; each is cut into as many micro batches as the others.
        sequence_ids: int64 [rows], the canonical number of each of the rank's sequences; where a step packs documents,
            that of its first document, and -1 for an empty one.
        ground: its sequences, one a row; frames are counted over `views`.
        micro_batch_size: rows of a micro batch.
        rounds: the rounds that the steps lie in; their frames stand one after the other.
        loss_tokens: trained tokens of each whole step over all ranks; at least 1.
        stream: tells cursors.
    """

    steps: Sequence[StepPlan]
    sequence_ids: NDArray[np.int64]
    ground: Ground
    micro_batch_size: int
    rounds: tuple[Addressed, ...]
    loss_tokens: list[int]
    stream: Stream

    @cached_property
    def before(self) -> list[dict[str, Any]]:
        """The cursor of each step's beginning."""
        return [self.stream.state(step.before) for step in self.steps]

    @cached_property
    def beyond(self) -> tuple[str, int]:
        """What the step takes of further rounds, and how many, as `StepPlan` tells; several steps take nothing."""
        return (self.steps[0].beyond(), self.steps[0].rounds) if len(self.steps) == 1 else ("", 0)

    @cached_property
    def micro_batches(self) -> int:
        """Micro batches of the share."""
        return len(self.sequence_ids) // self.micro_batch_size

    @cached_property
    def fim_counts(self) -> NDArray[np.int64]:
        """What is done to the pieces of each micro batch, where cuts are planned, as `counted` tells it."""
        return counted(self.ground.table, self.ground.first[:: self.micro_batch_size], self.stream.fim_sources)

    @property
    def micro_batches_of_step(self) -> int:
        """Micro batches of each step."""
        return self.micro_batches // len(self.steps)

    def frames_of(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the frame of each segment of the micro batches `[first, stop)`, numbered over those of the rounds."""
        begins, size = self.ground.first, self.micro_batch_size
        return self.ground.table[FRAME, begins[first * size] : begins[stop * size]]

    def views(self) -> list[Any]:
        """Return the decoded frames of the rounds, one after the other."""
        if len(self.rounds) == 1:
            return self.rounds[0].views
        return [view for round_ in self.rounds for view in round_.views]


def rank_steps(
    stream: Stream, topology: Topology, steps: Sequence[StepPlan], rounds: tuple[Addressed, ...]
) -> RankSteps:
    """Cut a rank's share out of consecutive steps.

    Args:
        stream: the stream.
        topology: the rank.
        steps: over all ranks; as `Schedule.several` gives them; one where steps pack documents.
        rounds: of the steps' spans.
    """
    batch = stream.config.batch
    if batch.batch_by == "documents":
        ground, sequence_ids = _packed_share(stream, topology, steps[0], rounds)
    else:
        rows = rows_of_rank(steps, topology.dp_size, topology.dp_rank)
        rows += steps[0].global_batch_size * np.arange(len(steps))[:, None]
        rows = rows.reshape(-1)
        ground, sequence_ids = _ground_of(steps, rounds, rows), steps[0].before.sequences + rows
    loss_tokens = _trained(steps, rounds)
    return RankSteps(steps, sequence_ids, ground, batch.micro_batch_size, rounds, loss_tokens, stream)


def _trained(steps: Sequence[StepPlan], rounds: tuple[Addressed, ...]) -> list[int]:
    """Count the trained tokens of each step; 1 for one of documents of one token: its loss is 0 then, not NaN."""
    if len(steps) > 1:
        first, last = steps[0].spans[0].first, steps[-1].spans[0].last
        total = np.diff(rounds[0].trained_before[first : last + 1 : steps[0].global_batch_size])
    else:
        pairs = zip(steps[0].spans, rounds, strict=True)
        total = np.array([sum(of.trained_before[span.last] - of.trained_before[span.first] for span, of in pairs)])
    trained: list[int] = np.maximum(total, 1).tolist()
    return trained


def _ground_of(steps: Sequence[StepPlan], rounds: tuple[Addressed, ...], rows: NDArray[np.int64]) -> Ground:
    """Return sequences of steps, in the order asked for; those behind the spans of a step are empty.

    Args:
        steps: several only if they lie in the same round.
        rounds: of the spans.
        rows: int64, which sequences, counted from the first of the first step.
    """
    last, empty = steps[-1].spans[-1], len(steps[-1].spans[-1].plan)
    if len(rounds) == 1:
        own = rows + steps[0].spans[0].first
        own[own >= last.last] = empty
        return rounds[0].ground.take(own)
    spans = steps[0].spans
    parts = [round_.ground.between(span.first, span.last) for span, round_ in zip(spans, rounds, strict=True)]
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
    pieces = _ground_of([step], rounds, documents).pieces()
    pieces = replace(pieces, row=row[pieces.row])
    return lay_out(pieces, len(dealt), step.seq_length, _pad_frame(rounds)), ids


def _pad_frame(rounds: tuple[Addressed, ...]) -> int:
    return len(rounds[0].views) - 1


def micro_batches_of(
    stream: Stream, topology: Topology, share: RankSteps, numbers: range, buffers: FrameBuffers
) -> list[dict[str, Any]]:
    """Assemble adjacent micro batches of a share whose frames have been read, each with the cursor of the place after.

    Args:
        stream: the stream.
        topology: the rank.
        share: of the rank.
        numbers: which; a single one where pieces are changed by their tokens.
        buffers: memory for them.
    """
    batch_config = stream.config.batch
    size, seq_length = share.micro_batch_size, share.steps[0].seq_length
    ground = share.ground.between(numbers.start * size, numbers.stop * size)
    views: Frames = share.views()
    marks = NO_MARKS
    counts: Sequence[list[list[int]] | None] = [None] * len(numbers)
    if ground.copies is not None:
        counts = share.fim_counts[numbers.start : numbers.stop].tolist()
    elif stream.fim_sources or stream.fim_windows is not None:
        pieces = ground.pieces()
        if stream.fim_windows is not None:
            pieces, views, marks = transform_windows(pieces, views, stream.fim_windows)
        else:
            multiple = lcm(*(stream.planner.layout(r.plan.round).packing.document_multiple for r in share.rounds))
            aligned = batch_config.labels == "aligned"
            pieces, views, marks = transform(pieces, views, stream.fim_sources, multiple, aligned=aligned)
        one_per_row = batch_config.layout == "sbhd"
        ground = lay_out(pieces, size * len(numbers), seq_length, _pad_frame(share.rounds), one_per_row=one_per_row)
        counts = [[[*vars(marks.counts[number]).values()] for number in stream.fim_names]]
    paper = Paper(len(numbers), size, seq_length, stream.pad_id)
    batches = assemble(ground, views, paper, batch_config, buffers, marks)
    for number, batch, done in zip(numbers, batches, counts, strict=True):
        if done is not None:
            batch["fim_counts"] = done
        if stream.sources[0].members == 2:
            batch["pair_ids"] = batch["document_ids"]
        batch["sequence_ids"] = share.sequence_ids[number * size : (number + 1) * size].copy()
        _place(batch, topology, share, *divmod(number, share.micro_batches_of_step))
    return batches


def _place(batch: dict[str, Any], topology: Topology, share: RankSteps, step: int, number: int) -> None:
    """Tell a micro batch which one of which step it is, and the cursor of the place after it."""
    plan, micro_batches = share.steps[step], share.micro_batches_of_step
    batch["step_loss_tokens"] = share.loss_tokens[step]
    batch["step"], batch["micro_batch"], batch["num_micro_batches"] = plan.before.step, number, micro_batches
    if number + 1 == micro_batches:
        batch["cursor"] = share.stream.state(plan.after)
    else:
        cut_by = (topology.dp_size, share.micro_batch_size, plan.global_batch_size)
        within = [number + 1, *cut_by, *share.beyond]
        batch["cursor"] = {**share.before[step], "within": within}
