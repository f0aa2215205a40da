import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan.corpora import lognormal_corpus

from streampipe.errors import ConfigError
from streampipe.plan.packing import best_fit
from streampipe.plan.pieces import PackingConfig
from streampipe.plan.windows import deal_frames, draw_borders, sequences_of_windows


def plain_best_fit(slots, seq_length, most):
    """Best-fit-decreasing as a textbook writes it."""
    room, place = [], [-1] * len(slots)
    for piece in sorted(range(len(slots)), key=lambda p: (-slots[p], p)):
        fitting = [(left, sequence) for sequence, left in enumerate(room) if left >= slots[piece]]
        if fitting:
            place[piece] = min(fitting)[1]
        elif most is None or len(room) < most:
            place[piece] = len(room)
            room.append(seq_length)
        if place[piece] >= 0:
            room[place[piece]] -= slots[piece]
    return place, len(room)


@given(st.lists(st.integers(1, 32), max_size=60), st.sampled_from([None, 0, 1, 3]))
def test_best_fit_equals_the_textbook(slots, most):
    bins, used = best_fit(np.array(slots, np.int64), 32, most)
    assert (bins.tolist(), used) == plain_best_fit(slots, 32, most)


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 9))
def test_frames_are_dealt_so_that_windows_are_alike(sizes, windows):
    dealt = deal_frames(np.array(sizes, np.int64), windows)
    filled = np.bincount(dealt, weights=sizes, minlength=windows)
    assert filled.max() - filled.min() <= max(sizes, default=0)


@given(
    st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=10), max_size=12), st.integers(1, 9), st.integers(0, 40)
)
def test_borders_divide_the_line_and_open_at_most_one_frame_each(frames, windows, sequences):
    sizes = np.array([size for frame in frames for size in frame], np.int64)
    starts = np.cumsum([0, *map(len, frames)])
    divided = draw_borders(sizes, starts, sequences_of_windows(sequences, windows))
    assert len(divided) == windows
    assert sorted(np.concatenate(divided).tolist()) == list(range(len(sizes)))
    frame_of = np.repeat(np.arange(len(frames)), [len(frame) for frame in frames])
    reads = sum(len(set(frame_of[rows].tolist())) for rows in divided)
    assert reads <= len(frames) + windows - 1


def test_borders_are_met_to_a_small_piece_not_to_a_frame():
    lengths = [frame for shard in lognormal_corpus(5, 2, 4000).shards for frame in shard]
    sizes = np.array([size for frame in lengths for size in frame], np.int64)
    starts = np.cumsum([0, *map(len, lengths)])
    filled = [int(sizes[rows].sum()) for rows in draw_borders(sizes, starts, sequences_of_windows(64, 8))]
    assert max(filled) - min(filled) <= 400, "frames hold 65,536 tokens, documents 1,000"


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        (PackingConfig(document_multiple=3), "does not divide seq_length 16"),
        (PackingConfig(policy="concat", document_multiple=4), "no meaning"),
        (PackingConfig(document_multiple=0), "at least 1"),
    ],
)
def test_packing_without_meaning_is_refused(packing, message):
    with pytest.raises(ConfigError, match=message):
        packing.check(16)
