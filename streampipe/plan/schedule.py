"""Rounds cut into steps."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streampipe.errors import CursorMismatchError
from streampipe.plan.planner import Planner, require_progress
from streampipe.plan.round_plan import RoundPlan
from streampipe.plan.slices import dearest_first, share_of_rank, shares_of_ranks

COUNTED = ("tokens", "documents", "truncated_tokens", "dropped_documents", "dropped_tokens")


@dataclass(frozen=True)
class Span:
    """Sequences `[first, last)` of a round."""

    plan: RoundPlan
    first: int
    last: int


@dataclass(frozen=True)
class Place:
    """A step border: how far a stream has got.

    Attributes:
        round, offset: the next sequence is number `offset` of `round`.
        sequences: sequences of the run so far.
        step: steps so far.
        counts: int64 [sources, 5], planned so far of each source of the blend, in the order of `COUNTED`. What a round
            loses is counted with its first sequence.
        positions: of the sequences so far.
        skipped: stretches that were skipped: the step, and how many.
    """

    round: int
    offset: int
    sequences: int
    step: int
    counts: NDArray[np.int64]
    positions: int = 0
    skipped: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class StepPlan:
    """The sequences of one step over all ranks.

    Attributes:
        before, after: the step borders.
        spans: where the sequences lie, in canonical order; all of one `seq_length`.
        global_batch_size: sequences of the step; those beyond the spans are empty (the end of a finite run, or of a
            phase that is followed by another `seq_length`).
    """

    before: Place
    after: Place
    spans: tuple[Span, ...]
    global_batch_size: int

    @property
    def seq_length(self) -> int:
        """Positions of each sequence."""
        return self.spans[0].plan.seq_length

    @property
    def rounds(self) -> int:
        """How many rounds behind that of `before` the step takes sequences of, or would."""
        return self.spans[-1].plan.round - self.before.round

    def beyond(self) -> str:
        """Return a hash of what does not come from the round of `before`, empty sequences too; "" if all does."""
        own = [span for span in self.spans if span.plan.round == self.before.round]
        if sum(span.last - span.first for span in own) == self.global_batch_size:
            return ""
        found = hashlib.sha256()
        for span in self.spans[len(own) :]:
            start = span.plan.sequence_start[span.first : span.last + 1]
            pieces = span.plan.pieces.take(np.arange(start[0], start[-1]))
            frames = span.plan.frames.take(pieces.occurrence)
            source = np.unique(frames.source, return_inverse=True)[1]  # whatever others there are
            columns = [start - start[0], source, frames.epoch, frames.shard, frames.frame]
            columns += [pieces.document, pieces.start, pieces.length, pieces.slot]
            columns += [] if pieces.fim is None else [pieces.fim]
            for column in columns:
                found.update(column.astype("<i8").tobytes())
        return found.hexdigest()[:12]

    def costs_of_ranks(self, dp_size: int) -> NDArray[np.int64]:
        """Return what each rank's sequences cost, in the order of its micro batches: int64 [dp_size, rows]."""
        costs = self.costs_of_all()
        return costs[shares_of_ranks(self.columns(), costs, dp_size)]

    def costs(self) -> NDArray[np.int64]:
        """Return what each sequence of the spans costs: int64, in canonical order."""
        costs = [span.plan.cost[span.first : span.last] for span in self.spans]
        return costs[0] if len(costs) == 1 else np.concatenate(costs)

    def slots(self) -> NDArray[np.int64]:
        """Return how many positions the pieces of each sequence of the spans take: int64, in canonical order."""
        return np.concatenate([span.plan.slots[span.first : span.last] for span in self.spans])

    def columns(self) -> NDArray[np.int64]:
        """Return the column of each sequence: int64 [global_batch_size]."""
        columns = self.before.sequences + np.arange(self.global_batch_size)
        filled = 0
        for span in self.spans:
            rows = slice(filled, filled + span.last - span.first)
            columns[rows] %= span.plan.windows
            filled = rows.stop
        columns[filled:] %= self.spans[-1].plan.windows
        return columns

    def costs_of_all(self) -> NDArray[np.int64]:
        """Return the costs with those of the empty sequences behind the spans: int64 [global_batch_size]."""
        costs = self.costs()
        missing = self.global_batch_size - len(costs)
        return np.concatenate([costs, np.zeros(missing, np.int64)]) if missing else costs


def rows_of_rank(steps: Sequence[StepPlan], dp_size: int, dp_rank: int) -> NDArray[np.int64]:
    """Return which sequences of each step a rank gets, in the order of its micro batches: int64 [steps, rows].

    Args:
        steps: as `Schedule.several` gives them.
        dp_size: divides their size.
        dp_rank: the rank.
    """
    if len(steps) == 1:
        costs = steps[0].costs_of_all()[None]
    else:
        span = steps[0].spans[0]
        costs = span.plan.cost[span.first : steps[-1].spans[0].last].reshape(len(steps), -1)
    if dp_size == 1:  # columns decide nothing
        return dearest_first(costs)
    return share_of_rank(np.stack([step.columns() for step in steps]), costs, dp_size, dp_rank)


