"""Chat templates of real models, with their own tokenizers: Qwen3, Llama 3.1, and training templates."""

import json

import pytest
from shardtools_chat.chats import chat, decoded_marked, renderer

from shardtools.masks import MaskChoiceError, Renderer, RenderError
from shardtools.schemas import Message, Preference, RowError, ToolCall, detect_schema
from shardtools.templates import ChatTemplate

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Says it", "parameters": {"type": "object", "properties": {}}},
}
CALL = Message("assistant", "", tool_calls=(ToolCall("weather", {"city": "Zürich", "days": 2}),))
THINKS = Message("assistant", "A1", reasoning="R1"), Message("assistant", "A2", reasoning="R2")


@pytest.fixture
def qwen(qwen3, qwen3_folder):
    return lambda **options: renderer(qwen3, ChatTemplate.load(None, str(qwen3_folder)), **options)


@pytest.fixture
def llama(llama3, templates):
    template = ChatTemplate.load(str(templates / "llama3_1.jinja"))
    return lambda **options: renderer(llama3, template, **options)


def test_qwen3_one_question_trains_all_that_the_model_would_write(qwen):
    made = qwen()
    (document,) = made.conversation(chat(("u", "Q"), ("a", "A")))
    assert decoded_marked(made, document) == (
        "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n⟦<think>\n\n</think>\n\nA<|im_end|>\n⟧"
    )


def test_qwen3_without_thinking_has_the_empty_thought_in_the_prompt(qwen3, qwen3_folder):
    template = ChatTemplate.load(None, str(qwen3_folder), kwargs={"enable_thinking": False})
    made = renderer(qwen3, template)
    (document,) = made.conversation(chat(("u", "Q"), ("a", "A")))
    assert decoded_marked(made, document).endswith("assistant\n<think>\n\n</think>\n\n⟦A<|im_end|>\n⟧")


def test_w13_qwen3_rewrites_history_and_asks_what_to_train(qwen):
    with pytest.raises(MaskChoiceError, match=r"--history expand .* or last .*training template") as caught:
        qwen().conversation(chat(("u", "Q1"), THINKS[0], ("u", "Q2"), THINKS[1]))
    assert "<|im_start|>assistant\nA1<|im_end|>" in str(caught.value)


def test_w13_expanding_gives_each_turn_as_serving_sees_it(qwen):
    made = qwen(history="expand")
    first, second = made.conversation(chat(("u", "Q1"), THINKS[0], ("u", "Q2"), THINKS[1]))
    assert decoded_marked(made, first).endswith(
        "Q1<|im_end|>\n<|im_start|>assistant\n⟦<think>\nR1\n</think>\n\nA1<|im_end|>\n⟧"
    )
    assert decoded_marked(made, second) == (
        "<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n<|im_start|>user\nQ2<|im_end|>\n"
        "<|im_start|>assistant\n⟦<think>\nR2\n</think>\n\nA2<|im_end|>\n⟧"
    )


def test_w13_the_last_turn_only(qwen):
    made = qwen(history="last")
    (document,) = made.conversation(chat(("u", "Q1"), THINKS[0], ("u", "Q2"), THINKS[1]))
    assert decoded_marked(made, document).count("⟦") == 1
    assert decoded_marked(made, document).endswith("⟦<think>\nR2\n</think>\n\nA2<|im_end|>\n⟧")


def test_w13_a_chain_of_calls_after_one_question_keeps_all_reasoning(qwen):
    call = Message("assistant", "x", reasoning="R1", tool_calls=CALL.tool_calls)
    made = qwen()
    (document,) = made.conversation(chat(("u", "Q"), call, ("t", "9"), THINKS[1], tools=(WEATHER,)))
    text = decoded_marked(made, document)
    assert (
        '⟦<think>\nR1\n</think>\n\nx\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}\n'
        "</tool_call><|im_end|>\n⟧<|im_start|>user\n<tool_response>\n9\n</tool_response><|im_end|>\n"
    ) in text
    assert text.endswith("⟦<think>\nR2\n</think>\n\nA2<|im_end|>\n⟧")


