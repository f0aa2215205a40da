"""Property: what the trained tokens decode to is what the assistant said, and the token that ends it; nothing else."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardtools_chat import chats
from shardtools_chat.chats import renderer, trained_tokens

from shardtools.masks import Renderer, RenderOptions
from shardtools.masks.quoting import Quoting
from shardtools.schemas import Conversation, Message, Preference
from shardtools.templates import ChatTemplate

ENDINGS = {
    "chatml": "<|im_end|>\n",
    "llama-3": "<|eot_id|>",
    "internlm2": "<|im_end|>\n",
    "alpaca": "</s>",
    "plain": "</s>",
}
PIECES = [
    *chats.CONTROL,
    *("\n", "\n\n", " ", "  ", "\t", "\r\n", "\u3000", "<", "|", "im_end|>", "<|im_", "|>"),
    *("user", "assistant", "### Response:\n", "### Instruction:\n", "yes", "Yes, yes.", "0"),
    *("你好", "世界。", "😀", "👩\u200d👩\u200d👧", "e\u0301", "é", "\u2028", "\x00", "\ufeff"),
]
words = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=6).map("".join)
said = words.filter(lambda text: text.encode("utf-8", "replace").decode() == text and not _has_noncharacter(text))


def _has_noncharacter(text: str) -> bool:
    return any("\ufdd0" <= letter <= "\ufdef" for letter in text)


@st.composite
def dialogs(draw) -> tuple[Message, ...]:
    """Turns of users and assistants, some of which repeat another turn's words."""
    pool = draw(st.lists(said, min_size=1, max_size=4))
    texts = st.sampled_from(pool) | said
    messages = [Message("system", draw(texts))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append(Message("user", draw(texts)))
        train = draw(st.sampled_from([None, None, None, False]))
        messages.append(Message("assistant", draw(texts.filter(bool)), train=train))
    messages.append(Message("user", draw(texts)))
    messages.append(Message("assistant", draw(texts.filter(bool))))
    return tuple(messages)


RENDERERS = {
    (kind, name): renderer(make(), name)
    for kind, make in (("toy", chats.toy), ("merging", chats.merging))
    for name in ENDINGS
}


def runs(answers: list[str]) -> str:
    """Turns of a template that writes nothing in between are one trained run; compare them joined."""
    return "".join(answers)


@pytest.mark.parametrize("name", ENDINGS)
@pytest.mark.parametrize("kind", ["toy", "merging"])
@given(messages=dialogs())
def test_the_trained_tokens_are_what_the_assistant_says_and_its_end(kind, name, messages):
    made = RENDERERS[kind, name]
    (document,) = made.conversation(Conversation(messages))
    expected = [m.content + ENDINGS[name] for m in messages if m.role == "assistant" and m.train is None]
    assert runs(trained_tokens(made, document)) == runs(expected)
    assert made.tokenizer.decode(document.tokens) == document.text
    assert document.text.count("<s>") == 1 + sum(m.content.count("<s>") for m in messages)
    assert document.tokens[0] == made.tokenizer._tokenizer.token_to_id("<s>")
    assert made.tokenizer._tokenizer.token_to_id("<s>") not in document.tokens[1:]


@pytest.mark.parametrize("name", ["chatml", "llama-3", "internlm2"])
@given(messages=dialogs())
def test_quoted_control_tokens_stay_text_and_the_templates_own_are_ids(name, messages):
    made = RENDERERS["merging", name]
    (document,) = made.conversation(Conversation(messages))
    ids = {token: made.tokenizer._tokenizer.token_to_id(token) for token in chats.CONTROL}
    counted = {token: int((document.tokens == i).sum()) for token, i in ids.items() if (document.tokens == i).any()}
    turns = len(messages)
    assert (
        counted
        == {
            "chatml": {"<s>": 1, "<|im_start|>": turns, "<|im_end|>": turns},
            "internlm2": {"<s>": 1, "<|im_start|>": turns, "<|im_end|>": turns},
            "llama-3": {"<s>": 1, "<|start_header_id|>": turns, "<|end_header_id|>": turns, "<|eot_id|>": turns},
        }[name]
    )


@given(text=said)
def test_marks_break_every_quoted_token_and_can_be_taken_out_again(text):
    quoted = Quoting(chats.CONTROL).quoted(text)
    assert not any(token in quoted for token in chats.CONTROL)
    assert quoted.replace("\ufdd0", "") == text


@given(messages=dialogs(), other=said.filter(bool))
def test_both_sides_of_a_pair_share_their_prompt_and_train_their_answer_only(messages, other):
    made = RENDERERS["merging", "chatml"]
    *prompt, answer = messages
    if other == answer.content:
        other += "x"
    chosen, rejected = made.preference(Preference(tuple(prompt), (answer,), (Message("assistant", other),)))
    shared = chosen.prompt_tokens
    assert chosen.tokens[:shared].tolist() == rejected.tokens[:shared].tolist()
    assert trained_tokens(made, chosen) == [answer.content + "<|im_end|>\n"]
    assert trained_tokens(made, rejected) == [other + "<|im_end|>\n"]


@settings(max_examples=25)
@given(messages=dialogs())
def test_a_generation_block_and_prefixes_give_the_same_tokens(messages):
    made = renderer(chats.merging(), "chatml", newline=False)
    source = (
        "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    )
    tagged = Renderer(chats.merging(), ChatTemplate("tagged", source), RenderOptions())
    (one,), (two,) = made.conversation(Conversation(messages)), tagged.conversation(Conversation(messages))
    assert one.tokens.tolist() == two.tokens.tolist()
    assert one.loss.tolist() == two.loss.tolist()


@pytest.fixture(scope="session")
def qwen3_chatml(qwen3) -> Renderer:
    return renderer(qwen3, "chatml")


@settings(max_examples=30)
@given(messages=dialogs())
def test_it_holds_with_qwen3_tokens_too(qwen3_chatml, messages):
    (document,) = qwen3_chatml.conversation(Conversation(messages))
    expected = [
        unicodedata.normalize("NFC", m.content) + "<|im_end|>\n"
        for m in messages
        if m.role == "assistant" and m.train is None
    ]  # Qwen's tokenizer normalises
    assert trained_tokens(qwen3_chatml, document) == expected


def test_parsing_quoted_tokens_is_a_choice(toy):
    made = renderer(toy, "chatml", parse_special=True)
    (document,) = made.conversation(chats.chat(("u", "a<|im_end|>b"), ("a", "A")))
    end = made.tokenizer._tokenizer.token_to_id("<|im_end|>")
    assert int((document.tokens == end).sum()) == 3
