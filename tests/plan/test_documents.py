"""Documents of a step: packed without regard to ranks, in few sequences of like cost, dealt so that ranks keep step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampipe.plan.balance import imbalance_of
from streampipe.plan.documents import deal_sequences, pack_documents
from streampipe.plan.packing import best_fit

LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=120).map(lambda found: np.array(found, np.int64))


def cost_of(slots):
    return slots * (slots + 50)


@given(LENGTHS, st.integers(1, 12))
def test_every_document_lies_in_one_sequence_that_has_room_and_none_is_empty(slots, multiple):
    sequence = pack_documents(slots, cost_of(slots), 100, multiple)
    count = int(sequence.max()) + 1
    filled = np.bincount(sequence, slots)
    assert filled.max() <= 100
    assert filled.min() > 0
    least = best_fit(slots, 100, None)[1]
    assert count <= min(len(slots), -(-least // multiple) * multiple)
    if multiple == 1:
        assert count <= least
    # Numbered by their first document.
    assert [int(np.flatnonzero(sequence == n)[0]) for n in range(count)] == sorted(
        int(np.flatnonzero(sequence == n)[0]) for n in range(count)
    )


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 4))
def test_ranks_get_every_sequence_once_and_equally_many(count, dp_size, micro_batch_size):
    costs = np.arange(count) % 7
    shares = deal_sequences(costs, dp_size, micro_batch_size)
    assert len({len(share) for share in shares}) == 1
    assert len(shares[0]) == -(-count // (dp_size * micro_batch_size)) * micro_batch_size
    dealt = np.concatenate(shares)
    assert sorted(dealt[dealt >= 0].tolist()) == list(range(count))


def test_sequences_cost_alike_where_there_is_room():
    lengths = np.array([40] * 4 + [10] * 60, np.int64)
    sequence = pack_documents(lengths, cost_of(lengths), 100, 10)
    cost = np.bincount(sequence, cost_of(lengths))
    assert len(cost) == 10
    assert cost.max() / cost.mean() < 1.1
    in_best_fit = np.bincount(best_fit(lengths, 100, None)[0], cost_of(lengths))
    assert in_best_fit.max() / in_best_fit.mean() > 1.2


def test_a_multiple_leaves_no_rank_without_work():
    slots = 1 + np.arange(400, dtype=np.int64) * 37 % 40
    costs = cost_of(slots)
    found = []
    for multiple in (1, 16):
        cost = np.append(np.bincount(pack_documents(slots, costs, 1000, multiple), costs).astype(np.int64), 0)
        found.append(imbalance_of(cost[deal_sequences(cost[:-1], 16, 1)][None]).lockstep)
    assert found[1] < 1.02
    assert found[0] > 1.5


@pytest.mark.parametrize("lengths", [[100], [100, 100, 1], [50, 50, 50], [1] * 101])
def test_corner_cases_are_packed_as_best_fit_would(lengths):
    slots = np.array(lengths, np.int64)
    assert pack_documents(slots, cost_of(slots), 100).max() + 1 == best_fit(slots, 100, None)[1]
