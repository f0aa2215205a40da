"""The worked examples of seed systems, with a tokenizer of one token a letter. ⟦ ⟧ enclose what is trained."""

import numpy as np
import pytest
from shardtools_chat.chats import chat, decoded_marked, renderer

from shardtools.masks import Renderer, RenderError, RenderOptions
from shardtools.schemas import Message, Preference, RowError, ToolCall, detect_schema
from shardtools.templates import ChatTemplate


def ftdp(toy, *turns: dict, **options):
    made = renderer(toy, "internlm2", **options)
    (document,) = made.conversation(detect_schema(["[]"]).read(list(turns)))
    return decoded_marked(made, document), document


def turn(role: str, content: str, **rest) -> dict:
    return {"role": role, "content": content, **rest}


def test_w1_a_system_a_question_and_an_answer(toy):
    text, document = ftdp(toy, turn("system", "S"), turn("user", "Q"), turn("assistant", "A"))
    assert text == (
        "<s><|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n⟦A<|im_end|>\n⟧"
    )
    assert len(document.tokens) == 35
    assert document.loss.dtype == np.int32
    assert document.loss.tolist() == [[32, 35]]


def test_w2_a_tool_call_is_part_of_the_assistant_turn(toy):
    text, document = ftdp(
        toy,
        turn("user", "Q"),
        turn("assistant", "T"),
        turn("tool", "p()", name="interpreter"),
        turn("environment", "9", name="interpreter"),
        turn("assistant", "A"),
    )
    assert text == (
        "<s><|im_start|>user\nQ<|im_end|>\n"
        "<|im_start|>assistant\n⟦T<|action_start|><|interpreter|>\np()<|action_end|>\n<|im_end|>\n⟧"
        "<|im_start|>environment name=<|interpreter|>\n9<|im_end|>\n<|im_start|>assistant\n⟦A<|im_end|>\n⟧"
    )
    assert len(document.tokens) == 69


def test_w3_a_message_with_loss_false_keeps_its_end_untrained_too(toy):
    text, document = ftdp(
        toy, turn("user", "Q"), turn("assistant", "A", loss=False), turn("user", "R"), turn("assistant", "B")
    )
    assert "A<|im_end|>\n<|im_start|>user" in text
    assert text.endswith("<|im_start|>assistant\n⟦B<|im_end|>\n⟧")
    assert text.count("⟦") == 1
    assert len(document.tokens) == 47


def test_w4_a_thought_and_a_call_open_an_assistant_turn(toy):
    text, document = ftdp(toy, turn("user", "Q"), turn("thought", "H"), turn("tool", "{}", name="plugin"))
    assert text.endswith("assistant\n⟦H<|action_start|><|plugin|>\n{}<|action_end|>\n<|im_end|>\n⟧")
    assert len(document.tokens) == 31


def test_a_user_named_like_a_tool_gets_no_control_token(toy):
    text, _ = ftdp(toy, turn("user", "Q", name="plugin"), turn("assistant", "A"))
    assert "<|im_start|>user name=plugin\n" in text


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([turn("tool", "x"), turn("assistant", "A")], "bad_tool_call"),
        ([turn("user", "Q"), turn("knowledge", "x")], "unknown_speaker"),
        ([turn("user", "Q", loss=True), turn("assistant", "A")], "train_on_others"),
        ([turn("assistant", "A"), turn("thought", "x", loss=False)], "conflict"),
        ([turn("tool", "x", name="f"), turn("thought", "x")], "unsupported_order"),
        ([], "empty"),
    ],
)
def test_dialogs_that_lose_something_are_refused_by_reason(turns, reason):
    with pytest.raises(RowError) as caught:
        detect_schema(["[]"]).read(turns)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("row", "user"),
    [
        ({"instruction": "I", "input": "", "output": "O"}, "I"),
        ({"instruction": "I", "input": "X", "output": "O"}, "I\n\nX"),
        ({"instruction": "I", "context": "X", "response": "O"}, "I\n\nX"),
    ],
)
def test_w11_an_alpaca_row_is_one_question_with_its_context_behind_a_blank_line(toy, row, user):
    template = ChatTemplate.load("alpaca", tokens={"answer_end": "\n</s>"})
    made = renderer(toy, template)
    (document,) = made.conversation(detect_schema(row).read(row))
    expected = f"<s>### Instruction:\n{user}\n\n### Response:\n⟦O\n</s>⟧"
    assert decoded_marked(made, document) == expected


def test_w11_an_answer_that_says_there_is_none_drops_the_row():
    row = {"instruction": "I", "input": "", "output": "<nooutput>"}
    with pytest.raises(RowError) as caught:
        detect_schema(row).read(row)
    assert caught.value.reason == "empty_answer"


