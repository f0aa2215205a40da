"""Composes the plan: round in, sequences in canonical order out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from streampipe.errors import StreampipeError
from streampipe.plan.balance import Rows, balanced_order, deal_pieces
from streampipe.plan.blend import Blend
from streampipe.plan.epoch_order import SourceAxis
from streampipe.plan.fim import FimPlan, Line, with_choices
from streampipe.plan.fim_windows import as_windows
from streampipe.plan.packing import Packed, pack
from streampipe.plan.pieces import Lost, PackingConfig, cut_documents, cut_pairs, unfold_pairs
from streampipe.plan.round_plan import (
    COST_OF_A_TOKEN,
    FrameTable,
    RoundPlan,
    SourceTotals,
    cost_of_sequences,
    running_sums,
    sums_before,
)
from streampipe.plan.separators import separators_of
from streampipe.plan.sequence_order import canonical_order, level_columns, move_to_end
from streampipe.plan.windows import deal_frames
from streampipe.rng import keyed_permutation


@dataclass(frozen=True)
class Layout:
    """The canonical numbers that shape the rounds of a phase.

    Attributes:
        seq_length: positions of a sequence.
        windows: columns of a round.
        packing: how documents become sequences, with `overlong` resolved.
        shuffled: whether sequences stand in random order within their column.
        cost_of_token: what a token costs beside its attention, in token pairs.
        even_rows: over how many rows shares are kept even when sequences are ordered by cost; None for random order.
        fim: of each source of the blend, None for one without; empty where none has any.
        fim_windows: whether fill-in-the-middle takes whole sequences, as Megatron's does.
    """

    seq_length: int
    windows: int
    packing: PackingConfig
    shuffled: bool = True
    cost_of_token: int = COST_OF_A_TOKEN
    even_rows: int | None = None
    fim: tuple[FimPlan | None, ...] = ()
    fim_windows: bool = False


def _hold_breath() -> None:
    """Go on at once."""


class Planner:
    """Plans rounds. Pure: the same round gives the same plan, on every rank, at any time, in any thread.

    Args:
        axes: the sources in the order of the blend.
        blend: where each axis stands at each round.
        layouts: of the blend's phases.
        seed: of the run.
        members: token members of a document: 1, or 2 where documents are pairs.
    """

    def __init__(
        self, axes: Sequence[SourceAxis], blend: Blend, layouts: Sequence[Layout], seed: int, members: int = 1
    ) -> None:
        self.axes = tuple(axes)
        self.blend = blend
        self.layouts = tuple(layouts)
        self.members = members
        self._seed = seed
        self._has_fim = any(plan is not None for layout in layouts for plan in layout.fim)
        # Of each source, whether its documents are split: as long as the blend in layouts with fill-in-the-middle.
        split = [[plan is not None and plan.fragment_rate is not None for plan in layout.fim] for layout in layouts]
        self._split = [any(of_layouts) for of_layouts in zip(*split, strict=True)]
        self._latest: tuple[int, int, RoundPlan] | None = None  # whoever asks for the same again gets the same plan
        self._one_at_a_time = Lock()

    @property
    def rounds(self) -> int | None:
        """Rounds of a finite run; None for an endless one."""
        return self.blend.rounds

    def layout(self, number: int) -> Layout:
        """Return what shapes a round."""
        return self.layouts[self.blend.segment(number).phase]

    def depends_on_first(self, number: int) -> bool:
        """Return whether the plan of a round depends on where in the run it begins."""
        return self.layout(number).even_rows is not None

    def round(self, number: int, breathe: Callable[[], None] = _hold_breath, first: int = 0) -> RoundPlan:
        """Plan a round.

        Args:
            number: from 0; an endless run has a plan for every number.
            first: sequences of the run before it. With `balance: cost` its rows are aligned to those of the run; which
                sequences it holds, and all else, does not depend on it.
            breathe: called between slices of about a millisecond, so that a caller can let other threads run.

        Raises:
            DocumentTooLongError: with `overlong: error`.
            SourceError: from the index of a shard.
        """
        with self._one_at_a_time:
            first = first if self.depends_on_first(number) else 0
            if self._latest is None or self._latest[:2] != (number, first):
                self._latest = (number, first, self._plan(number, first, breathe))
            return self._latest[2]

    def _plan(self, number: int, first: int, breathe: Callable[[], None]) -> RoundPlan:
        layout = self.layout(number)
        frames, lengths, documents = self._line(number, layout)
        breathe()
        if self.members == 1:
            kept = None
            pieces, lost = cut_documents(lengths.reshape(-1), documents, layout.seq_length, layout.packing)
            if self._has_fim:
                names, separators = [axis.name for axis in self.axes], None
                if any(self._split):
                    separators = separators_of(frames, documents, self.axes, self._split)
                line = Line(frames, documents, lengths.reshape(-1), names, self._seed, separators)
                pieces = with_choices(pieces, line, layout.fim, layout.seq_length, layout.packing)
                breathe()
        else:
            pieces, kept, lost = cut_pairs(lengths, documents, layout.seq_length, layout.packing)
        if layout.even_rows is not None:
            sizes = np.ones(len(pieces), np.int64) if layout.packing.policy == "none" else pieces.slot
            rows = deal_pieces(pieces, sizes, layout.seq_length, layout.windows)
            pieces, kept = pieces.take(rows), None if kept is None else kept[rows]
        packed = pack(layout.packing.policy, pieces, layout.seq_length, layout.windows, breathe)
        if layout.fim_windows:
            packed = as_windows(packed, self._seed, number)
        breathe()
        of_members = packed.pieces.slot[:, None]
        if kept is not None:
            of_members = unfold_pairs(packed.pieces, kept, layout.packing).slot.reshape(-1, 2)
        place = self._places(number, first, packed, of_members)
        if layout.packing.policy == "concat" and len(place):
            place = move_to_end(place, len(place) - 1)  # the only one that may hold padding
        sequence = place[packed.sequence]
        # Pieces of a sequence stand in line order: canonical, not by length.
        rows = np.argsort(sequence, kind="stable")
        start = np.searchsorted(sequence[rows], np.arange(len(place) + 1))
        totals = self._totals(frames, lengths, documents, lost)
        pieces = packed.pieces.take(rows)
        if kept is not None:
            pieces, start = unfold_pairs(pieces, kept[rows], layout.packing), 2 * start
        running = running_sums(frames.source[pieces.occurrence], len(self.axes), pieces, start)
        cost = cost_of_sequences(pieces.slot, start, layout.cost_of_token)
        slots = np.diff(sums_before(pieces.slot, start))
        shape = (number, layout.seq_length, layout.windows)
        return RoundPlan(*shape, frames, pieces, start, totals, running, cost, slots)

    def _places(self, number: int, first: int, packed: Packed, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of each sequence in the round: int64 [N]; `slots` are those of each piece's members."""
        layout = self.layout(number)
        column = level_columns(packed.window, layout.windows)
        if layout.even_rows is None:
            return canonical_order(column, layout.windows, self._seed, "sequences", number, shuffled=layout.shuffled)
        # bincount sums in float64, exact below 2^53: for sequences of 64 million positions.
        of_piece = (slots * (slots + layout.cost_of_token)).sum(axis=1).astype(np.float64)
        cost = np.bincount(packed.sequence, of_piece, len(column)).astype(np.int64)
        return balanced_order(column, cost, Rows(layout.windows, first, layout.even_rows), self._seed, number)

    def _line(self, number: int, layout: Layout) -> tuple[FrameTable, NDArray[np.int64], NDArray[np.int64]]:
        """Lay the frames of a round end to end, window after window.

        Returns:
            the frames, tokens of all documents by member (int64 [documents, members]), documents of each frame.
        """
        begin, end = self.blend.positions(number), self.blend.positions(number + 1)
        runs = [axis.frames_between(b, e) for axis, b, e in zip(self.axes, begin, end, strict=True)]
        table = FrameTable(
            np.repeat(np.arange(len(runs)), [len(run.frame) for run in runs]),
            *(np.concatenate([getattr(run, field) for run in runs]) for field in ("epoch", "shard", "frame")),
        )
        lengths = [self._lengths_of(table, row) for row in range(len(table))]
        sizes = np.array([_size(part, layout) for part in lengths], np.int64)
        # With `balance: cost` pieces are dealt, when they are known.
        balanced = layout.even_rows is not None
        window = np.zeros(len(table), np.int64) if balanced else deal_frames(sizes, layout.windows)
        order = np.argsort(window, kind="stable")
        if layout.shuffled:
            # Frames stand at random inside their window, so that no source always comes first in a sequence.
            order = keyed_permutation(len(table), self._seed, "windows", number)
            order = order[np.argsort(window[order], kind="stable")]
        lengths = [lengths[row] for row in order.tolist()]
        documents = np.array([len(part) for part in lengths], np.int64)
        nothing = np.empty((0, self.members), np.int64)
        return table.take(order), np.concatenate([*lengths, nothing]).astype(np.int64), documents

    def _lengths_of(self, table: FrameTable, row: int) -> NDArray[np.int32]:
        axis, shard, frame = self.axes[int(table.source[row])], int(table.shard[row]), int(table.frame[row])
        index = axis.lengths.index(shard)
        by_document = index.lengths.reshape(-1, self.members)
        return by_document[index.first_document[frame] : index.first_document[frame + 1]]

    def _totals(
        self, frames: FrameTable, lengths: NDArray[np.int64], documents: NDArray[np.int64], lost: Lost
    ) -> SourceTotals:
        before = np.concatenate([[0], np.cumsum(lengths.sum(axis=1))])
        per_frame = np.diff(before[np.concatenate([[0], np.cumsum(documents)])])
        amounts = (per_frame, lost.truncated_tokens, lost.dropped_documents, lost.dropped_tokens)
        return SourceTotals(
            *(np.bincount(frames.source, weights=a, minlength=len(self.axes)).astype(np.int64) for a in amounts)
        )


def _size(lengths: NDArray[np.int32], layout: Layout) -> int:
    """What a frame counts for when windows are made alike."""
    return len(lengths) if layout.packing.policy == "none" else int(lengths.sum(dtype=np.int64))


def require_progress(plan: RoundPlan, empty_rounds: int) -> None:
    """Refuse to spin: many rounds in a row without a sequence mean that nothing is left to train on.

    Raises:
        StreampipeError: after a thousand empty rounds.
    """
    if empty_rounds >= 1000:
        raise StreampipeError(
            f"{empty_rounds} rounds up to round {plan.round} gave no sequence at all: every document was dropped as "
            f"overlong; choose packing.overlong: split or truncate, or a longer seq_length"
        )
