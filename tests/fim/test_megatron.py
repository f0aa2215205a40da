"""Megatron's fill-in-the-middle, token for token, with its own draws: the worked examples that were run there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampipe.assemble.fim_cuts import Counts
from streampipe.assemble.megatron_fim import MegatronFim

EOD, PRE, MID, SUF, PAD, SEP, BOS = 0, 30, 31, 32, 33, 34, 35
LETTERS = {letter: number + 1 for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}


class LegacyDraws:
    """numpy's legacy generator, one for a data set, as Megatron draws from it."""

    def __init__(self, seed=1234):
        self.random = np.random.RandomState(seed)

    def hit(self, rate):
        return bool(self.random.binomial(1, rate))

    def two(self, most):
        return tuple(self.random.randint(low=0, high=most + 1, size=2).tolist())


class Letters:
    def __init__(self, start=()):
        self.start = list(start)

    def decode(self, ids):
        return "".join(chr(ord("a") + token - 1) for token in ids if 1 <= token <= 26)

    def encode(self, text):
        return [*self.start, *(LETTERS[letter] for letter in text)]


def window(ids, codec=None, **options):
    fim = MegatronFim(PRE, MID, SUF, PAD, EOD, **({"rate": 1.0, "spm_rate": 0.0} | options))
    return fim.window(ids, LegacyDraws(), codec or Letters())


A_TO_M = list(range(1, 14))
FRAGMENTS = [1, 2, 3, 4, 5, 34, 6, 7, 8, 9, 10, 11, 34, 12, 13]


@pytest.mark.parametrize(
    ("ids", "options", "expected"),
    [
        pytest.param(A_TO_M, {}, [30, 1, 2, 3, 4, 5, 32, 7, 8, 9, 10, 11, 12], id="E1 PSM"),
        pytest.param(A_TO_M, {"spm_rate": 1.0}, [30, 32, 7, 8, 9, 10, 11, 12, 13, 31, 1, 2, 3], id="E2 SPM"),
        pytest.param(
            [1, 2, 3, 4, 5, 0, 6, 7, 8, 9, 10, 11, 12],
            {},
            [30, 1, 2, 3, 4, 32, 31, 5, 0, 30, 6, 32, 31],
            id="E3 segments",
        ),
        pytest.param(
            [1, 2, 3, 4, 5, 0, 0, 6, 7, 8, 9, 10, 11],
            {"rate": 0.0},
            [1, 2, 3, 4, 5, 0, 6, 7, 8, 9, 10, 11, 33],
            id="E4 rate 0 is not the identity",
        ),
        pytest.param(
            [0, 0, 0, 0, 0, 0, 1, 2, 3, 0], {}, [30, 1, 32, 3, 31, 2, 0, 30, 32, 31], id="E5 empty last segment"
        ),
        pytest.param(
            FRAGMENTS,
            {"split": SEP, "fragment_rate": 1.0},
            [30, 1, 2, 3, 4, 32, 5, 31, 34, 30, 6, 32, 8, 9, 10],
            id="E6 fragments",
        ),
        pytest.param(
            [1, 2, 3, 4, 5, 34, 34, 6, 7, 8, 9, 10, 11, 34],
            {"split": SEP, "fragment_rate": 0.0},
            [1, 2, 3, 4, 5, 34, 6, 7, 8, 9, 10, 11, 34, 33],
            id="E6 fragment rate 0",
        ),
        pytest.param(
            [*range(1, 6), 0, *range(6, 11), 0, *range(11, 16), 0, *range(16, 21)],
            {"rate": 0.5, "spm_rate": 0.5},
            [1, 2, 3, 4, 5, 0, 30, 32, 10, 31, 6, 7, 8, 9, 0, 30, 11, 32, 13, 14, 15, 31, 12],
            id="E8 mixed",
        ),
        pytest.param(A_TO_M, {"no_prefix": "abc"}, A_TO_M, id="E9 exempt"),
        pytest.param(A_TO_M, {"no_prefix": ""}, A_TO_M, id="E9 everything is exempt"),
    ],
)
def test_a_worked_example_comes_out_token_for_token(ids, options, expected):
    assert window(ids, **options) == expected


def test_a_tokenizer_that_prepends_a_start_token_does_so_to_every_part():
    assert window(A_TO_M, Letters([BOS])) == [30, 35, 1, 2, 3, 4, 5, 32, 35, 7, 8, 9, 10]


