"""Frames dealt to windows, and the borders between windows drawn so that each fills whole sequences.

A window is the unit of locality: one rank reads it. Frames are dealt source by source, each to the window with the
fewest tokens. Windows that are merely alike would each end in a sequence that is half empty; so the windows are then
laid end to end, and each takes exactly as many tokens as its share of whole sequences holds. A frame that lies across
such a border is read by two windows, and which of its documents go to which is chosen so that the border is met almost
to the token.
"""

import heapq

import numpy as np
from numpy.typing import NDArray


def deal_frames(sizes: NDArray[np.int64], windows: int) -> NDArray[np.int64]:
    """Deal frames to windows, in the given order, each to the window with the least so far: int64 [frames].

    Ties go to the lower window. Sizes 3, 1, 1, 1 over 2 windows give windows 0, 1, 1, 1.
    """
    heap = [(0, window) for window in range(windows)]
    dealt = np.empty(len(sizes), np.int64)
    for frame, size in enumerate(sizes.tolist()):
        filled, window = heap[0]
        dealt[frame] = window
        heapq.heapreplace(heap, (filled + size, window))
    return dealt


def sequences_of_windows(sequences: int, windows: int) -> NDArray[np.int64]:
    """Return how many of a round's sequences each window gets: 10 over 4 windows give 3, 3, 2, 2."""
    counts = np.full(windows, sequences // windows, np.int64)
    counts[: sequences % windows] += 1
    return counts


def draw_borders(
    sizes: NDArray[np.int64], frame_starts: NDArray[np.int64], shares: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Divide the line of pieces into windows that hold tokens in proportion to `shares`.

    Whole frames go to a window until one lies across its border. Which pieces of that frame go to the window, and which
    to the next, is chosen so that the border is met to about the size of the frame's smallest piece, without another
    frame being read.

    Args:
        sizes: int64 [P], room of each piece, frame after frame on the line.
        frame_starts: int64 [F + 1], first piece of each frame, and P.
        shares: int64 [windows], sequences of each window.

    Returns:
        per window, the rows of its pieces in line order.
    """
    total, all_shares = int(sizes.sum()), int(shares.sum())
    borders = [total * int(share) // max(1, all_shares) for share in np.cumsum(shares)]
    line = _Line(sizes, frame_starts)
    divided: list[NDArray[np.int64]] = []
    taken = 0
    for border in borders[:-1]:
        rows = line.take(border - taken)
        taken += int(sizes[rows].sum())
        divided.append(rows)
    divided.append(line.rest())
    return divided


class _Line:
    """The pieces that no window has taken yet."""

    def __init__(self, sizes: NDArray[np.int64], frame_starts: NDArray[np.int64]) -> None:
        self._sizes = sizes
        self._starts = frame_starts
        self._ends = np.concatenate([[0], np.cumsum(sizes)])[frame_starts]  # tokens before each frame, and all
        self._frame = 0  # the next frame that is untouched
        self._opened = np.empty(0, np.int64)  # what is left of the frame across the last border

    def take(self, room: int) -> NDArray[np.int64]:
        opened_size = int(self._sizes[self._opened].sum())
        if opened_size > room:
            return self._open(self._opened, room)
        # Whole frames while they fit: tokens before frame k + 1 at most tokens before the first plus the room.
        reach = self._ends[self._frame] + room - opened_size
        stop = int(np.searchsorted(self._ends, reach, side="right")) - 1
        whole = np.arange(self._starts[self._frame], self._starts[stop])
        left = int(reach - self._ends[stop])
        taken = np.concatenate([self._opened, whole])
        self._opened = np.empty(0, np.int64)
        self._frame = stop
        if left > 0 and stop < len(self._starts) - 1:
            self._frame = stop + 1
            part = self._open(np.arange(self._starts[stop], self._starts[stop + 1]), left)
            taken = np.concatenate([taken, part])
        return taken

    def rest(self) -> NDArray[np.int64]:
        return np.concatenate([self._opened, np.arange(self._starts[self._frame], self._starts[-1])])

    def _open(self, rows: NDArray[np.int64], room: int) -> NDArray[np.int64]:
        """Take pieces as they stand while they fit, then fill the last gap with the largest that still fit.

        Keep the others for the next window.
        """
        sizes = self._sizes[rows]
        ends = np.cumsum(sizes)
        prefix = int(np.searchsorted(ends, room, side="right"))
        gap = room - (int(ends[prefix - 1]) if prefix else 0)
        chosen = np.zeros(len(rows), bool)
        chosen[:prefix] = True
        order = prefix + np.argsort(-sizes[prefix:], kind="stable")
        for row, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
            if size <= gap:
                gap -= size
                chosen[row] = True
        self._opened = rows[~chosen]
        return rows[chosen]
