from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan.corpora import Corpus, corpora, planner

from streampipe.errors import ConfigError
from streampipe.plan.blend import Blend, Share, resolve_round_tokens, weight_fraction

WEIGHTS = st.sampled_from([1e-6, 0.001, 0.1, 0.3, 0.5, 0.7, 1, 3, "1/3"])


@given(st.lists(st.tuples(corpora(), WEIGHTS), min_size=1, max_size=4), st.integers(1, 6))
def test_after_any_round_each_source_is_within_one_frame_of_its_share(sources, rounds):
    plans = planner([c for c, _ in sources], weights=[w for _, w in sources])
    total = sum(share.weight for share in plans.blend.shares)
    taken = [0] * len(sources)
    for number in range(rounds):
        for source, tokens in enumerate(plans.round(number).totals.taken_tokens.tolist()):
            taken[source] += tokens
        for source, share in enumerate(plans.blend.shares):
            due = plans.blend.round_tokens * (number + 1) * share.weight / total
            assert abs(taken[source] - due) <= sources[source][0].largest_frame


@given(
    st.lists(st.tuples(st.integers(1, 10**13), st.integers(1, 10**6)), min_size=1, max_size=5), st.integers(0, 10**7)
)
def test_a_rounds_end_is_the_next_ones_start_to_the_token(sizes, number):
    shares = [Share(f"s{n}", Fraction(weight), tokens) for n, (tokens, weight) in enumerate(sizes)]
    blend = Blend(shares, resolve_round_tokens(shares, 64, 2**20, 8192))
    before, here = blend.positions(number), blend.positions(number + 1)
    total = sum(share.weight for share in shares)
    for share, start, stop in zip(shares, before, here, strict=True):
        exact = blend.round_tokens * share.weight / total
        assert stop >= start
        assert abs(stop - (number + 1) * exact) < 1


def test_epochs_end_with_a_round_where_sources_share_them():
    one = [Share("web", Fraction(7, 10), 1_000_003)]
    tokens = resolve_round_tokens(one, 64, 1024, 16)
    blend = Blend(one, tokens)
    rounds = round(1_000_003 / tokens)
    assert blend.positions(rounds) == (1_000_003,)
    assert blend.positions(3 * rounds) == (3_000_009,)


def test_a_source_smaller_than_a_round_gives_whole_passes():
    shares = [Share("tiny", Fraction(1), 100)]
    assert resolve_round_tokens(shares, 4, 1000, 16) == 600  # at least 4 windows of 8 sequences of 16
    assert resolve_round_tokens([Share("a", Fraction(1), 100), Share("b", Fraction(2), 200)], 4, 1000, 16) == 600


def test_a_spent_source_leaves_its_weight_to_the_others():
    shares = [Share("a", Fraction(1), 100, 1), Share("b", Fraction(1), 1000, 1)]
    blend = Blend(shares, Fraction(80))
    assert [blend.positions(r) for r in range(4)] == [(0, 0), (40, 40), (80, 80), (100, 120)]
    assert blend.positions(4) == (100, 200), "from the next round on, b takes the whole round"
    assert blend.rounds == 3 + 11  # 880 tokens left, 80 a round
    assert blend.positions(blend.rounds) == (100, 1000)
    assert blend.positions(blend.rounds + 5) == (100, 1000)


def test_a_run_with_one_unlimited_source_is_endless():
    assert Blend([Share("a", Fraction(1), 100, 1), Share("b", Fraction(1), 100)], Fraction(80)).rounds is None


@given(st.lists(st.tuples(corpora(), WEIGHTS, st.integers(1, 3)), min_size=1, max_size=3))
def test_a_finite_run_takes_every_frame_of_every_epoch_once(sources):
    plans = planner([c for c, _, _ in sources], weights=[w for _, w, _ in sources], epochs=[e for _, _, e in sources])
    seen = []
    assert plans.rounds is not None
    if plans.rounds > 300:
        return  # a weight of 10^-6 makes long runs of nothing else
    for number in range(plans.rounds):
        frames = plans.round(number).frames
        seen += list(zip(frames.source, frames.epoch, frames.shard, frames.frame, strict=True))
    due = [
        (source, epoch, shard, frame)
        for source, (corpus, _, epochs) in enumerate(sources)
        for epoch in range(epochs)
        for shard, frames in enumerate(corpus.shards)
        for frame in range(len(frames))
    ]
    assert sorted(map(tuple, seen)) == due


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "x"])
def test_a_weight_that_is_no_share_is_refused_with_its_place(weight):
    with pytest.raises(ConfigError, match=r"\$\.sources\[2\]\.weight: .*at least 0"):
        weight_fraction(weight, "$.sources[2].weight")


def test_weights_are_what_was_written_not_its_float():
    assert weight_fraction(0.7, "") == Fraction(7, 10)


def test_scale_of_weights_does_not_matter():
    corpus = Corpus([[[5, 6], [7]], [[3, 3, 3]]])
    small, large = (planner([corpus, corpus], weights=w) for w in ((0.7, 0.3), (7, 3)))
    assert small.round(3).frames.frame.tolist() == large.round(3).frames.frame.tolist()
