"""Randomness by name.

Every random choice of streampipe is a pure function of a scope (what it is for) and a counter (which one).
Only the raw 64-bit output of Philox is used, which numpy promises to keep; `Generator` methods are not.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ScopePart = int | str
_WORD = 2**64 - 1


def _philox_key(scope: tuple[ScopePart, ...]) -> int:
    """Hash a scope to the 128-bit key of Philox; `1` and `"1"` are different parts."""
    encoded = json.dumps(scope, separators=(",", ":")).encode()
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=16).digest(), "little")


def raw_words(count: int, *scope: ScopePart) -> NDArray[np.uint64]:
    """Return the first `count` random words of a scope: uint64 [count].

    Word `i` is the same whatever `count` is, so the counter is the position. One call costs about 10 µs plus 2 ns a
    word.
    """
    words = np.random.Philox(key=_philox_key(scope)).random_raw(count)
    return np.asarray(words, dtype=np.uint64)


def raw_words_of_each(
    counts: Sequence[int], places: Sequence[tuple[int, ...]], *scope: ScopePart
) -> NDArray[np.uint64]:
    """Return `raw_words(counts[i], *scope, *places[i])` for each i, one after the other: uint64 [sum of counts].

    Giving a generator another key takes 0.3 µs, making one 10, so one serves the whole call; likewise the hash of what
    all scopes begin with.
    """
    generator = np.random.Philox(key=0)
    inner = {"counter": [0, 0, 0, 0], "key": [0, 0]}
    state: Any = {**generator.state, "state": inner, "buffer": [0, 0, 0, 0]}  # lists are read faster than arrays
    head = hashlib.blake2b(json.dumps(scope, separators=(",", ":"))[:-1].encode(), digest_size=16)
    words = [np.empty(0, np.uint64)]
    for count, place in zip(counts, places, strict=True):
        scoped = head.copy()
        scoped.update((b",%d" * len(place) + b"]") % place)
        digest = int.from_bytes(scoped.digest(), "little")
        inner["key"] = [digest & _WORD, digest >> 64]
        generator.state = state
        words.append(generator.random_raw(count))
    return np.concatenate(words)


def keyed_permutation(count: int, *scope: ScopePart) -> NDArray[np.int64]:
    """Return a random order of `range(count)` that depends on the scope alone: int64 [count].

    A stable argsort of raw words, because `Generator.permutation` may change with a numpy release.
    """
    return stable_order(raw_words(count, *scope))


def stable_order(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the stable argsort of keys: int64, same length.

    Without ties every argsort is the stable one, and the default is three times as fast; two of 10^5 raw words are
    equal once in 10^9 times.
    """
    order = np.argsort(keys)
    ordered = keys[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.argsort(keys, kind="stable")
    return order.astype(np.int64)


def mixed_words(words: NDArray[np.uint64], counter: int) -> NDArray[np.uint64]:
    """Return one more random word of each word: uint64, same shape.

    For choices that belong to one document, whose word `raw_words` gave: SplitMix64's output function over the word
    and the counter, a few integer operations, where a scope of its own would cost 10 µs.
    """
    mixed = words + np.uint64((counter + 1) * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def coins(words: NDArray[np.uint64], rate: float) -> NDArray[np.bool_]:
    """Return which words fall to a rate: bool, same shape; none at 0, all at 1."""
    return (words >> np.uint64(11)) < np.uint64(round(rate * 2**53))


def mixed_word(word: int, counter: int) -> int:
    """Return what `mixed_words` gives for one word; for one, plain integers are faster than arrays."""
    mixed = (word + (counter + 1) * 0x9E3779B97F4A7C15) & _WORD
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WORD
    return mixed ^ mixed >> 31


def sorted_cuts(words: NDArray[np.uint64], most: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return two places within 0 and `most` for each word, uniform and independent, sorted: int64 [N, 2].

    Args:
        words: uint64 [N].
        most: int64 [N], below 2^31.
    """
    bounds = (most + 1).astype(np.uint64)
    mixed = mixed_words(words, 16)
    one, other = (
        (drawn * bounds >> np.uint64(32)).view(np.int64)
        for drawn in (mixed >> np.uint64(32), mixed & np.uint64(0xFFFFFFFF))
    )
    return np.column_stack([np.minimum(one, other), np.maximum(one, other)])


def sorted_cut(word: int, most: int, draw: int = 0) -> tuple[int, int]:
    """Return what `sorted_cuts` gives for one word; another pair for each further `draw`."""
    mixed = mixed_word(word, 16 + draw)
    one = (mixed >> 32) * (most + 1) >> 32
    other = (mixed & 0xFFFFFFFF) * (most + 1) >> 32
    return (one, other) if one <= other else (other, one)
