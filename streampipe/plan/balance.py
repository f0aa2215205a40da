"""Sequences ordered by cost, so that ranks finish together, without a source being bunched in time.

A row of the rectangle holds one sequence of each window. Every window gives a row its sequence of the same cost rank,
so a row holds like costs, whoever reads which window. Rows follow a keyed van der Corput order of cost rank: of any
`even_rows` consecutive rows one is of the dearest sequences, one of the next, and so on.

Cost and source go together: long documents come from few sources. So the dearest of each `even_rows` rows isn't
aligned but staggered: there every window is at another rank, and the sequences of long documents are spread over time.
That costs little: the dearest sequence of such a row is a full-length document anyway. The other rows are aligned.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampipe.plan.pieces import Pieces
from streampipe.plan.windows import deal_frames
from streampipe.rng import keyed_permutation, raw_words

_BITS = 32


@dataclass(frozen=True)
class Rows:
    """Where a round lies in the rectangle of the run.

    Attributes:
        columns: windows.
        first: sequences of the run before the round. Steps are cut at multiples of rows of the *run*; a round that
            begins in the middle of a row is aligned to those.
        even: a power of two: the share of each source is kept even over so many consecutive rows.
    """

    columns: int
    first: int
    even: int


def default_even_rows(seq_length: int, cost_of_token: int) -> int:
    """Return over how many rows shares are kept even when the config doesn't say.

    4, which steps of 4 rows and more don't feel; 16 where attention makes a full-length document cost more than three
    times what its tokens cost, so that such documents fill rows of their own. Measured in benchmarks/README.md.
    """
    return 4 if seq_length <= 2 * cost_of_token else 16


def balanced_order(
    column: NDArray[np.int64], cost: NDArray[np.int64], rows: Rows, seed: int, round_: int
) -> NDArray[np.int64]:
    """Return the place of each sequence in the round: int64 [N]; each stays in its column.

    Args:
        column: int64 [N], column i holding as many sequences as places `i, i + columns, ...` there are.
        cost: int64 [N]; ties break by canonical index.
        rows: where the round lies.
        seed: of the run; keys the order of rows.
        round_: which round; keys it too.
    """
    places = np.arange(len(column))
    key = _row_keys((rows.first + places) // rows.columns, places % rows.columns, rows, seed, round_)
    place = np.empty(len(column), np.int64)
    # Column after column: the dearest sequence to the row with the lowest key.
    place[np.lexsort((-cost, column))] = np.lexsort((key, places % rows.columns))
    return place


def _row_keys(
    row: NDArray[np.int64], column: NDArray[np.int64], rows: Rows, seed: int, round_: int
) -> NDArray[np.int64]:
    """Return where in the order of cost each cell stands, as a fraction of 2^32; all different within a column.

    The row's number with its bits reversed: its low bits, by which consecutive rows differ, decide most.
    """
    span = (1 << _BITS) // rows.even
    fraction = _reverse_bits(row)
    within = fraction % span ^ int(raw_words(1, seed, "balance", round_)[0]) % span
    shift = keyed_permutation(rows.columns, seed, "balance columns") * span // rows.columns
    staggered = (within + shift[column]) % span
    return np.where(fraction < span, staggered, fraction // span * span + within)


def _reverse_bits(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the low 32 bits of each number in reverse: 1 gives 2^31."""
    reversed_ = np.zeros_like(numbers)
    for bit in range(_BITS):
        reversed_ |= (numbers >> bit & 1) << (_BITS - 1 - bit)
    return reversed_


