from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan.corpora import Corpus, corpora, planner

from streampipe.errors import ConfigError
from streampipe.plan.blend import Blend, BlendPhase, Share, resolve_round_tokens, weight_fraction

WEIGHTS = st.sampled_from([1e-6, 0.001, 0.1, 0.3, 0.5, 0.7, 1, 3, "1/3"])


def blend_of(sources, round_tokens, phases=()):
    """A blend of (weight, limit) sources; phases as (start, weights, round_tokens)."""
    shares = [Share(f"s{n}", limit) for n, (_, limit) in enumerate(sources)]
    first = BlendPhase(0, tuple(Fraction(weight) for weight, _ in sources), Fraction(round_tokens))
    later = [BlendPhase(start, tuple(map(Fraction, weights)), Fraction(tokens)) for start, weights, tokens in phases]
    return Blend(shares, [first, *later])


@given(st.lists(st.tuples(corpora(), WEIGHTS), min_size=1, max_size=4), st.integers(1, 6))
def test_after_any_round_each_source_is_within_one_frame_of_its_share(sources, rounds):
    plans = planner([c for c, _ in sources], weights=[w for _, w in sources])
    segment = plans.blend.segments[0]
    taken = [0] * len(sources)
    for number in range(rounds):
        for source, tokens in enumerate(plans.round(number).totals.taken_tokens.tolist()):
            taken[source] += tokens
        for source, weight in enumerate(segment.weights):
            due = segment.round_tokens * (number + 1) * weight
            assert abs(taken[source] - due) <= sources[source][0].largest_frame


@given(
    st.lists(st.tuples(st.integers(1, 10**13), st.integers(1, 10**6)), min_size=1, max_size=5), st.integers(0, 10**7)
)
def test_a_rounds_end_is_the_next_ones_start_to_the_token(sizes, number):
    weights = [Fraction(weight) for _, weight in sizes]
    tokens = resolve_round_tokens(weights, [tokens for tokens, _ in sizes], 64, 2**20, 8192)
    blend = blend_of([(weight, None) for weight in weights], tokens)
    before, here = blend.positions(number), blend.positions(number + 1)
    for weight, start, stop in zip(weights, before, here, strict=True):
        assert stop >= start
        assert abs(stop - (number + 1) * tokens * weight / sum(weights)) < 1


def test_epochs_end_with_a_round_where_sources_share_them():
    tokens = resolve_round_tokens([Fraction(7, 10)], [1_000_003], 64, 1024, 16)
    blend = blend_of([(1, None)], tokens)
    rounds = round(1_000_003 / tokens)
    assert blend.positions(rounds) == (1_000_003,)
    assert blend.positions(3 * rounds) == (3_000_009,)


def test_a_source_smaller_than_a_round_gives_whole_passes():
    assert resolve_round_tokens([Fraction(1)], [100], 4, 1000, 16) == 600  # at least 4 windows of 8 sequences of 16
    assert resolve_round_tokens([Fraction(1), Fraction(2)], [100, 200], 4, 1000, 16) == 600


def test_a_source_that_takes_no_part_decides_nothing_about_the_round():
    assert resolve_round_tokens([Fraction(1), Fraction(0)], [100, 7], 4, 1000, 16) == 600


def test_a_spent_source_leaves_its_weight_to_the_others():
    blend = blend_of([(1, 100), (1, 1000)], 80)
    assert [blend.positions(r) for r in range(4)] == [(0, 0), (40, 40), (80, 80), (100, 120)]
    assert blend.positions(4) == (100, 200), "from the next round on, b takes the whole round"
    assert blend.rounds == 3 + 11  # 880 tokens left, 80 a round
    assert blend.positions(blend.rounds) == (100, 1000)
    assert blend.positions(blend.rounds + 5) == (100, 1000)


def test_a_run_can_stop_with_the_first_source_that_is_spent():
    shares = [Share("a", 100, stops=True), Share("b", None)]
    blend = Blend(shares, [BlendPhase(0, (Fraction(1), Fraction(1)), Fraction(80))])
    assert blend.rounds == 3
    assert blend.positions(3) == (100, 120)


def test_a_run_with_one_unlimited_source_is_endless():
    assert blend_of([(1, 100), (1, None)], 80).rounds is None


def test_a_phase_begins_at_the_nearest_round_border_and_goes_on_from_each_position():
    blend = blend_of([(1, None), (1, None), (0, None)], 80, [(230, (3, 0, 1), 40), (330, (0, 1, 0), 10)])
    assert [segment.first_round for segment in blend.segments] == [0, 3, 5]
    assert blend.positions(3) == (120, 120, 0)
    assert blend.positions(4) == (150, 120, 10)
    assert blend.positions(5) == (180, 120, 20)
    assert blend.positions(6) == (180, 130, 20)
    assert [blend.segment(r).phase for r in (0, 2, 3, 4, 5, 100)] == [0, 0, 1, 1, 2, 2]


def test_a_phase_begins_early_when_nothing_is_left_before_it():
    blend = blend_of([(1, 100), (0, 50)], 80, [(10_000, (0, 1), 20)])
    assert blend.positions(2) == (100, 0)
    assert blend.positions(3) == (100, 20)
    assert blend.rounds == 2 + 3


@given(
    st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(1, 3000))), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 900), st.integers(0, 5), st.integers(1, 200)), max_size=3),
    st.integers(0, 30),
)
def test_a_blend_goes_on_from_any_segment_as_if_it_had_not_stopped(sources, phases, number):
    sources = [(1, None), *sources]
    starts = [sum(start for start, _, _ in phases[: n + 1]) for n in range(len(phases))]
    later = [
        (s, (weight, *(5 - w for w, _ in sources[1:])), t) for s, (_, weight, t) in zip(starts, phases, strict=True)
    ]
    later = [(s, (w[0] + 1, *w[1:]), t) for s, w, t in later]
    blend = blend_of(sources, 70, later)
    resumed = Blend(blend.shares, blend.phases, blend.segment(number))
    for ahead in range(10):
        assert resumed.positions(number + ahead) == blend.positions(number + ahead)
    assert resumed.rounds == blend.rounds


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