def test_w16_a_template_without_tools_is_an_error_that_shows_the_text(toy):
    call = Message("assistant", "", tool_calls=(ToolCall("weather", {"city": "Rome"}),))
    with pytest.raises(RenderError, match="weather") as caught:
        renderer(toy, "llama-3").conversation(chat(("u", "Q"), call, ("u", "R"), ("a", "B")))
    assert caught.value.reason == "lost_tool_call"
    assert "<|start_header_id|>assistant<|end_header_id|>" in str(caught.value)


def test_w17_both_sides_of_a_pair_begin_with_the_same_untrained_tokens(toy):
    made = renderer(toy, "chatml")
    answers = [(Message("assistant", "A"),), (Message("assistant", "BB"),)]
    chosen, rejected = made.preference(Preference((Message("user", "Q"),), *answers))
    prompt = "<s><|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    assert decoded_marked(made, chosen) == f"{prompt}⟦A<|im_end|>\n⟧"
    assert decoded_marked(made, rejected) == f"{prompt}⟦BB<|im_end|>\n⟧"
    shared = chosen.prompt_tokens
    assert shared == rejected.prompt_tokens == chosen.loss[0, 0]
    assert chosen.tokens[:shared].tolist() == rejected.tokens[:shared].tolist()


def test_w17_a_shared_prompt_ends_where_answers_would_merge_with_it(merging):
    made = renderer(merging, "chatml")
    answers = [(Message("assistant", "\n\n\nA"),), (Message("assistant", "B"),)]
    chosen, rejected = made.preference(Preference((Message("user", "Q"),), *answers))
    shared = chosen.prompt_tokens
    assert chosen.tokens[:shared].tolist() == rejected.tokens[:shared].tolist()
    assert made.tokenizer.decode(chosen.tokens[shared:]) == "\n\n\nA<|im_end|>\n"


def test_w17_earlier_answers_in_the_prompt_are_not_trained(toy):
    made = renderer(toy, "chatml")
    prompt = chat(("u", "Q"), ("a", "A"), ("u", "R")).messages
    pair = Preference(prompt, (Message("assistant", "B"),), (Message("assistant", "C"),))
    for document in made.preference(pair):
        assert decoded_marked(made, document).count("⟦") == 1


@pytest.mark.parametrize(
    ("terminator", "newline", "expected"),
    [(True, True, "⟦A<|im_end|>\n⟧"), (True, False, "⟦A<|im_end|>⟧\n"), (False, True, "⟦A⟧<|im_end|>\n")],
)
def test_the_terminator_and_the_line_break_behind_it_are_choices(toy, terminator, newline, expected):
    made = renderer(toy, "chatml", terminator=terminator, newline=newline)
    (document,) = made.conversation(chat(("u", "Q"), ("a", "A"), ("u", "R"), ("a", "A")))
    assert decoded_marked(made, document).count(expected) == 2


def test_only_the_last_turn_is_trained_unless_a_message_says_otherwise(toy):
    made = renderer(toy, "chatml", turns="last")
    (document,) = made.conversation(chat(("u", "Q"), ("a", "A"), ("u", "R"), ("a", "B")))
    assert decoded_marked(made, document).count("⟦") == 1
    asked = Message("assistant", "A", train=True)
    (document,) = made.conversation(chat(("u", "Q"), asked, ("u", "R"), ("a", "B")))
    assert decoded_marked(made, document).count("⟦") == 2


def test_conversations_with_nothing_to_train_are_rows_to_count(toy):
    made = renderer(toy, "chatml")
    for conversation, reason in [
        (chat(("u", "Q")), "no_assistant"),
        (chat(("u", "Q"), Message("assistant", "A", train=False)), "nothing_to_train"),
    ]:
        with pytest.raises(RowError) as caught:
            made.conversation(conversation)
        assert caught.value.reason == reason


def test_user_text_that_repeats_the_answer_is_not_trained(toy):
    made = renderer(toy, "chatml")
    (document,) = made.conversation(chat(("u", "MASKED"), ("a", "NOTMASKED MASKED"), ("u", "NOTMASKED"), ("a", "x")))
    text = decoded_marked(made, document)
    assert "user\nMASKED<" in text
    assert "user\nNOTMASKED<" in text
    assert "assistant\n⟦NOTMASKED MASKED<|im_end|>\n⟧" in text


def test_an_unknown_control_token_of_a_template_is_refused(toy):
    template = ChatTemplate.load("chatml", tokens={"im_end": "<|nowhere|>"})
    with pytest.raises(Exception, match=r"nowhere.*add-special-tokens"):
        Renderer(toy, template, RenderOptions())