class Schedule:
    """Walks a stream step by step from a place.

    An iterator with state, not a generator: `place` is where the next step begins.

    Args:
        plan_round: gives the plan of a round, by its number and the sequences of the run before it; a caller may plan
            ahead behind it.
        planner: for the number of rounds, windows and sources.
        place: where to begin.
    """

    def __init__(
        self, planner: Planner, place: Place, plan_round: Callable[[int, int], RoundPlan] | None = None
    ) -> None:
        self.place = place
        self._planner = planner
        self._plan_round = plan_round or (lambda round_, first: planner.round(round_, first=first))
        self._round: RoundPlan | None = None

    def seq_length(self) -> int:
        """Return the positions of the next step's sequences."""
        return self._planner.layout(self.place.round).seq_length

    def next(self, global_batch_size: int) -> StepPlan | None:
        """Return the next step, or None at the end of a finite run."""
        before = self.place
        round_, offset, need = before.round, before.offset, global_batch_size
        counts = before.counts.copy()
        spans: list[Span] = []
        empty = 0
        first = before.sequences - offset  # sequences of the run before the round
        while need and (self._planner.rounds is None or round_ < self._planner.rounds):
            if spans and self._planner.layout(round_).seq_length != spans[0].plan.seq_length:
                first = before.sequences + global_batch_size
                break  # rows of one batch are equally long, so empty ones complete this one
            plan = self._planned(round_, first)
            _require_within(plan, offset)
            if offset == 0:
                counts[:, 2:] += plan.totals.lost()
            take = min(need, len(plan) - offset)
            if take > 0:
                spans.append(Span(plan, offset, offset + take))
                counts[:, 0] += plan.running.tokens[offset + take] - plan.running.tokens[offset]
                counts[:, 1] += plan.running.documents[offset + take] - plan.running.documents[offset]
                offset, need = offset + take, need - take
            empty = empty + 1 if len(plan) == 0 else 0
            require_progress(plan, empty)
            if offset >= len(plan):
                round_, offset, first = round_ + 1, 0, first + len(plan)
        if not spans:
            return None
        # At the end of a finite run no place is left that only rounds without a sequence follow: it would be an empty
        # epoch for whoever resumes there.
        while self._planner.rounds is not None and not offset and round_ < self._planner.rounds:
            plan = self._planned(round_, first)
            if len(plan):
                break
            counts[:, 2:] += plan.totals.lost()
            round_ += 1
        positions = before.positions + global_batch_size * spans[0].plan.seq_length
        sequences = before.sequences + global_batch_size
        self.place = Place(round_, offset, sequences, before.step + 1, counts, positions, before.skipped)
        return StepPlan(before, self.place, tuple(spans), global_batch_size)

    def several(self, size_of: Callable[[Place], int], most: int) -> list[StepPlan]:
        """Return the next step, and those behind it of the same size that are cut out of the same round; [] at the end.

        Args:
            size_of: says how many sequences the step has that begins at a place.
            most: how many steps at most.
        """
        size = size_of(self.place)
        if (step := self.next(size)) is None:
            return []
        steps, place, plan = [step], self.place, step.spans[-1].plan
        count = min(most - 1, (len(plan) - place.offset - 1) // size)  # none that ends the round
        if count < 1 or place.round != plan.round or step.spans[0].last - step.spans[0].first < size:
            return steps
        offsets = place.offset + size * np.arange(count + 1)
        counts = np.repeat(place.counts[None], count + 1, axis=0)
        for column, sums in enumerate((plan.running.tokens[offsets], plan.running.documents[offsets])):
            counts[:, :, column] += sums - sums[0]
        for number in range(1, count + 1):
            if size_of(place) != size:
                break
            offset, sequences = place.offset + size, place.sequences + size
            positions = place.positions + size * plan.seq_length
            after = Place(place.round, offset, sequences, place.step + 1, counts[number], positions, place.skipped)
            steps.append(StepPlan(place, after, (Span(plan, place.offset, offset),), size))
            self.place = place = after
        return steps

    def _planned(self, round_: int, first: int) -> RoundPlan:
        if self._round is None or self._round.round != round_:
            self._round = self._plan_round(round_, first)
        return self._round


def _require_within(plan: RoundPlan, offset: int) -> None:
    """Refuse a place behind the end of its round, which would skip what is left of the run's order.

    Raises:
        CursorMismatchError: saying how long the round is.
    """
    if offset and offset >= len(plan):
        raise CursorMismatchError(
            f"the cursor stands at sequence {offset} of round {plan.round}, but that round has {len(plan)}; the cursor "
            "is damaged; load a state that state_dict() gave",
            ("offset",),
        )
