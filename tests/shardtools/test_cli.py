"""The command line: one readable message an error, one JSON object on request."""

import json
import subprocess
import sys

import fsspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from shardtools.arguments import storage_options
from shardtools.cli import main
from shardtools.stats import padding_forecast, quantiles
from shardtools.tables import bar, in_bytes
from streampipe.errors import ConfigError

SMALL = ("--shard-tokens", 8_000, "--frame-tokens", 1_000)


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (["build", "gone.jsonl", "--tokenizer", "TOK", "--output", "OUT"], 2, "gone.jsonl: no such file"),
        (["build", "IN", "--tokenizer", "gone.json", "--output", "OUT"], 2, "gone.json: no such tokenizer"),
        (["build", "IN", "--tokenizer", "IN", "--output", "OUT"], 2, "not a tokenizer.json"),
        (["build", "IN", "--tokenizer", "TOK", "--output", "OUT", "--eos", "<|no|>"], 2, "has no such token"),
        (["build", "IN", "--tokenizer", "TOK", "--output", "OUT", "--split", "a/b"], 2, "--split"),
        (["build", "IN", "--tokenizer", "TOK", "--output", "OUT", "--storage-option", "x"], 2, "KEY=VALUE"),
        (["build", "nope://x/y", "--tokenizer", "TOK", "--output", "OUT"], 1, "nope://x/y"),
        (["verify", "OUT"], 1, ""),
        (["stats", "OUT"], 1, "there is no manifest"),
    ],
)
def test_an_error_is_one_line_on_stderr(command, code, says, *, corpus, tokenizer, tmp_path, capsys):
    names = {"IN": corpus, "TOK": tokenizer, "OUT": tmp_path / "out"}
    assert main([str(names.get(part, part)) for part in command]) == code
    output, errors = capsys.readouterr()
    assert "Traceback" not in errors
    assert says in errors
    if command[0] == "verify":
        assert "no manifest" in output
    else:
        assert errors.splitlines()[-1].startswith("shardtools: error: ")
    assert not (tmp_path / "out").exists()


def test_debug_shows_the_whole_error(tmp_path):
    with pytest.raises(ConfigError):
        main(["build", "gone", "--tokenizer", "gone", "--output", str(tmp_path), "--debug"])


def test_json_is_one_object_and_progress_goes_to_stderr(build, corpus, capsys):
    folder = build(corpus, *SMALL, "--json")
    result = json.loads(capsys.readouterr().out)
    assert (result["documents"], result["split"]) == (400, "train")
    assert main(["verify", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["faults"] == []
    assert report["tokens"] == result["tokens"]
    assert main(["stats", str(folder), "--json", "--seq-length", "512", "1024"]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert (stats["documents"], stats["tokens"], stats["shards"]) == (400, result["tokens"], result["shards"])
    assert [row["seq_length"] for row in stats["padding"]] == [512, 1024]
    assert sum(count for _, count in stats["histogram"]) == 400


def test_verify_names_the_shard_and_the_place_of_a_fault(build, corpus, capsys):
    folder = build(corpus, *SMALL)
    capsys.readouterr()
    shard = folder / "train-00001.tar.zst"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert main(["verify", str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "train-00001.tar.zst" in lines[0]
    assert "frame" in lines[0]


def test_stats_for_people_show_what_json_has(build, corpus, capsys):
    folder = build(corpus, *SMALL)
    capsys.readouterr()
    assert main(["stats", str(folder)]) == 0
    shown = capsys.readouterr().out
    for word in ("400", "bytes a token", "best_fit", "32,768", "median"):
        assert word in shown


def test_length_statistics_are_those_of_the_lengths(build, corpus, documents, capsys):
    folder = build(corpus, *SMALL)
    capsys.readouterr()
    main(["stats", str(folder), "--json"])
    found = json.loads(capsys.readouterr().out)["lengths"]
    lengths = sorted(len(ids) for ids in documents(folder).values())
    assert (found["min"], found["max"], found["median"]) == (lengths[0], lengths[-1], lengths[199])
    assert found["mean"] == round(sum(lengths) / 400, 2)


def test_the_padding_forecast_is_best_fit_decreasing():
    assert padding_forecast(np.array([6, 4, 5, 5]), 10) == 0
    assert padding_forecast(np.array([6, 6]), 10) == pytest.approx(0.4)
    assert padding_forecast(np.array([25, 5]), 10) == 0
    assert padding_forecast(np.array([10, 20]), 10) == 0
    assert padding_forecast(np.array([7, 5, 3, 2, 2, 1]), 10) == 0


def test_a_sample_of_lengths_stands_for_all():
    lengths, counts = np.array([1, 10, 100]), np.array([5_000, 4_000, 1_000])
    assert quantiles(lengths, counts, 10).tolist() == [1] * 5 + [10] * 4 + [100]
    assert len(quantiles(lengths, counts, 10_000)) == 10_000


def test_small_things_of_the_tables():
    assert [bar(0, 8), bar(0.001, 8), bar(1, 2), bar(0.5, 1)] == ["", "▏", "██", "▌"]
    assert [in_bytes(512), in_bytes(1536), in_bytes(3 << 30)] == ["512 B", "1.5 KiB", "3.0 GiB"]


def test_storage_options_nest_and_keep_text_as_text():
    pairs = ["key=123", "anon=true", "client_kwargs.region_name=eu", 'config={"a": 1}', "secret=a=b"]
    assert storage_options(pairs) == {
        "key": "123",
        "anon": True,
        "client_kwargs": {"region_name": "eu"},
        "config": {"a": 1},
        "secret": "a=b",
    }


def test_input_and_tokenizer_can_be_urls(corpus, tokenizer, texts, tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe("/inputs/b/corpus.jsonl", corpus.read_bytes())
    memory.pipe("/inputs/a.txt", b"a text")
    memory.pipe("/inputs/tokenizer/tokenizer.json", tokenizer.read_bytes())
    arguments = ["--tokenizer", "memory://inputs/tokenizer/tokenizer.json", "--output", str(tmp_path / "out")]
    assert main(["build", "memory://inputs", *arguments, "--include", "*.jsonl", "--include", "*.txt"]) == 0
    assert len(texts(tmp_path / "out")) == 401
    assert texts(tmp_path / "out")[0] == "a text"


def test_help_loads_neither_tokenizers_nor_torch():
    script = (
        "import sys; from shardtools.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'tokenizers', 'rich'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "train-tokenizer" in done.stdout


def test_a_tokenizer_used_with_threads_before_does_not_hang_the_workers(build, corpus, tokenizer, texts, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    Tokenizer.from_file(str(tokenizer)).encode_batch(["some text"] * 1_000)
    assert len(texts(build(corpus, *SMALL, workers=2))) == 400
