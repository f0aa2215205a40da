"""Which sequences of a step a dp_rank gets, and in which micro batches."""

import numpy as np
from numpy.typing import NDArray


def shares_of_ranks(columns: NDArray[np.int64], costs: NDArray[np.int64], dp_size: int) -> NDArray[np.int64]:
    """Return the rows of a step that each rank trains on, in the order of its micro batches: int64 [dp_size, rows].

    Ordered by column, the sequences of a step are cut into `dp_size` equal shares, so a rank keeps to its windows. A
    share is ordered by cost, dearest first, so that micro batch k costs alike on all ranks. Ties break by canonical
    index.

    Args:
        columns: int64 [global_batch_size], the column of each sequence of the step, in canonical order.
        costs: int64 [global_batch_size].
        dp_size: divides `global_batch_size`.
    """
    rows = np.sort(np.argsort(columns, kind="stable").reshape(dp_size, -1), axis=1)
    return np.take_along_axis(rows, np.argsort(-costs[rows], axis=1, kind="stable"), axis=1)


def share_of_rank(
    columns: NDArray[np.int64], costs: NDArray[np.int64], dp_size: int, dp_rank: int
) -> NDArray[np.int64]:
    """Return one rank's row of `shares_of_ranks` for each of several steps, without the other ranks'.

    Args:
        columns: int64 [steps, global_batch_size], the column of each sequence, in canonical order.
        costs: int64, likewise.
        dp_size: divides `global_batch_size`.
        dp_rank: the rank.

    Returns:
        int64 [steps, rows].
    """
    share = columns.shape[1] // dp_size
    rows = columns.argsort(axis=1, kind="stable")[:, dp_rank * share : (dp_rank + 1) * share]
    rows.sort(axis=1)
    return np.take_along_axis(rows, dearest_first(np.take_along_axis(costs, rows, axis=1)), axis=1)


def dearest_first(costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return in which order each step's sequences go, the dearest first; ties stay as they are: int64 [steps, rows]."""
    return (-costs).argsort(axis=1, kind="stable")