class Told:
    """Draws that are told, and what was asked for."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def hit(self, rate):
        self.asked.append(rate)
        return self.answers.pop(0)

    def two(self, most):
        self.asked.append(f"two of {most}")
        return self.answers.pop(0)


def told(ids, *answers, codec=None, **options):
    draws = Told(*answers)
    made = MegatronFim(PRE, MID, SUF, PAD, EOD, **options).window(ids, draws, codec or Letters())
    assert not draws.answers
    return made, draws.asked


def test_the_order_of_draws_is_hit_then_two_cuts_then_spm():
    made, asked = told([1, 2, 3, 4, *[EOD] * 4], True, (3, 1), False, False, rate=0.25, spm_rate=0.75)
    assert asked == [0.25, "two of 4", 0.75, 0.25]  # the last segment is empty, and drawn for too
    assert made == [PRE, 1, SUF, 4, MID, 2, 3, EOD]


def test_a_miss_draws_nothing_more_and_changes_nothing():
    assert told([1, 2, 30, 3], False, rate=0.5) == ([1, 2, 30, 3], [0.5])


def test_an_exempt_text_draws_nothing_more():
    assert told([1, 2, 3], True, no_prefix="ab") == ([1, 2, 3], [0.5])


def test_special_tokens_inside_a_segment_are_lost_when_it_is_hit():
    made, _ = told([BOS, 1, 2, BOS, 3, 4, 5, 6], True, (1, 2), False)
    assert made == [PRE, 1, SUF, 3, 4, 5, 6, MID]
    made, _ = told([BOS, 1, 2, BOS], False)
    assert made == [BOS, 1, 2, BOS]


def test_both_cuts_lie_anywhere_up_to_the_end_of_the_text():
    for cuts, expected in (
        ((0, 0), [PRE, SUF, 1, MID]),
        ((1, 1), [PRE, 1, SUF, MID]),
        ((1, 0), [PRE, SUF, MID, 1]),
    ):
        made, asked = told([1, BOS, BOS, BOS], True, cuts, False)
        assert asked[1] == "two of 1"
        assert made == expected


def test_segments_that_are_hit_push_the_last_documents_out_of_the_window():
    ids = [1, EOD, 2, EOD, 3, EOD, 4, 5]
    made, _ = told(ids, *(True, (0, 1), False) * 3, True, (0, 2), False)
    assert made == [PRE, SUF, MID, 1, EOD, PRE, SUF, MID]


def test_the_last_segment_is_permuted_even_when_it_is_empty():
    made, asked = told([1, 2, 3, 4, EOD], False, True, (0, 0), True)
    assert asked[2] == "two of 0"
    assert made == [1, 2, 3, 4, EOD]  # its three sentinels have no room


def test_fragments_of_a_segment_that_is_missed_stay_as_they_are():
    ids = [SEP, 1, SEP, SEP, 2]
    assert told(ids, False, split=SEP, fragment_rate=1.0) == (ids, [0.5])


def test_empty_fragments_lose_their_separator_and_the_last_is_always_drawn_for():
    made, asked = told([SEP, 1, SEP, SEP, 2, SEP], True, False, False, False, split=SEP, fragment_rate=0.3)
    assert asked == [0.5, 0.3, 0.3, 0.3]
    assert made == [1, SEP, 2, SEP, PAD, PAD]


def test_a_segment_without_a_separator_ignores_the_rate_of_fragments():
    assert told([1, 2], False, split=SEP, fragment_rate=0.3) == ([1, 2], [0.5])


def test_what_was_done_is_counted_where_segments_begin():
    fim = MegatronFim(PRE, MID, SUF, PAD, EOD, split=SEP, fragment_rate=1.0, no_prefix="z")
    counts = {}
    answers = (True, (0, 1), True), (True, True, (0, 0), False, True), (False,), (False,)
    draws = Told(*(answer for of_segment in answers for answer in of_segment))
    fim.window(
        [1, EOD, 2, SEP, 26, EOD, EOD, 3, SEP, SEP, 4, EOD],
        draws,
        Letters(),
        lambda at: counts.setdefault(at, Counts()),
    )
    assert counts == {
        0: Counts(pieces=1, transformed=1, spm=1, whole=1),
        2: Counts(pieces=2, transformed=1, whole=1, exempt=1),
        7: Counts(pieces=2),
        12: Counts(pieces=1),
    }


IDS = st.lists(st.sampled_from([EOD, SEP, BOS, 1, 2, 3, 26]), min_size=1, max_size=40)


@given(ids=IDS, seed=st.integers(0, 99), start=st.booleans(), rate=st.sampled_from([0.0, 0.5, 1.0]))
def test_every_window_keeps_its_length(ids, seed, start, rate):
    fim = MegatronFim(PRE, MID, SUF, PAD, EOD, rate=rate, split=SEP, fragment_rate=0.5)
    made = fim.window(ids, LegacyDraws(seed), Letters([BOS] if start else []))
    assert len(made) == len(ids)
    if rate == 0:
        kept = [id_ for place, id_ in enumerate(ids) if id_ != EOD or (place and ids[place - 1] != EOD)]
        assert made == kept + [PAD] * (len(ids) - len(kept))


def test_of_a_window_of_three_only_its_beginning_stays():
    assert told([1, 2, 3], True, (1, 2), False)[0] == [PRE, 1, SUF]
    assert told([1, 2, 3], True, (1, 2), True)[0] == [PRE, SUF, 3]