def test_w13_a_training_template_keeps_the_reasoning_of_history(qwen3, templates):
    made = renderer(qwen3, ChatTemplate.load(str(templates / "qwen3_training.jinja")))
    (document,) = made.conversation(chat(("u", "Q1"), THINKS[0], ("u", "Q2"), THINKS[1]))
    text = decoded_marked(made, document)
    assert "⟦<think>\nR1\n</think>\n\nA1<|im_end|>\n⟧" in text
    assert "⟦<think>\nR2\n</think>\n\nA2<|im_end|>\n⟧" in text


def test_w13_qwen35_prompts_that_begin_the_thought_are_not_trained(qwen3, templates):
    made = renderer(qwen3, ChatTemplate.load(str(templates / "qwen3_5_think.jinja")), history="expand")
    documents = made.conversation(chat(("u", "Q1"), THINKS[0], ("u", "Q2"), THINKS[1]))
    assert [decoded_marked(made, document).split("assistant\n")[-1] for document in documents] == [
        "<think>\n⟦R1\n</think>\n\nA1<|im_end|>\n⟧",
        "<think>\n⟦R2\n</think>\n\nA2<|im_end|>\n⟧",
    ]


def test_a_prompt_that_is_no_beginning_of_the_answer_is_an_error_whatever_was_chosen(qwen3, templates):
    made = renderer(qwen3, ChatTemplate.load(str(templates / "deepseekv3.jinja")), history="expand")
    with pytest.raises(RenderError, match=r"generation prompt .* no beginning of message 1") as caught:
        made.conversation(chat(("u", "Q"), ("a", "A")))
    assert caught.value.reason == "no_prefix"


def test_w12_two_tool_results_are_in_one_user_block(qwen):
    two = Message("assistant", "", tool_calls=(*CALL.tool_calls, ToolCall("weather", {"city": "Rome"})))
    conversation = chat(("u", "Q"), two, ("t", "9"), ("t", "8"), ("a", "A"), tools=(WEATHER,))
    made = qwen(history="expand")
    text = decoded_marked(made, made.conversation(conversation)[-1])
    results = "<tool_response>\n9\n</tool_response>\n<tool_response>\n8\n</tool_response>"
    assert f"<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\n⟦" in text


