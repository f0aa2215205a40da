"""A conversation of many turns costs memory in proportion to its length, and becomes the ids that it always was."""

import functools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardtools_chat import chats
from shardtools_chat.chats import chat, renderer

from shardtools.masks import tokens
from shardtools.masks.tokens import tokens_in
from shardtools.schemas import Conversation, Message
from shardtools.text.cutting import cut_long_text

WORDS = ["the loader", " reads ", "\n", "x1y2", "中文。", "  \n\n", "yes", "_" * 30, "<|im_end|>", "é", "user\n", "-"]
RENDERERS = {
    (kind, name): renderer(make(), name)
    for kind, make in (("toy", chats.toy), ("merging", chats.merging))
    for name in ("chatml", "llama-3")
}


@pytest.mark.parametrize("name", ["chatml", "llama-3"])
@pytest.mark.parametrize("kind", ["toy", "merging"])
@settings(max_examples=20)
@given(
    answers=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=200).map("".join), min_size=2, max_size=9)
)
def test_a_long_conversation_encoded_in_pieces_gives_the_tokens_and_masks_of_the_whole(kind, name, answers):
    made = RENDERERS[kind, name]
    asked = Conversation(tuple(m for answer in answers for m in (Message("user", "q"), Message("assistant", answer))))
    (whole,) = made.conversation(asked)
    counts = []

    def cut(text, encode):
        counts.append(len(pieces := cut_long_text(text, encode, limit=1_000)))
        assert "".join(pieces) == text
        return pieces

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "cut_long_text", cut)
        (pieced,) = made.conversation(asked)
    assert counts[0] > len(whole.text) // 2_000
    assert np.array_equal(pieced.tokens, whole.tokens)
    assert np.array_equal(pieced.loss, whole.loss)
    assert (pieced.text, pieced.trained) == (whole.text, whole.trained)


def test_control_tokens_are_never_cut(merging):
    made = renderer(merging, "chatml")
    asked = chat(*[turn for _ in range(300) for turn in (("u", ""), ("a", "_"))])
    (whole,) = made.conversation(asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "cut_long_text", functools.partial(cut_long_text, limit=600))
        (pieced,) = made.conversation(asked)
    assert np.array_equal(pieced.tokens, whole.tokens)


def test_rendering_many_turns_does_not_keep_the_text_before_each(merging):
    made = renderer(merging, "chatml")
    asked = chat(*[turn for i in range(100) for turn in (("u", f"q{i}"), ("a", f"{i:020d} " * 500))])
    size = sum(len(message.content) for message in asked.messages)
    tracemalloc.start()
    try:
        made.scripts(asked)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 * size, "a hundred turns hold fifty times the text before them"


@given(
    cuts=st.lists(st.integers(0, 40), max_size=12, unique=True).map(sorted),
    offsets=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=30),
)
def test_tokens_in_spans_are_those_that_lie_whole_in_one(cuts, offsets):
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    places = np.array([(start, start + length) for start, length in offsets], np.int64).reshape(-1, 2)
    wanted = [any(a <= start < end <= b for a, b in spans) for start, end in places.tolist()]
    assert tokens_in(spans, places).tolist() == wanted
