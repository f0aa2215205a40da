"""Megatron's fill-in-the-middle, token for token, with its own draws: the worked examples that were run there."""

import numpy as np
import pytest

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


def test_a_window_of_three_keeps_its_length():
    assert len(window([1, 2, 3])) == 3
    assert window([1, 2, 3])[0] == PRE
