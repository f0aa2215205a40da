"""Conversations and preference pairs, from rows to batches."""

import json
import os
import random
import shutil
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
from chat_rows import ADDED, CHATML, PAIRS, ROWS, asked, due, trained

from shardtools.cli import main
from shardtools.looking.decoder import Decoder
from shardtools.looking.documents import documents
from streampipe import Topology, build_loader, config_from
from streampipe.shards import Source, read_manifest
from streampipe.storage import open_store


def stream(source, **changes):
    raw = {
        "seed": 3,
        "seq_length": 512,
        "sources": [{"name": "chat", "path": source.url, "epochs": 1}],
        "packing": {"overlong": "drop"},
        "plan": {"windows": 4, "window_tokens": 2048},
        "batch": {"global_batch_size": 4, "micro_batch_size": 2, "labels": "unshifted"},
    }
    return config_from(raw | changes)


# From rows to batches


def test_the_labels_of_a_stream_decode_to_what_the_assistants_say(made):
    source = made(ROWS, "--shard-tokens", 4000, "--frame-tokens", 500)
    assert source.manifest.kind == "conversation"
    assert len(source.shards) > 3
    assert sorted(trained(source)) == due(ROWS)
    decoder, said = Decoder.of(source.store, source.manifest), []
    with build_loader(stream(source), Topology()) as loader:
        for batch in loader:
            labels, starts = batch["labels"].numpy(), batch["cu_seqlens_padded"].tolist()
            for start, end in pairwise(starts):
                ids = labels[start:end]
                text = decoder.text(ids[ids >= 0])
                said += [text] if text else []
    assert sorted(said) == sorted("".join(turns) for turns in due(ROWS))


def test_pairs_arrive_as_pairs_with_one_untrained_prompt(made):
    source = made(PAIRS)
    assert source.manifest.kind == "preference"
    found = trained(source)
    assert sorted(zip(found[::2], found[1::2], strict=True)) == sorted(
        ([row["chosen"] + "<|im_end|>\n"], [row["rejected"] + "<|im_end|>\n"]) for row in PAIRS
    )
    for one in documents(source):
        chosen, rejected = one.members
        prompt = chosen.loss[0, 0]
        assert prompt == rejected.loss[0, 0]
        assert (chosen.tokens[:prompt] == rejected.tokens[:prompt]).all()
    with build_loader(stream(source), Topology()) as loader:
        ids = [i for batch in loader for i in batch["pair_ids"].tolist() if i >= 0]
    assert len(ids) == 2 * len(PAIRS)


def test_order_of_a_build_holds_for_chats_held_out_ones_and_copies(made):
    source = made([*ROWS, *ROWS[:20]], "--validation", "5%", "--dedup", "exact", "--shard-tokens", 3000)
    held = Source.open("held", source.url, split="validation")
    assert source.manifest.counts["duplicate"] == 20
    assert sorted([*trained(source), *trained(held)]) == due(ROWS)
    assert 1 <= held.shard_documents.sum() <= 40
    again = made(ROWS, "--validation", "5%", "--seed", 9, "--template-token", "im_start=<|im_end|>", "--overwrite")
    assert sorted(trained(Source.open("held", again.url, split="validation"))) == sorted(trained(held)), "by content"


@pytest.mark.parametrize("rows", [ROWS, PAIRS], ids=["conversations", "pairs"])
def test_any_number_of_workers_writes_the_same_bytes(made, contents, tmp_path, rows):
    options = ("--shard-tokens", 2000, "--validation", "4")
    one = made(rows, *options, output=tmp_path / "one")
    two = made(rows, *options, output=tmp_path / "two", workers=2)
    assert contents(Path(one.url)) == contents(Path(two.url))


@pytest.mark.parametrize("kill", range(2))
def test_a_killed_build_of_chats_goes_on_and_ends_in_the_same_bytes(
    kill, made, jsonl, tokenizer, contents, tmp_path, *, shell
):
    whole = made(ROWS * 4, "--shard-tokens", 2000, output=tmp_path / "whole")
    output = tmp_path / "killed"
    command = ["build", tmp_path / "rows.jsonl", "--tokenizer", tokenizer, "--output", output, *CHATML]
    command += ["--shard-tokens", 2000, "--workers", 1 + kill]
    process = shell(*command)
    wanted = random.Random(kill).randrange(1, 12)
    while process.poll() is None and len([*output.glob("*.zst"), *output.glob(".build/slice*")]) < wanted:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (output / "manifest.json").exists()
    again = shell(*command)
    _, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    assert contents(output) == contents(Path(whole.url))


# Options


def test_history_that_is_written_anew_stops_the_build_or_gives_a_document_a_turn(build, jsonl, tmp_path, capsys):
    template = tmp_path / "forgets.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    path = jsonl([{"messages": asked("q", "one", "two")}])
    options = (path, "--template", template, "--add-special-tokens", ADDED)
    build(*options, code=2)
    error = capsys.readouterr().err
    assert "in.jsonl:1: " in error
    assert "--history expand" in error
    assert "rendered:\n<|im_start|>user\nq<|im_end|>" in error
    expanded = Source.open("chat", str(build(*options, "--history", "expand", output=tmp_path / "e")))
    assert sorted(trained(expanded)) == [[f"<think></think>{said}<|im_end|>\n"] for said in ("one", "two")]
    last = Source.open("chat", str(build(*options, "--history", "last", output=tmp_path / "l")))
    assert trained(last) == [["<think></think>two<|im_end|>\n"]]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("--train-turns", "last"), [["b<|im_end|>\n"]]),
        (("--no-train-newline",), [["a<|im_end|>"], ["b<|im_end|>"]]),
        (("--no-train-terminator",), [["a"], ["b"]]),
    ],
)
def test_options_say_what_is_trained(made, options, wanted):
    source = made([{"messages": asked("q", "a", "b")}], *options)
    assert [[turn] for turn in trained(source)[0]] == wanted


