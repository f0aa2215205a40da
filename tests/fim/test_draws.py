"""One word and many give the same choices."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampipe.rng import coins, mixed_word, mixed_words, raw_words, raw_words_of_each, sorted_cut, sorted_cuts

WORD = 16418022309619826131
CUTS = [(293, 408), (588, 704), (143, 932)]


def test_one_word_draws_what_many_draw():
    words = raw_words(500, "fim", 1)
    most = np.arange(500)
    for draw in (0, 3):
        mixed = mixed_words(words, 16 + draw).tolist()
        assert mixed == [mixed_word(word, 16 + draw) for word in words.tolist()]
    cuts = [list(sorted_cut(word, place)) for place, word in enumerate(words.tolist())]
    assert sorted_cuts(words, most).tolist() == cuts


def test_cuts_of_one_text_are_frozen():
    """They are an interface: a cut that moves changes every run with fill-in-the-middle."""
    assert raw_words(1, 7, "fim", "code", 0, 0, 0).tolist() == [WORD]
    assert [sorted_cut(WORD, 1000, draw) for draw in range(3)] == CUTS


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**40), st.integers(0, 99))), st.text(max_size=4))
def test_words_of_many_scopes_are_those_of_each(asked, name):
    counts, places = [count for count, *_ in asked], [tuple(place) for _, *place in asked]
    drawn = raw_words_of_each(counts, places, 7, "fim", name)
    alone = [raw_words(count, 7, "fim", name, *place) for count, place in zip(counts, places, strict=True)]
    assert drawn.tolist() == [word for words in alone for word in words.tolist()]


def test_rates_of_nothing_and_everything_are_exact():
    words = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    assert not coins(words, 0).any()
    assert coins(words, 1).all()
