"""Balance by cost: the same sequences in the same columns, in an order in which rows cost alike, shares stay even."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan.corpora import corpora, lognormal_corpus, pieces_of, planner

from streampipe import ConfigError, config_from
from streampipe.plan.balance import Rows, balanced_order, doubts, imbalance_of
from streampipe.plan.plan_config import PlanConfig
from streampipe.plan.schedule import Place, Schedule, rows_of_rank

EVEN = st.sampled_from([1, 2, 4, 16, 65_536])


def columns_of(sequences, columns):
    return np.sort(np.arange(sequences) % columns)


def sequences_of(plan):
    pieces, starts = pieces_of(plan), plan.sequence_start.tolist()
    return [tuple(pieces[a:b]) for a, b in pairwise(starts)]


@given(st.integers(0, 90), st.integers(1, 9), st.integers(0, 10_000), EVEN, st.randoms(use_true_random=False))
def test_every_sequence_keeps_its_column_and_every_place_is_taken_once(sequences, columns, first, even, random):
    column = columns_of(sequences, columns)
    cost = np.array([random.randrange(5) for _ in range(sequences)], np.int64)
    place = balanced_order(column, cost, Rows(columns, first, even), 1, 0)
    assert sorted(place.tolist()) == list(range(sequences))
    assert np.array_equal(place % columns, column)


@given(
    st.lists(corpora(longest=40), min_size=1, max_size=2), st.integers(0, 100), st.sampled_from(["best_fit", "none"])
)
def test_where_a_round_begins_in_the_run_only_permutes_its_sequences_within_their_columns(sources, first, policy):
    plans = planner(sources, even_rows=4, policy=policy)
    one, other = plans.round(0), plans.round(0, first=first)
    for column in range(one.windows):
        assert sorted(sequences_of(one)[column :: one.windows]) == sorted(sequences_of(other)[column :: one.windows])
    assert one.totals.taken_tokens.tolist() == other.totals.taken_tokens.tolist()


@pytest.mark.parametrize("first", [0, 5, 64, 1000])
@pytest.mark.parametrize("even", [2, 4, 8])
def test_of_consecutive_rows_one_is_of_the_dearest_one_of_the_next_and_so_on(first, even):
    cost = np.arange(64)[::-1].copy()
    place = balanced_order(np.zeros(64, np.int64), cost, Rows(1, first, even), 1, 3)
    quantile = np.empty(64, np.int64)
    quantile[place] = np.arange(64) * even // 64
    for begin in range(64 - even):
        # A round's rows are not a power of two from where it begins, so a border may be off by one.
        assert len(set(quantile[begin : begin + even].tolist())) >= even - 1
    whole = quantile[-first % even :]
    aligned = whole[: len(whole) // even * even].reshape(-1, even)
    assert (np.sort(aligned, axis=1) == np.arange(even)).mean() > 0.9


def test_a_row_of_the_run_holds_like_costs_though_the_round_begins_in_the_middle_of_one():
    columns, height, first = 8, 32, 1003
    cost = np.tile(np.arange(height), columns)
    place = balanced_order(columns_of(columns * height, columns), cost, Rows(columns, first, 65_536), 1, 0)
    in_order = np.empty(columns * height, np.int64)
    in_order[place] = cost
    rows = in_order[-first % columns :][: columns * (height - 1)].reshape(-1, columns)
    # Columns with one row more at an end are one rank off at most.
    assert (rows.max(axis=1) - rows.min(axis=1)).max() <= 1


def steps_of(plans, global_batch_size, steps, windows):
    schedule = Schedule(plans, Place(0, 0, 0, 0, np.zeros((2, 5), np.int64)))
    costs, shares = [], []
    for _ in range(steps):
        step = schedule.next(global_batch_size)
        rows = [rows_of_rank([step], windows, rank)[0] for rank in range(windows)]
        costs.append(step.costs()[np.stack(rows)])
        taken = (step.after.counts - step.before.counts)[:, 0]
        shares.append(taken[1] / taken.sum())
    return imbalance_of(np.stack(costs)), np.std(shares)


def test_ranks_finish_together_and_shares_stay_even():
    """The acceptance numbers, on a smaller scale: 4 rows a step, full documents and a source of long ones."""
    sources = [lognormal_corpus(1, 4, 6000), lognormal_corpus(2, 4, 20, mean=40_000, sigma=1.0)]
    settings = {"weights": [0.94, 0.06], "seq_length": 8192, "windows": 16, "window_tokens": 2**20, "shuffle": 4}
    random, of_random = steps_of(planner(sources, **settings), 64, 60, 16)
    ours, of_ours = steps_of(planner(sources, even_rows=4, **settings), 64, 60, 16)
    assert random.lockstep > 1.1
    assert ours.step <= ours.lockstep <= 1.04
    assert of_ours <= 1.5 * of_random


def test_imbalance_is_of_the_dearest_rank_over_the_mean():
    costs = np.array([[[4, 2], [3, 3]], [[6, 0], [3, 3]]])
    found = imbalance_of(costs)
    assert (found.step, found.lockstep) == ((6 + 6) / 12, (4 + 3 + 6 + 3) / 12)
    assert imbalance_of(np.zeros((2, 2, 2), np.int64)).step == 1


def test_it_says_when_balance_does_not_pay():
    dear_and_cheap = np.where(np.arange(640) % 5 == 0, 50, 10)
    cost = dear_and_cheap[balanced_order(columns_of(640, 8), dear_and_cheap, Rows(8, 0, 4), 1, 0).argsort()]
    assert doubts(cost, Rows(8, 0, 4), 32, 8) == []
    assert "not multiples" in doubts(cost, Rows(8, 0, 4), 36, 8)[0]
    assert "not multiples" in doubts(cost, Rows(8, 0, 4), 32, 3)[0]
    assert "swings from step to step" in doubts(cost, Rows(8, 0, 4), 8, 8)[0]
    assert doubts(cost[:24], Rows(8, 0, 4), 32, 8) == [], "a round of fewer rows than a step says nothing"
    assert "cost too much alike" in doubts(np.full(640, 7), Rows(8, 0, 4), 32, 8)[0]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"balance": True}, r"\$\.plan\.balance: must be `cost` or `off`"),
        ({"balance": "size"}, r"\$\.plan\.balance: must be one of cost, off, but got 'size'"),
        ({"balance": "cost", "even_rows": 6}, r"\$\.plan\.even_rows: must be a power of two"),
        ({"even_rows": 4}, r"\$\.plan\.even_rows: has a meaning with `balance: cost` only"),
        ({"model_width": 0}, r"\$\.plan\.model_width: must be at least 1"),
    ],
)
def test_settings_without_meaning_are_refused(plan, message):
    with pytest.raises(ConfigError, match=message):
        config_from({"seq_length": 8, "sources": [{"name": "mock", "mock": {}}], "plan": plan})


def test_balance_and_the_order_of_the_manifest_contradict_each_other():
    raw = {"seq_length": 8, "sources": [{"name": "mock", "mock": {}}], "plan": {"balance": "cost"}, "shuffle": False}
    with pytest.raises(ConfigError, match=r"\$\.plan\.balance: .* shuffle is false"):
        config_from(raw)


def test_the_cost_of_a_token_follows_the_width_and_a_bare_off_is_off():
    assert PlanConfig().cost_of_token == 24_576
    assert PlanConfig(model_width=1024).cost_of_token == 6144
    assert PlanConfig(balance=False).order_name(8192) == "off"
    assert PlanConfig(balance="cost").order_name(8192) == "cost/4"
    assert PlanConfig(balance="cost", model_width=1024).order_name(131_072) == "cost/16/1024"
