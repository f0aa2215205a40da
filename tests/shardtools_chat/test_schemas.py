"""Which schema a corpus has, and what its rows mean: Megatron's rules, without their silent parts."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtools.schemas import (
    Conversation,
    Message,
    Preference,
    RowError,
    Schema,
    SchemaError,
    Text,
    ToolCall,
    columns_of,
    detect_schema,
    known_schemas,
    without_nulls,
)
from shardtools.schemas import known as known_module


def read(row: object):
    return detect_schema(columns_of([row])).read(row)


def reason_of(row: object) -> str:
    with pytest.raises(RowError) as caught:
        read(row)
    return caught.value.reason


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ("chosen rejected", "preference"),
        ("prompt chosen rejected", "preference"),
        ("conversations chosen rejected score", "preference"),
        ("chosen_messages rejected_messages", "preference"),
        ("messages", "messages"),
        ("messages conversations text", "messages"),
        ("conversations text", "sharegpt"),
        ("prompt completion", "prompt-completion"),
        ("instruction input output text", "alpaca"),
        ("query response", "alpaca"),
        ("question answer context", "alpaca"),
        ("instruction context response category", "alpaca"),
        ("text label", "text"),
        ("content id", "text"),
        ("dialogs", "ftdp"),
        ("[]", "ftdp"),
    ],
)
def test_the_first_schema_that_fits_the_columns_wins(columns, name):
    assert detect_schema(columns.split()).name == name


@pytest.mark.parametrize("columns", ["messages label", "prompt completion label", "conversations kto_tag"])
def test_unpaired_preferences_are_refused_by_name_unless_another_schema_is_forced(columns):
    with pytest.raises(SchemaError, match="KTO"):
        detect_schema(columns.split())
    assert detect_schema(columns.split(), "messages").name == "messages"


def test_no_match_lists_the_columns_seen_and_the_schemas_known():
    with pytest.raises(SchemaError, match=r"body, title(.|\n)*sharegpt(.|\n)*alpaca(.|\n)*--schema"):
        detect_schema(["title", "body"])
    with pytest.raises(SchemaError, match="'sharegtp'"):
        detect_schema(["conversations"], "sharegtp")


def test_a_column_that_is_null_everywhere_is_no_column():
    rows = [{"messages": [], "label": None}, {"messages": [], "text": "x"}]
    assert columns_of(rows) == {"messages", "text"}


def test_messages_keep_tools_reasoning_and_switches():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "text", "text": "!"}]},
            {"role": "assistant", "content": None, "thinking": "R", "tool_calls": [call], "weight": 0},
            {"role": "tool", "content": "9", "tool_call_id": "c", "name": None},
            {"role": "assistant", "content": "A", "loss": "True"},
        ],
        "tools": '[{"name": "f", "parameters": {}}]',
        "chat_template_kwargs": {"enable_thinking": False},
        "system": "S",
    }
    assert read(row) == Conversation(
        (
            Message("system", "S"),
            Message("user", "Q!"),
            Message("assistant", "", "R", (ToolCall("f", {"a": 1}, "c"),), train=False),
            Message("tool", "9", tool_call_id="c"),
            Message("assistant", "A", train=True),
        ),
        ({"type": "function", "function": {"name": "f", "parameters": {}}},),
        {"enable_thinking": False},
    )


@pytest.mark.parametrize(
    ("speaker", "role"),
    [("Human", "user"), ("user", "user"), ("gpt", "assistant"), ("bing", "assistant"), ("observation", "tool")],
)
def test_sharegpt_speakers_have_roles(speaker, role):
    row = {"conversations": [{"from": speaker, "value": "x"}, {"from": "gpt", "value": "y"}]}
    assert read(row).messages[0].role == role


def test_a_sharegpt_function_call_is_a_call():
    row = {"conversations": [{"from": "function_call", "value": '{"name": "f", "arguments": {"x": [1]}}'}]}
    assert read(row).messages == (Message("assistant", "", tool_calls=(ToolCall("f", {"x": [1]}),)),)


def one(role: object = "user", content: object = "x", **rest: object) -> dict:
    return {"messages": [{"role": role, "content": content, **rest}]}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (one("chatter"), "unknown_speaker"),
        (one(None), "unknown_speaker"),
        (one(content=[{"type": "image_url", "image_url": {}}]), "multimodal"),
        ({**one(), "images": ["a.jpg"]}, "multimodal"),
        (one(content=7), "wrong_type"),
        (one(train=True), "train_on_others"),
        (one("assistant", weight=0.5), "bad_weight"),
        (one("assistant", weight=0, train=True), "conflict"),
        (one("assistant", ""), "empty_answer"),
        (one("assistant", tool_calls=[{"function": {"name": "f", "arguments": "{oops"}}]), "bad_tool_call"),
        (one("assistant", tool_calls=[{"function": {"arguments": {}}}]), "bad_tool_call"),
        (one(tool_calls=[{"function": {"name": "f", "arguments": {}}}]), "bad_tool_call"),
        ({**one(), "tools": "[oops"}, "bad_tools"),
        ({**one(), "chat_template_kwargs": "[1]"}, "bad_template_kwargs"),
        ({"messages": []}, "empty"),
        ({"messages": [None, one()["messages"][0]]}, "not_messages"),
        ({"messages": "hi"}, "not_messages"),
        ({"conversations": []}, "empty"),
        ({"instruction": "I", "output": ""}, "empty_answer"),
        ({"instruction": "", "output": "O"}, "empty"),
        ({"instruction": 3, "output": "O"}, "wrong_type"),
        ({"text": "\u00a0"}, "blank"),
        ({"text": ""}, "empty"),
        ({"text": 5}, "wrong_type"),
        ({"prompt": "P", "chosen": "A", "rejected": "A"}, "identical_answers"),
        ({"chosen": "yes", "rejected": "no"}, "no_prompt"),
    ],
)
def test_rows_that_cannot_be_read_have_a_reason_to_count_them_by(row, reason):
    assert reason_of(row) == reason


def test_alpaca_takes_the_first_field_that_says_something_and_history_first():
    row = {"instruction": None, "prompt": "", "query": "Q", "response": "A", "system": "S", "history": [["q", "a"]]}
    roles = [(message.role, message.content) for message in read(row).messages]
    assert roles == [("system", "S"), ("user", "q"), ("assistant", "a"), ("user", "Q"), ("assistant", "A")]


def test_only_the_completion_of_a_prompt_is_trained():
    prompt = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "Q"}]
    record = read({"prompt": prompt, "completion": [{"role": "assistant", "content": "A"}]})
    assert [message.train for message in record.messages] == [False, False, False, None]
    assert read({"prompt": "Q", "completion": "A"}).messages == (Message("user", "Q"), Message("assistant", "A"))


U, A, B = Message("user", "Q"), Message("assistant", "A"), Message("assistant", "B")
RAW = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Q", "chosen": "A", "rejected": "B"},
        {"question": "Q", "chosen": "A", "rejected": "B"},
        {"prompt": RAW[:1], "chosen": RAW[1:2], "rejected": RAW[2:]},
        {"prompt": "Q", "chosen": RAW[:2], "rejected": [RAW[0], RAW[2]]},
        {"chosen": RAW[:2], "rejected": [RAW[0], RAW[2]]},
        {"conversations": [{"from": "human", "value": "Q"}], "chosen": RAW[1], "rejected": RAW[2]},
        {"chosen": "\n\nHuman: Q\n\nAssistant: A", "rejected": "\n\nHuman: Q\n\nAssistant: B"},
        {"chosen": "Q A", "rejected": "Q B"},
    ],
)
def test_pairs_of_every_shape_are_the_same_pair(row):
    assert read(row) == Preference((U,), (A,), (B,))


def test_text_is_text():
    assert read({"text": "null"}) == Text("null")
    assert read({"content": "x"}) == Text("x")


def test_b05_arguments_of_two_types_keep_theirs():
    for time in ("2025-08-01", 1690876800):
        call = {"function": {"name": "f", "arguments": {"time": time}}}
        assert read(one("assistant", None, tool_calls=[call])).messages[0].tool_calls[0].arguments == {"time": time}


def test_b06_rows_from_parquet_have_no_keys_of_other_rows():
    rows = [
        {**one(), "tools": [{"type": "function", "function": {"name": name, "parameters": {key: {"type": "string"}}}}]}
        for name, key in (("f", "city"), ("g", "x"))
    ]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    back = pq.read_table(file).to_pylist()
    assert back != rows
    schema = detect_schema(columns_of(back))
    assert [schema.read(without_nulls(row)) for row in back] == [schema.read(row) for row in rows]


def test_an_installed_schema_is_tried_first(monkeypatch):
    mine = Schema("mine", "text", "body", lambda columns: "body" in columns, lambda row: Text(row["body"]))

    class Point:
        name = "mine"

        def load(self):
            return mine

    monkeypatch.setattr(known_module, "entry_points", lambda group: [Point()])
    known_schemas.cache_clear()
    try:
        assert detect_schema(["body", "text"]).read({"body": "b"}) == Text("b")
    finally:
        known_schemas.cache_clear()


def test_a_record_of_json_reads_alike_after_a_round_trip():
    row = {**one("assistant", "A", reasoning_content="R"), "tools": [{"name": "f", "parameters": {"default": None}}]}
    assert read(json.loads(json.dumps(row))) == read(row)
