"""`batch_by: documents`: the documents of one step laid into sequences of their own, and dealt to ranks.

The canonical order is one of documents; a step takes the next of them. How they lie in sequences depends on them alone,
not on ranks, so the same sequences are trained whatever the topology; only how many micro batches that makes, and how
many empty sequences complete them, depends on it.
"""

from bisect import bisect_left, insort
from heapq import heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray

from streampipe.plan.packing import best_fit

# Shares of a step's tokens that are spread by cost, tried in turn; the rest, the shortest documents, fill the gaps.
_SPREAD = (1.0, 0.9, 0.7)


def pack_documents(
    slots: NDArray[np.int64], costs: NDArray[np.int64], seq_length: int, multiple: int = 1
) -> NDArray[np.int64]:
    """Lay documents into as few sequences as best-fit-decreasing needs, and spread their cost evenly over those.

    Slots 6, 5, 3, 2 with room for 8 give sequences 0, 1, 1, 0.

    Args:
        slots: int64 [D], room that each document takes, at most `seq_length`; a pair is one document.
        costs: int64 [D].
        seq_length: room of a sequence.
        multiple: of sequences, unless there are fewer documents; spread over more sequences they leave room, but no
            rank without work.

    Returns:
        int64 [D], the sequence of each document; sequences are numbered by their first document.
    """
    sequence, used = best_fit(slots, seq_length, None)
    used = min(len(slots), -(-used // multiple) * multiple)
    for share in _SPREAD:
        spread = _spread(slots, costs, _Sequences(used, seq_length), share)
        if spread is not None:
            sequence = spread
            break
    _, first, sequence = np.unique(sequence, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[sequence]


def costs_of_packed(sequence: NDArray[np.int64], costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what each sequence costs, of the documents that `pack_documents` put into it: int64 [sequences]."""
    total = np.zeros(int(sequence.max()) + 1, np.int64)
    np.add.at(total, sequence, costs)
    return total


def deal_sequences(costs: NDArray[np.int64], dp_size: int, micro_batch_size: int) -> NDArray[np.int64]:
    """Return the sequences of each rank in the order of its micro batches, all ranks equally many; -1 for an empty one.

    The dearest come first, so that ranks have sequences of like cost at the same time, and every second time in
    reverse, so that no rank always has the dearer one. The cheapest stand with the empty ones.

    Args:
        costs: int64 [N], of the step's sequences; ties break by number.
        dp_size: ranks.
        micro_batch_size: sequences of a micro batch.

    Returns:
        int64 [dp_size, rows].
    """
    micro_batches = -(-len(costs) // (dp_size * micro_batch_size))
    dealt = np.full(micro_batches * micro_batch_size * dp_size, -1, np.int64)
    dealt[: len(costs)] = np.argsort(-costs, kind="stable")
    rows = dealt.reshape(-1, dp_size)
    rows[1::2] = rows[1::2, ::-1]
    return rows.T


class _Sequences:
    """Sequences that are being filled, cheapest first, those without room for the present document set aside."""

    def __init__(self, count: int, seq_length: int) -> None:
        self.room = [seq_length] * count
        self._by_cost = [(0, number) for number in range(count)]
        self._aside: list[tuple[int, int, int]] = []  # minus room, number, cost

    def cheapest(self, slot: int, cost: int) -> int | None:
        """Put a document into the cheapest sequence with room; slots must not grow from call to call."""
        while self._aside and -self._aside[0][0] >= slot:
            _, number, load = heappop(self._aside)
            heappush(self._by_cost, (load, number))
        while self._by_cost and self.room[self._by_cost[0][1]] < slot:
            load, number = heappop(self._by_cost)
            heappush(self._aside, (-self.room[number], number, load))
        if not self._by_cost:
            return None
        load, number = self._by_cost[0]
        heapreplace(self._by_cost, (load + cost, number))
        self.room[number] -= slot
        return number


def _spread(
    slots: NDArray[np.int64], costs: NDArray[np.int64], sequences: _Sequences, share: float
) -> NDArray[np.int64] | None:
    """Put the longest documents, `share` of all tokens, into the cheapest sequences, the others where they fit best.

    Returns:
        int64 [D], the sequence of each document; None when one found no room.
    """
    order = np.lexsort((-costs, -slots))
    ends = np.cumsum(slots[order])
    longest = int(np.searchsorted(ends, int(share * int(ends[-1])), side="right")) if len(order) else 0
    chosen: list[int] = []
    for slot, cost in zip(slots[order[:longest]].tolist(), costs[order[:longest]].tolist(), strict=True):
        number = sequences.cheapest(slot, cost)
        if number is None:
            return None
        chosen.append(number)
    openings = sorted((room, number) for number, room in enumerate(sequences.room))
    for slot in slots[order[longest:]].tolist():
        at = bisect_left(openings, (slot, -1))
        if at == len(openings):
            return None
        room, number = openings.pop(at)
        insort(openings, (room - slot, number))
        chosen.append(number)
    spread = np.empty(len(order), np.int64)
    spread[order] = chosen
    return spread
