"""Pieces of a round laid into sequences: which sequence, of which window.

Each policy is a function from slot lengths to a `Packed`. A new policy is one more function here, its name in
`pieces.Policy`, and a line in `pack`.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampipe.plan.pieces import Pieces, Policy
from streampipe.plan.windows import draw_borders, sequences_of_windows

# A window is given this much less than its sequences hold, so that best-fit finds a place for every piece. Measured in
# benchmarks/README.md.
BEST_FIT_SLACK = 0.001
# Fewer sequences a window than this pack badly on their own; such a round is packed in fewer, larger windows.
LEAST_SEQUENCES = 8


@dataclass(frozen=True)
class Packed:
    """The pieces of a round in their sequences.

    Attributes:
        pieces: the pieces on the line (`concat` cuts them further).
        sequence: int64 [P], the sequence of each piece; sequences are numbered window after window.
        window: int64 [N], the window that holds each sequence.
    """

    pieces: Pieces
    sequence: NDArray[np.int64]
    window: NDArray[np.int64]


def pack(policy: Policy, pieces: Pieces, seq_length: int, windows: int, breathe: Callable[[], None]) -> Packed:
    """Lay the pieces of a round, standing on the line window after window, into sequences.

    `breathe` is called between slices of about a millisecond, so that a caller can let other threads run.
    """
    if policy == "concat":
        return _concat(pieces, seq_length, windows)
    if policy == "none":
        return _one_each(pieces, windows)
    return _best_fit(pieces, seq_length, windows, breathe)


def _one_each(pieces: Pieces, windows: int) -> Packed:
    shares = sequences_of_windows(len(pieces), windows)
    return Packed(pieces, np.arange(len(pieces)), np.repeat(np.arange(windows), shares))


def _concat(pieces: Pieces, seq_length: int, windows: int) -> Packed:
    """Cut the line at every `seq_length`: only the last sequence may hold padding."""
    ends = np.cumsum(pieces.length)
    total = int(ends[-1]) if len(ends) else 0
    begins = ends - pieces.length
    # A piece is cut where a multiple of seq_length lies strictly inside it.
    first, last = begins // seq_length, (ends - 1) // seq_length
    parts = last - first + 1
    row = np.repeat(np.arange(len(pieces)), parts)
    sequence = np.arange(len(row)) - (np.cumsum(parts) - parts)[row] + first[row]
    begin = np.maximum(begins[row], sequence * seq_length)
    end = np.minimum(ends[row], (sequence + 1) * seq_length)
    cut = pieces.take(row)
    length = end - begin
    goes_on = (end < ends[row]) | cut.goes_on
    pieces = Pieces(cut.occurrence, cut.document, cut.start + begin - begins[row], length, length, goes_on, cut.member)
    sequences = -(-total // seq_length)
    return Packed(pieces, sequence, np.repeat(np.arange(windows), sequences_of_windows(sequences, windows)))


def _best_fit(pieces: Pieces, seq_length: int, windows: int, breathe: Callable[[], None]) -> Packed:
    sequences = _sequences_needed(pieces.slot, seq_length)
    windows = max(1, min(windows, sequences // LEAST_SEQUENCES))
    shares = sequences_of_windows(sequences, windows)
    frame_starts = np.concatenate([np.flatnonzero(np.diff(pieces.occurrence, prepend=-1)), [len(pieces)]])
    sequence = np.empty(len(pieces), np.int64)
    counts: list[int] = []
    carried = np.empty(0, np.int64)
    for window, rows in enumerate(draw_borders(pieces.slot, frame_starts, shares)):
        last = window == windows - 1
        rows = np.concatenate([carried, rows])  # noqa: PLW2901
        bins, used = best_fit(pieces.slot[rows], seq_length, None if last else int(shares[window]))
        bins, used = _settle(pieces.slot[rows], bins, used, seq_length)
        left = bins < 0
        carried = rows[left]
        sequence[rows[~left]] = bins[~left] + sum(counts)
        counts.append(used)
        breathe()
    return Packed(pieces, sequence, np.repeat(np.arange(windows), counts))


def _settle(
    slots: NDArray[np.int64], bins: NDArray[np.int64], used: int, seq_length: int
) -> tuple[NDArray[np.int64], int]:
    """Let at most a sequence's worth of pieces without a place travel on to the next window, and few of them.

    Each piece that travels costs the next window's rank a frame. Those without a place are the many short ones, so
    where one longer piece can give way to all of them, it goes instead. If more than a sequence's worth is left, the
    forecast was wrong for this window, and it gets more sequences.
    """
    bins = bins.copy()
    left = np.flatnonzero(bins < 0)
    if slots[left].sum() > seq_length:
        more, extra = best_fit(slots[left], seq_length, None)
        stays = more < extra - 1
        bins[left[stays]] = used + more[stays]
        used += extra - 1
        left = left[~stays]
    if len(left) < 2:
        return bins, used
    placed = np.flatnonzero(bins >= 0)
    room = seq_length - np.bincount(bins[placed], weights=slots[placed], minlength=used).astype(np.int64)
    candidates = placed[slots[placed] + room[bins[placed]] >= slots[left].sum()]
    if len(candidates):
        leaver = candidates[np.argmin(slots[candidates])]
        bins[left] = bins[leaver]
        bins[leaver] = -1
    return bins, used


def _sequences_needed(slots: NDArray[np.int64], seq_length: int) -> int:
    """Forecast how many sequences best-fit needs, from a sample of the line that fills 64 sequences (or all of it)."""
    total = int(slots.sum())
    sample = slots[: int(np.searchsorted(np.cumsum(slots), 64 * seq_length)) + 1]
    bins, used = best_fit(sample, seq_length, None)
    if used < 2 or len(sample) == len(slots):
        return max(used, 1) if len(slots) else 0
    filled = np.bincount(bins, weights=sample, minlength=used)
    fill = (filled.sum() - filled.min()) / ((used - 1) * seq_length)
    return int(np.ceil(total / (seq_length * fill * (1 - BEST_FIT_SLACK))))


def best_fit(slots: NDArray[np.int64], seq_length: int, most: int | None) -> tuple[NDArray[np.int64], int]:
    """Pack by best-fit-decreasing: the longest first, each into the fullest sequence that still has room.

    Ties (equal slots, equally full sequences) break by index. Open sequences are kept in a sorted list of numbers,
    room x (P + 1) + sequence, so a piece costs one binary search, about 0.4 µs, whatever `seq_length` is; small numbers
    are compared faster than those of more than 30 bits.

    Args:
        slots: int64 [P], each at most `seq_length`.
        seq_length: room of a sequence.
        most: how many sequences there may be; None for as many as it takes.

    Returns:
        int64 [P], the sequence of each piece (-1 for one that found no room), and the number of sequences used.
    """
    order = np.argsort(-slots, kind="stable")
    one = len(slots) + 1  # a token of room
    longest_first = slots[order]
    # Pieces of more than half a sequence have one each.
    used = int((longest_first > seq_length // 2).sum())
    used = used if most is None else min(used, most)
    chosen = list(range(used))  # numbers like those of openings: the sequence, and any room
    room = seq_length - longest_first[:used]
    open_ones = np.flatnonzero(room)
    openings: list[int] = np.sort(room[open_ones] * one + open_ones).tolist()
    for need in (longest_first[used:] * one).tolist():
        at = bisect_left(openings, need)
        if at < len(openings):
            opening = openings.pop(at) - need
        elif used == most:
            chosen.append(-1)
            continue
        else:
            opening = seq_length * one - need + used
            used += 1
        chosen.append(opening)
        if opening >= one:
            insort(openings, opening, 0, at)  # with less room than it had, or than was needed
    numbers = np.array(chosen, np.int64)
    bins = np.empty(len(slots), np.int64)
    bins[order] = np.where(numbers < 0, -1, numbers % one)
    return bins, used