@pytest.mark.parametrize("template", ["qwen3", "qwen3_5_think", "glm4moe", "llama3_1", "deepseekv3_training", "chatml"])
def test_arguments_as_objects_and_as_json_render_alike(qwen3, templates, template):
    name = template if template == "chatml" else str(templates / f"{template}.jinja")
    made = renderer(qwen3, ChatTemplate.load(name), terminator=template in ("chatml", "qwen3", "qwen3_5_think"))
    documents = []
    for arguments in ({"city": "Zürich", "days": [1, 2]}, '{"city":"Zürich","days":[1,2]}'):
        call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        row = {
            "messages": [
                {"role": "user", "content": "Q"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ],
            "tools": json.dumps([WEATHER]),
        }
        if template == "deepseekv3_training":
            del row["tools"]  # a template that knows calls, not tools
        documents += made.conversation(detect_schema(row).read(row))
    assert documents[0].text == documents[1].text
    assert "Zürich" in documents[0].text
    assert "'city'" not in documents[0].text


def test_llama31_begins_once_and_calls_tools(llama):
    made = llama()
    conversation = chat(("s", "S"), ("u", "Q"), CALL, ("t", "9"), ("a", "A"), tools=(WEATHER,))
    (document,) = made.conversation(conversation)
    text = decoded_marked(made, document)
    begin = made.tokenizer._tokenizer.token_to_id("<|begin_of_text|>")
    assert document.tokens[0] == begin
    assert int((document.tokens == begin).sum()) == 1
    assert "Today Date: 26 Jul 2024" in text
    head = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert f'{head}⟦{{"name": "weather", "parameters": {{"city": "Zürich", "days": 2}}}}<|eot_id|>⟧' in text
    assert text.endswith(f"{head}⟦A<|eot_id|>⟧")


def test_llama31_drops_words_beside_a_call_and_that_is_an_error(llama):
    call = Message("assistant", "I look.", tool_calls=CALL.tool_calls)
    with pytest.raises(RenderError, match="is not in the trained text") as caught:
        llama().conversation(chat(("u", "Q"), call, ("t", "9"), ("a", "A"), tools=(WEATHER,)))
    assert caught.value.reason == "lost_answer"


def test_llama31_lost_reasoning_is_an_error(llama):
    with pytest.raises(RenderError) as caught:
        llama().conversation(chat(("u", "Q"), THINKS[0]))
    assert caught.value.reason == "lost_reasoning"


def test_a_refusal_of_the_template_is_a_row_to_count(llama):
    two = Message("assistant", "", tool_calls=CALL.tool_calls * 2)
    with pytest.raises(RowError, match="single tool-calls") as caught:
        llama().conversation(chat(("u", "Q"), two, tools=(WEATHER,)))
    assert caught.value.reason == "template_refused"


def test_a_template_that_ignores_offered_tools_is_an_error(llama3, llama3_folder):
    made = renderer(llama3, ChatTemplate.load(None, str(llama3_folder)))
    with pytest.raises(RenderError, match="'weather'") as caught:
        made.conversation(chat(("u", "Q"), ("a", "A"), tools=(WEATHER,)))
    assert caught.value.reason == "lost_tools"


def test_a_role_that_the_template_leaves_out_is_an_error(qwen):
    with pytest.raises(RenderError) as caught:
        qwen().conversation(chat(Message("developer", "D"), ("u", "Q"), ("a", "A")))
    assert caught.value.reason == "lost_role"


def test_w14_glm_ends_a_turn_by_the_next_role(toy, templates):
    control = {name: f"<|{name}|>" for name in ("user", "assistant", "system", "observation")}
    source = (templates / "glm4moe.jinja").read_text()
    made = Renderer(_with(toy, *control.values(), "<|endoftext|>"), ChatTemplate("glm", source))
    conversation = chat(("s", "S"), ("u", "Q1"), ("a", "A1"), ("u", "Q2"), ("a", "A2"))
    with pytest.raises(MaskChoiceError):
        made.conversation(chat(("u", "Q1"), THINKS[0], ("u", "Q2"), THINKS[1]))
    with pytest.raises(RenderError, match="would not learn to stop"):
        made.conversation(conversation)
    made = renderer(_with(toy, *control.values(), "<|endoftext|>"), ChatTemplate("glm", source), stop="<|endoftext|>")
    (document,) = made.conversation(conversation)
    assert decoded_marked(made, document).endswith(
        "<|user|>\nQ1<|assistant|>⟦\n<think></think>\nA1<|user|>⟧\nQ2<|assistant|>⟦\n<think></think>\nA2<|endoftext|>⟧"
    )


def test_w15_gpt_oss_ends_the_last_turn_by_return(toy, templates):
    names = ("start", "end", "message", "channel", "return", "call", "constrain")
    file = _with(toy, *(f"<|{name}|>" for name in names))
    template = ChatTemplate.load(str(templates / "gptoss_training.jinja"))
    made = renderer(file, template)
    (document,) = made.conversation(chat(("u", "Q1"), ("a", "A1"), ("u", "Q2"), THINKS[1]))
    text = decoded_marked(made, document)
    assert text.count("⟦") == 2
    assert "A1<|end|>⟧" in text
    assert "<|channel|>analysis<|message|>R2<|end|>" in text
    assert text.endswith("A2<|return|>⟧")
    assert "2024-07-26" in text  # the template writes today's date


def test_pairs_follow_qwen3(qwen):
    made = qwen()
    pair = Preference((Message("user", "Q"),), (THINKS[0],), (THINKS[1],))
    chosen, rejected = made.preference(pair)
    assert decoded_marked(made, chosen).endswith("assistant\n⟦<think>\nR1\n</think>\n\nA1<|im_end|>\n⟧")
    assert chosen.tokens[: chosen.prompt_tokens].tolist() == rejected.tokens[: rejected.prompt_tokens].tolist()


def _with(file, *tokens: str):
    """The toy tokenizer with more control tokens, and without a begin token."""
    content = json.loads(file.data)
    first = max(token["id"] for token in content["added_tokens"]) + 1
    like = content["added_tokens"][0]
    content["added_tokens"] += [like | {"id": first + i, "content": token} for i, token in enumerate(tokens)]
    content["post_processor"] = None
    return type(file)(json.dumps(content).encode(), b"{}")
