"""Loss spans: which tokens of a member are trained, as starts and ends.

Spans [[2, 5], [7, 8]] of a member of 9 tokens: `. . x x x . . x .`, 4 trained tokens.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.shards.frame_index import Int32, Int64, Ragged


def check_spans(spans: NDArray[Any], length: int) -> None:
    """Raise ValueError unless `spans`, integers [spans, 2], are right for one member of `length` tokens."""
    trained_tokens(Ragged(np.array([0, spans.size]), spans.ravel()), np.array([length]))


def trained_tokens(spans: Ragged, lengths: Int32 | Int64) -> Int64:
    """Check the spans of N members and return how many tokens each trains: int64 [N].

    Args:
        spans: N lists of start, end, start, end, ...
        lengths: [N], tokens of each member.

    Raises:
        ValueError: unless the spans of each member are at least one, none of them empty, ascending, disjoint (one may
            start where another ends), and within its length.
    """
    offsets, values = spans.offsets, spans.values
    counts = np.diff(offsets)
    if len(counts) != len(lengths) or offsets[0] != 0 or offsets[-1] != len(values) or (counts % 2).any():
        raise ValueError(f"loss spans must be pairs of start and end for each of {len(lengths)} members")
    if not counts.all():
        raise ValueError(f"every member must have a trained token, but {int((counts == 0).sum())} have no loss span")
    starts, ends = values[0::2].astype(np.int64), values[1::2].astype(np.int64)
    firsts = offsets[:-1] // 2
    floors = np.concatenate(([0], ends[:-1]))
    floors[firsts] = 0
    limits: Int64 = np.repeat(lengths.astype(np.int64), counts // 2)
    wrong = np.flatnonzero((starts < floors) | (ends <= starts) | (ends > limits))
    if len(wrong):
        start, end, floor, limit = (int(array[wrong[0]]) for array in (starts, ends, floors, limits))
        raise ValueError(
            f"loss spans must be ascending, disjoint, not empty and within the {limit} tokens of their member, but got "
            f"[{start}, {end}] where the next may start at {floor}"
        )
    totals: Int64 = np.add.reduceat(ends - starts, firsts)
    return totals
