from itertools import chain, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plan.corpora import Corpus, corpora

from streampipe.plan.epoch_order import Era, SourceAxis
from streampipe.rng import keyed_permutation, raw_words, stable_order


def axis_of(corpus, shuffle, name="web", seed=7):
    return SourceAxis(name, corpus, seed, [Era(0, 0, len(corpus.shards), shuffle or 0)])


def keys(run):
    return list(zip(run.epoch.tolist(), run.shard.tolist(), run.frame.tolist(), run.starts.tolist(), strict=True))


@given(corpora(), st.sampled_from([None, 1, 2, 100]), st.integers(0, 3))
def test_every_epoch_holds_every_frame_once(corpus, shuffle, epoch):
    axis = axis_of(corpus, shuffle)
    run = axis.frames_between(epoch * axis.start_of(1), (epoch + 1) * axis.start_of(1))
    due = [(shard, frame) for shard, frames in enumerate(corpus.shards) for frame in range(len(frames))]
    assert sorted((shard, frame) for _, shard, frame, _ in keys(run)) == due
    assert set(run.epoch.tolist()) == {epoch}


@given(corpora(), st.sampled_from([None, 2]), st.lists(st.integers(0, 5000), min_size=2, max_size=8))
def test_it_does_not_matter_where_the_axis_is_cut(corpus, shuffle, cuts):
    axis = axis_of(corpus, shuffle)
    cuts = sorted(cuts)
    whole = keys(axis.frames_between(cuts[0], cuts[-1]))
    fresh = axis_of(corpus, shuffle)
    parts = [keys(fresh.frames_between(a, b)) for a, b in pairwise(cuts)]
    assert list(chain(*parts)) == whole
    assert all(cuts[0] <= start < cuts[-1] for *_, start in whole)


def test_without_shuffling_frames_come_as_they_stand():
    corpus = Corpus([[[1], [2]], [[3]], [[4], [5]]])
    axis = axis_of(corpus, None)
    assert [(s, f) for _, s, f, _ in keys(axis.frames_between(0, 15))] == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]


def test_epochs_and_sources_are_shuffled_differently():
    corpus = Corpus([[[1]] * 40] * 3)
    orders = [
        [f for _, _, f, _ in keys(axis_of(corpus, 2, name, seed).frames_between(e * 120, (e + 1) * 120))]
        for name, seed, e in (("web", 1, 0), ("web", 1, 1), ("code", 1, 0), ("web", 2, 0))
    ]
    assert len({tuple(order) for order in orders}) == 4


@given(st.integers(0, 500), st.integers(0, 500))
def test_word_i_of_a_scope_is_the_same_however_many_are_drawn(few, more):
    assert np.array_equal(raw_words(few, 1, "x")[: min(few, more)], raw_words(more, 1, "x")[: min(few, more)])


def test_names_in_a_scope_are_not_joined():
    assert raw_words(1, "ab", "c")[0] != raw_words(1, "a", "bc")[0]
    assert raw_words(1, 1)[0] != raw_words(1, "1")[0]


def test_the_order_rests_on_raw_words_that_numpy_keeps():
    assert raw_words(2, 1234, "shards", "web", 0).tolist() == [10539345470257146488, 7521637828214446190]
    assert keyed_permutation(8, 1234, "shards", "web", 0).tolist() == [7, 2, 5, 1, 0, 6, 3, 4]


@given(st.lists(st.integers(0, 5), max_size=60))
def test_the_fast_order_equals_the_stable_one_also_with_ties(values):
    ordered = np.array(values, np.uint64)
    assert np.array_equal(stable_order(ordered), np.argsort(ordered, kind="stable"))
