"""Which sequences of a step a dp_rank gets, and in which micro batches."""

import numpy as np
from numpy.typing import NDArray


def share_of_rank(
    columns: NDArray[np.int64], costs: NDArray[np.int64], dp_size: int, dp_rank: int
) -> NDArray[np.int64]:
    """Return the rows of a step that a rank trains on, in the order of its micro batches: int64 [rows / dp_size].

    Ordered by column, the sequences of a step are cut into `dp_size` equal shares, so a rank keeps to its windows. A
    share is ordered by cost, dearest first, so that micro batch k costs alike on all ranks. Ties break by canonical
    index.

    Args:
        columns: int64 [global_batch_size], the column of each sequence of the step, in canonical order.
        costs: int64 [global_batch_size].
        dp_size: divides `global_batch_size`.
        dp_rank: of this rank.
    """
    share = len(columns) // dp_size
    rows = np.argsort(columns, kind="stable")[dp_rank * share : (dp_rank + 1) * share]
    rows = np.sort(rows)
    return rows[np.argsort(-costs[rows], kind="stable")]
