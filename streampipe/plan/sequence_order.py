"""Sequences of all windows to one canonical order.

Windows are the columns of a rectangle and rows are time: the i-th sequence of a round stands in column `i % windows`.
So a rank that keeps to its columns keeps to its windows.
"""

import numpy as np
from numpy.typing import NDArray

from streampipe.plan.windows import sequences_of_windows
from streampipe.rng import keyed_permutation


def level_columns(window: NDArray[np.int64], columns: int) -> NDArray[np.int64]:
    """Return the column of each sequence: its window, but for surplus sequences, which move to columns that lack some.

    Args:
        window: int64 [N], ascending.
        columns: how many columns there are; no window is outside them.
    """
    column = window.copy()
    have = np.bincount(window, minlength=columns)
    want = sequences_of_windows(len(window), columns)
    # The last sequences of a window with too many go, in window order, to the columns with too few.
    place = np.arange(len(window)) - (np.cumsum(have) - have)[window]
    column[place >= want[window]] = np.repeat(np.arange(columns), np.maximum(0, want - have))
    return column


def canonical_order(column: NDArray[np.int64], columns: int, *scope: int | str, shuffled: bool) -> NDArray[np.int64]:
    """Return the place of each sequence in the round: int64 [N].

    Within a column the order is random (keyed by the scope), or as it stands when `shuffled` is off.
    """
    place = np.empty(len(column), np.int64)
    for number in range(min(columns, len(column))):
        members = np.flatnonzero(column == number)
        if shuffled:
            members = members[keyed_permutation(len(members), *scope, number)]
        place[members] = np.arange(len(members)) * columns + number
    return place


def move_to_end(place: NDArray[np.int64], sequence: int) -> NDArray[np.int64]:
    """Return the places with `sequence` at the end of the round, and the one that stood there in its place."""
    moved = place.copy()
    end = len(place) - 1
    moved[np.flatnonzero(place == end)] = place[sequence]
    moved[sequence] = end
    return moved