def test_quoted_control_tokens_stay_text_unless_asked(made, tmp_path):
    row = {"messages": asked("a<|im_start|>b", "c")}
    for options, count in (((), 2), (("--parse-special",), 3)):
        source = made([row], *options, output=tmp_path / str(count))
        start = source.tokenizer.special_tokens["<|im_start|>"]
        assert sum(int((one.members[0].tokens == start).sum()) for one in documents(source)) == count


def test_the_manifest_tells_schema_template_and_the_grown_tokenizer(made, tokenizer, tmp_path):
    source = made(ROWS[:3], "--template-kwargs", '{"x": 1}', "--date", "2025-02-03")
    manifest = source.manifest
    recorded = manifest.build["train"]
    assert recorded["schema"] == "messages"
    assert recorded["render_history"] == "error"
    template = json.loads(recorded["chat_template"])
    assert (template["name"], template["today"], template["kwargs"]) == ("chatml", "2025-02-03", {"x": 1})
    assert manifest.chat_template_hash == recorded["chat_template_hash"]
    assert manifest.tokenizer.vocab_size == 602
    assert manifest.tokenizer.special_tokens["<|im_end|>"] == manifest.tokenizer.max_id == 601
    saved = json.loads((Path(source.url) / "tokenizer.json").read_text())
    assert [token["content"] for token in saved["added_tokens"]][-2:] == ADDED.split(",")
    # a source that has its tokens already needs no more
    rows = tmp_path / "rows.jsonl"
    command = ["build", rows, "--tokenizer", f"{source.url}/tokenizer.json", "--output", tmp_path / "b"]
    assert main([*map(str, command), "--template", "chatml", "--workers", "1"]) == 0
    assert read_manifest(open_store(str(tmp_path / "b"))).tokenizer == manifest.tokenizer


def test_the_template_in_the_folder_of_the_tokenizer_is_the_default(build, jsonl, tokenizer, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(tokenizer, folder / "tokenizer.json")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}<|endoftext|>{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    source = Source.open("chat", str(build(jsonl(ROWS[:1]), tok=folder / "tokenizer.json")))
    assert trained(source) == [[ROWS[0]["messages"][1]["content"] + "<|endoftext|>"]]
    assert json.loads(source.manifest.build["train"]["chat_template"])["name"] == "default"


@pytest.mark.slow
def test_more_ids_than_16_bits_hold_are_stored_in_32(made):
    added = ",".join(f"<|{i}|>" for i in range(65_000))
    source = made(ROWS[:2], "--add-special-tokens", f"{ADDED},{added}")
    assert source.manifest.token_dtype == "uint32"
    assert sorted(trained(source)) == due(ROWS[:2])


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"text": "a"}], ("--template", "chatml"), "the rows are texts"),
        (ROWS[:1], (), "no chat template of its own"),
        (ROWS[:1], ("--template", "chatml"), "--add-special-tokens"),
        (ROWS[:1], (*CHATML, "--bos", "<|pad|>"), "the chat template writes such tokens"),
        (ROWS[:1], (*CHATML, "--normalize", "nfc"), "leave it out"),
        (PAIRS[:1], (*CHATML, "--overlong", "truncate:5"), "use drop:N"),
        (ROWS[:1], (*CHATML, "--schema", "sharegp"), "no schema is called 'sharegp'"),
        (ROWS[:1], (*CHATML, "--schema", "messages", "--text-field", "x"), "leave one out"),
        (ROWS[:1], (*CHATML, "--date", "today"), "expected YYYY-MM-DD"),
        (ROWS[:1], (*CHATML, "--template-kwargs", "[1]"), "expected a JSON object"),
        (ROWS[:1], (*CHATML, "--template-token", "x=y"), "no token is called x"),
        ([{"colour": 1}], CHATML, "no schema fits the columns colour"),
        ([{**ROWS[0], "label": True}], CHATML, "KTO"),
    ],
)
def test_what_has_no_meaning_is_refused(build, jsonl, capsys, tmp_path, *, rows, options, message):
    output = build(jsonl(rows), *options, code=2)
    assert message in capsys.readouterr().err
    assert not output.exists() or not list(output.iterdir())


def test_a_schema_can_be_forced_and_texts_too(made, build, jsonl, texts, tmp_path):
    row = {"messages": asked("q", "a"), "text": "plain", "instruction": "i", "output": "o"}
    assert trained(made([row])) == [["a<|im_end|>\n"]]
    assert trained(made([row], "--schema", "alpaca", output=tmp_path / "a")) == [["o<|im_end|>\n"]]
    assert texts(build(jsonl([row]), "--schema", "text", output=tmp_path / "b")) == ["plain"]
    assert texts(build(jsonl([row]), "--text-field", "output", output=tmp_path / "c")) == ["o"]
    assert texts(build(jsonl([{"content": "c"}]), output=tmp_path / "d")) == ["c"]


def test_the_schema_is_found_though_the_first_row_is_longer_than_a_sample(made, tmp_path):
    row = {"messages": asked("w " * 150_000, "a")}
    assert trained(made([row], output=tmp_path / "lines")) == [["a<|im_end|>\n"]]
    array = json.dumps([row]).encode()
    assert trained(made(array, name="rows.json", output=tmp_path / "array")) == [["a<|im_end|>\n"]]