def deal_pieces(pieces: Pieces, sizes: NDArray[np.int64], seq_length: int, windows: int) -> NDArray[np.int64]:
    """Return the pieces of a round, given frame after frame, in the order of the line: window after window: int64 [P].

    Frames are dealt to windows, each to the window with the least so far, those with the longest documents first: so
    windows get about equally many long documents, and their sequences of equal cost rank cost alike. One document of
    many sequences would still outdo that. So of the sequences that a frame fills alone only half a window's usual
    number goes with it; the others are dealt in lots of that many, and each lot costs another read of the frame.

    Args:
        pieces: P of them.
        sizes: int64 [P], what each counts for when windows are made alike.
        seq_length: positions of a sequence.
        windows: how many.
    """
    fills = pieces.slot >= seq_length
    most = max(1, int(fills.sum()) // (2 * windows))
    filled: NDArray[np.int64] = np.cumsum(fills) - fills
    frame_starts = np.searchsorted(pieces.occurrence, pieces.occurrence)
    lot = np.where(fills, (filled - filled[frame_starts]) // most, 0) if len(pieces) else fills.astype(np.int64)
    lots = int(lot.max(initial=0)) + 1
    found, item = np.unique(pieces.occurrence * lots + lot, return_inverse=True)
    # bincount sums in float64, exact below 2^53 token pairs of one frame.
    squares = np.bincount(item, pieces.slot.astype(np.float64) ** 2, len(found))
    order = np.argsort(-squares, kind="stable")
    window = np.empty(len(found), np.int64)
    window[order] = deal_frames(np.bincount(item, sizes, len(found)).astype(np.int64)[order], windows)
    return np.argsort(window[item], kind="stable")


@dataclass(frozen=True)
class Imbalance:
    """How much longer steps take than if all ranks had equal work: 1 is perfect; means over steps, weighted by cost.

    Attributes:
        step: ranks wait for each other at the end of a step: its dearest share over the mean share.
        lockstep: ranks wait after every micro batch: the sum of the dearest of each over the mean share.
    """

    step: float
    lockstep: float


def imbalance_of(costs: NDArray[np.int64]) -> Imbalance:
    """Measure steps.

    Args:
        costs: int64 [steps, ranks, micro batches], each rank's in the order in which it trains on them.
    """
    mean = float(costs.sum()) / max(1, costs.shape[1])
    if not mean:
        return Imbalance(1.0, 1.0)
    step = float(costs.sum(axis=2).max(axis=1, initial=0).sum())
    lockstep = float(costs.max(axis=1, initial=0).sum())
    return Imbalance(step / mean, lockstep / mean)


def doubts(cost: NDArray[np.int64], rows: Rows, global_batch_size: int, dp_size: int) -> list[str]:
    """Return in words why `balance: cost` does not pay for a run; nothing where it does.

    Args:
        cost: int64 [N], of a round in canonical order.
        rows: where the round lies.
        global_batch_size: sequences of a step.
        dp_size: ranks that share a step.
    """
    found: list[str] = []
    if global_batch_size % rows.columns or rows.columns % dp_size:
        found.append(
            f"global_batch_size {global_batch_size}, plan.windows {rows.columns} and dp_size {dp_size} are not "
            "multiples of each other, so steps are not whole rows of like costs; choose a global_batch_size that is a "
            "multiple of plan.windows, and plan.windows a multiple of dp_size"
        )
        return found
    height = global_batch_size // rows.columns
    if height < rows.even:
        found.append(
            f"a step takes {height} sequences of each window, fewer than plan.even_rows {rows.even}, so each source's "
            "share swings from step to step; take more sequences a step, fewer windows, or lower plan.even_rows"
        )
    skip = -rows.first % rows.columns
    whole = cost[skip : skip + (len(cost) - skip) // rows.columns * rows.columns].reshape(-1, rows.columns)
    if len(whole) < height:
        return found
    keys = raw_words(whole.size, "random order to compare with").reshape(whole.shape)
    random = np.take_along_axis(whole, np.argsort(keys, axis=0, kind="stable"), axis=0)
    ours, theirs = (_of_rectangle(each, height, dp_size) for each in (whole, random))
    if theirs.lockstep - ours.lockstep < 0.01:
        found.append(
            f"ranks would wait {theirs.lockstep - 1:.1%} of a step in random order, {ours.lockstep - 1:.1%} with "
            "balance: sequences cost too much alike, or ranks have micro batches enough, for it to matter; set "
            "plan.balance: off"
        )
    return found


def _of_rectangle(cost: NDArray[np.int64], height: int, dp_size: int) -> Imbalance:
    """Measure the steps of `height` rows of a rectangle, cut as `share_of_rank` cuts them."""
    steps = len(cost) // height
    shares = (
        cost[: steps * height].reshape(steps, height, dp_size, -1).transpose(0, 2, 1, 3).reshape(steps, dp_size, -1)
    )
    return imbalance_of(-np.sort(-shares, axis=2))
