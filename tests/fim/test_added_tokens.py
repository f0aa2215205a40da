"""Added tokens of any kind: every cut is as if encoded alone, or the tokenizer encodes whole texts."""

import json
from array import array
from functools import cache
from itertools import combinations_with_replacement
from unittest import mock

import pytest
from fim.tokenizers_of import CL100K, byte_level, cl100k, split_by
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from streampipe.assemble.fim_cuts import Counts, Text
from streampipe.assemble.fim_text import TextCutter
from streampipe.encoder import open_encoder

NFC = {"type": "NFC"}
CONTENT = st.text("ab1 .'<>\u037e\u212a", min_size=1, max_size=4)
ADDED = st.lists(st.tuples(CONTENT, st.booleans(), st.booleans()), min_size=1, max_size=3, unique_by=lambda own: own[0])


def with_added(content, tokens):
    """Return a tokenizer with more added tokens: content, whether special, whether sought in normalized texts."""
    content = json.loads(content)
    taken = {token["content"] for token in content["added_tokens"]} | set(content["model"]["vocab"])
    free = 1 + max([*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"])])
    plain = {"single_word": False, "lstrip": False, "rstrip": False}
    for text, special, normalized in tokens:
        if text not in taken:
            content["added_tokens"].append(
                {"id": free, "content": text, "special": special, "normalized": normalized, **plain}
            )
            free += 1
    return content


def opened(content):
    """Return the encoder, and what the library gives for a text."""
    data = json.dumps(content).encode()
    special = {token["content"]: token["id"] for token in content["added_tokens"] if token["special"]}
    library = Tokenizer.from_str(json.dumps(content | {"post_processor": None}))
    library.encode_special_tokens = True
    return open_encoder(data, special, "$"), lambda text: library.encode(text, add_special_tokens=False).ids


def assert_every_cut_is_as_alone(content, text):
    own, alone = opened(content)
    if own.table is None or not (ids := alone(text)):
        return
    assert own.encode(text, first=False) == ids
    whole = b"".join(own.table.pieces[i] for i in ids).decode()
    for pair in combinations_with_replacement(range(len(whole) + 1), 2):
        with mock.patch("streampipe.assemble.fim_text.sorted_cut", lambda *_, pair=pair: pair):
            counts, drawn = Counts(), Text(memoryview(array("I", ids)), False, 0)
            parts = TextCutter(own, "character", None, "I").parts(drawn, 999, counts)
        if not counts.fallbacks:
            prefix, suffix, middle = ([i for chunk in part for i in chunk] for part in parts)
            one, other = pair
            assert [prefix, middle, suffix] == [alone(t) for t in (whole[:one], whole[one:other], whole[other:])], pair


@cache
def base(normalizer):
    return json.dumps(json.loads(byte_level()) | {"normalizer": NFC if normalizer else None}).encode()


@example([("\u212a", False, True)], True, "K")
@example([("ab", False, False), ("b'", False, False)], False, "ab''")
@example([("1a", False, False), ("a'", False, False)], False, "x1a''")
@example([("<a b>", True, False), ("a b", False, False)], False, "<a b>")
@example([("b ab", True, False), (" ", False, False)], False, "b ab")
@example([("<a b>", True, False), ("b> c", False, False)], False, "<a b> c.")
@example([("a b", False, True), ("bz", False, False)], False, "a bz")
@example([("ab", False, True), ("b\u037e", False, True)], True, "ab;")
@given(tokens=ADDED, normalizer=st.booleans(), text=st.text("ab1 .'<>;K", max_size=7))
def test_every_cut_among_added_tokens_is_as_alone(tokens, normalizer, text):
    assert_every_cut_is_as_alone(with_added(base(normalizer), tokens), text)


@pytest.mark.parametrize(
    "tokens",
    [
        [("<tool_call>", False, False), ("</tool_call>", False, False), ("<|im_end|>", True, False)],
        [("<a b>", False, True), ("<c d>", False, True)],
        [("    ", False, True), ("\t\t", False, True)],
    ],
)
def test_tokens_that_do_not_meet_leave_windows_as_they_are(tokens):
    assert opened(with_added(byte_level(), tokens))[0].table is not None


def test_words_after_byte_letters_are_no_words_of_a_text():
    """A split behind `ByteLevel` sees its letters, where a space is one."""
    content = json.loads(split_by(CL100K))
    content["pre_tokenizer"]["pretokenizers"].reverse()
    own, alone = opened(content)
    assert own.table is None
    assert own.encode("ab  \r x", first=False) == alone("ab  \r x")


def test_ids_that_the_library_gives_otherwise_than_the_file_says_are_not_believed():
    content = with_added(cl100k(), [("zq", False, False)])
    content["added_tokens"][-1]["id"] += 5
    own, alone = opened(content)
    assert own.table is None
    assert own.text_of(alone("a zq b"), first=False) == "a zq b"
