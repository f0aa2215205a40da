"""Builds: the bytes depend on contents and options alone, and every shard appears whole or not at all."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import shardtools.publish as publishing
from shardtools.cli import main
from shardtools.locks import locked
from streampipe.shards import Source
from streampipe.storage import open_store

SMALL = ("--shard-tokens", 8_000, "--frame-tokens", 1_000)
SHARD = ("--shuffle", "shard")


def wanted(corpus):
    return [json.loads(line)["text"] for line in corpus.read_text().splitlines()]


def test_all_texts_are_there_once_and_end_with_the_end_token(build, corpus, texts, documents):
    folder = build(corpus, *SMALL)
    assert texts(folder) == wanted(corpus)
    source = Source.open("c", str(folder))
    assert all(ids[-1] == source.tokenizer.eos_id for ids in documents(folder).values())
    assert source.manifest.counts == {}
    assert [entry.path for entry in source.manifest.inputs] == ["corpus.jsonl"]
    assert (folder / "tokenizer.json").exists()
    tokens = source.shard_tokens
    assert len(tokens) > 5
    assert tokens.min() > 0.7 * tokens.mean()
    assert 0.6 * 8_000 < tokens.mean() < 1.2 * 8_000


def test_documents_are_shuffled_inside_a_shard_by_the_seed(build, corpus, documents, tmp_path, texts):
    orders = {}
    for seed in (0, 1):
        folder = build(corpus, *SMALL, "--seed", seed, output=tmp_path / str(seed))
        orders[seed] = list(documents(folder))
        assert texts(folder) == wanted(corpus)
    assert orders[0] != sorted(orders[0])
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_origins_lead_back_to_the_line(build, corpus):
    source = Source.open("c", str(build(corpus, *SMALL)))
    rows = np.concatenate([source.origins(shard).row for shard in range(len(source.shards))])
    assert sorted(rows.tolist()) == list(range(400))


def test_the_bytes_do_not_depend_on_workers_place_times_or_hashing(build, corpus, contents, tmp_path, tokenizer, shell):
    first = contents(build(corpus, *SMALL, output=tmp_path / "one"))
    moved = tmp_path / "elsewhere" / "corpus.jsonl"
    moved.parent.mkdir()
    shutil.copy(corpus, moved)
    os.utime(moved, (1, 1))
    four = build(moved, *SMALL, output=tmp_path / "x" / "four", workers=4)
    assert contents(four) == first
    command = ["build", moved.parent, *SMALL, "--tokenizer", tokenizer, "--output", tmp_path / "hashed", "--workers", 2]
    process = shell(*command, PYTHONHASHSEED="77", TOKENIZERS_PARALLELISM="true")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert contents(tmp_path / "hashed") == first
    assert str(tmp_path) not in first["manifest.json"].decode()


def test_a_process_of_its_own_for_one_worker_changes_nothing(build, corpus, contents, tmp_path, monkeypatch):
    here = contents(build(corpus, *SMALL, output=tmp_path / "here"))
    monkeypatch.setattr("shardtools.build.WORTH_A_PROCESS", 0)
    monkeypatch.setattr("shardtools.engines.local.LocalEngine._run_here", None)
    assert contents(build(corpus, *SMALL, output=tmp_path / "apart")) == here


def test_plain_gz_zst_and_many_files_give_the_same_documents(build, corpus, texts, tmp_path):
    lines = corpus.read_bytes().splitlines(keepends=True)
    parts = tmp_path / "parts"
    parts.mkdir()
    for i in range(0, 400, 50):
        (parts / f"{i:03d}.jsonl").write_bytes(b"".join(lines[i : i + 50]))
    assert texts(build(parts, *SMALL, output=tmp_path / "a")) == wanted(corpus)
    subprocess.run(["gzip", "-k", *map(str, parts.iterdir())], check=True)
    glob = f"{parts}/*.gz"
    assert texts(build(glob, *SMALL, output=tmp_path / "b")) == wanted(corpus)


def test_a_folder_of_code_is_one_document_a_file(build, tmp_path, texts, capsys):
    code = tmp_path / "code"
    (code / "deep").mkdir(parents=True)
    (code / "b.py").write_bytes(b"\xef\xbb\xbfprint('b')\r\n")
    (code / "deep" / "a.py").write_text("print('a \u2028')\n")
    (code / "empty.py").write_text("")
    (code / "binary.bin").write_bytes(b"\xff\xfe\x00")
    folder = build(code, "--include", "*.py")
    assert texts(folder) == ["print('b')\r\n", "print('a \u2028')\n"]
    folder = build(code, output=tmp_path / "counted")
    assert len(texts(folder)) == 2
    assert json.loads((folder / "manifest.json").read_bytes())["counts"] == {"empty": 1, "not_text": 1}
    assert "binary.bin" in capsys.readouterr().err, "a file that is not text is left out of a folder, and named"
    build(code / "binary.bin", output=tmp_path / "named", code=1)
    assert "binary.bin: not UTF-8 text" in capsys.readouterr().err, "asked for by name, it is an error"


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], (), "empty"),
        ([{"text": ""}, {"text": " "}], (), "1 blank, 1 empty"),
        ([{"body": "a", "id": 1}], ("--text-field", "text"), "has body, id"),
    ],
)
def test_a_build_without_documents_is_an_error_and_leaves_nothing(build, jsonl, *, rows, options, message, capsys):
    folder = build(jsonl(rows), *options, code=1)
    assert message in capsys.readouterr().err
    assert list(folder.rglob("*")) == []


def test_a_slice_without_documents_makes_no_shard(build, jsonl, texts):
    rows = [{"text": f"head {i} " + "word " * 20} for i in range(50)]
    blank = [{"text": " " * 150} for _ in range(200)]
    folder = build(jsonl([*rows, *blank, *rows]), "--shard-tokens", 600)
    assert len(texts(folder)) == 100
    source = Source.open("c", str(folder))
    assert min(entry.documents for entry in source.shards) > 0
    assert not (folder / ".build").exists()


def test_no_end_token_and_a_begin_token_are_recorded(build, jsonl, documents, tmp_path):
    path = jsonl([{"text": "a <|fim_prefix|>"}])
    plain = build(path, "--no-eos", output=tmp_path / "a")
    both = build(path, "--eos", "<|pad|>", "--bos", "<|fim_prefix|>", output=tmp_path / "b")
    (bare,), (framed,) = documents(plain).values(), documents(both).values()
    assert framed[1:-1].tolist() == bare.tolist()
    recorded = json.loads((both / "manifest.json").read_bytes())
    assert (recorded["tokenizer"]["bos_id"], recorded["tokenizer"]["eos_id"]) == (framed[0], framed[-1])
    assert json.loads((plain / "manifest.json").read_bytes())["build"]["train"]["eos"] is None
    assert list(framed).count(framed[0]) == 1


def test_a_second_identical_build_does_nothing(build, corpus, capsys, contents):
    folder = build(corpus, *SMALL)
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    capsys.readouterr()
    assert "already built" not in capsys.readouterr().out
    build(corpus, *SMALL, workers=2)
    assert "already built" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times


def test_another_build_in_the_folder_is_refused_until_overwrite_which_leaves_nothing_of_it(
    build, corpus, jsonl, tmp_path, contents, capsys
):
    folder = build(corpus, *SMALL)
    before = contents(folder)
    small = jsonl([{"text": "one"}])
    build(small, *SMALL, code=2)
    assert "--overwrite" in capsys.readouterr().err
    assert contents(folder) == before
    build(small, *SMALL, "--overwrite")
    assert contents(folder) == contents(build(small, *SMALL, output=tmp_path / "fresh"))


def test_overwrite_mends_a_damaged_source(build, corpus, contents):
    folder = build(corpus, *SMALL)
    before = contents(folder)
    shard = folder / "train-00000.tar.zst"
    shard.write_bytes(shard.read_bytes()[:-1])
    build(corpus, *SMALL, code=1)
    (folder / "manifest.json").write_bytes(b"{}")
    build(corpus, *SMALL, code=1)
    build(corpus, *SMALL, "--overwrite")
    assert contents(folder) == before


def test_another_split_joins_the_source(build, corpus, jsonl, capsys):
    folder = build(corpus, *SMALL)
    held_out = jsonl([{"text": "held out"}, {"text": None}], "held.jsonl")
    build(held_out, "--split", "validation")
    source = Source.open("c", str(folder), "validation")
    assert (source.manifest.splits.keys(), source.shard_documents.tolist()) == ({"train", "validation"}, [1])
    assert [entry.path for entry in source.manifest.inputs] == ["corpus.jsonl", "held.jsonl"]
    assert source.origins(0).file.tolist() == [1]
    build(held_out, "--split", "validation")
    assert "already built" in capsys.readouterr().out
    assert main(["verify", str(folder)]) == 0
    build(corpus, *SMALL, "--seed", 3, "--overwrite", code=2)
    assert main(["verify", str(folder)]) == 0


def test_an_error_in_a_worker_names_the_input_and_writes_no_manifest(build, corpus, tmp_path, capsys):
    bad = tmp_path / "bad.jsonl"
    lines = corpus.read_bytes().splitlines(keepends=True)
    bad.write_bytes(b"".join([*lines[:300], b"{broken\n", *lines[300:]]))
    folder = build(bad, *SMALL, workers=2, code=1)
    assert "bad.jsonl:301" in capsys.readouterr().err
    assert not (folder / "manifest.json").exists()
    bad.write_bytes(corpus.read_bytes())
    build(bad, *SMALL, code=2)
    assert "unfinished build" in capsys.readouterr().err


def test_a_build_that_stopped_at_a_bad_row_goes_on_when_told_to_count_it(build, corpus, tmp_path, capsys, contents):
    bad = tmp_path / "bad.jsonl"
    lines = corpus.read_bytes().splitlines(keepends=True)
    bad.write_bytes(b"".join([*lines[:300], b"{broken\n", *lines[300:]]))
    folder = build(bad, *SMALL, *SHARD, code=1)
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("*.tar.zst")}
    assert len(finished) > 3
    build(bad, *SMALL, *SHARD, "--on-bad-row", "count")
    assert "bad.jsonl:301" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert contents(folder) == contents(build(bad, *SMALL, *SHARD, "--on-bad-row", "count", output=tmp_path / "fresh"))
    build(bad, *SMALL, *SHARD, code=2)


def test_a_lost_part_of_an_unfinished_build_is_made_again(build, corpus, contents):
    folder = build(corpus, *SMALL, "--on-bad-row", "error")
    before = contents(folder)
    for lost in ("train-00001.tar.zst", "train-00002.index.parquet", ".build/train-00003.json"):
        shutil.rmtree(folder)
        unfinished(build, corpus, folder)
        (folder / lost).unlink()
        build(corpus, *SMALL)
        assert contents(folder) == before


def unfinished(build, corpus, folder: Path) -> None:
    """Leaves a build whose shards are all there and whose manifest is not."""
    write = publishing.write_manifest
    publishing.write_manifest = stop
    try:
        with pytest.raises(KeyError):
            build(corpus, *SMALL)
    finally:
        publishing.write_manifest = write
    assert not (folder / "manifest.json").exists()


def stop(*_):
    raise KeyError("killed here")


def test_output_inside_the_input_is_refused(build, corpus):
    build(corpus.parent, output=corpus.parent / "out", code=2)
    assert not (corpus.parent / "out").exists()


def test_a_build_beside_a_running_one_is_refused(build, corpus, tmp_path, capsys):
    folder = tmp_path / "source"
    with locked(open_store(str(folder)), str(folder)):
        build(corpus, code=2)
    assert "another build is writing" in capsys.readouterr().err
    build(corpus)


def test_a_build_to_memory_reads_back(corpus, tokenizer, capsys):
    url = "memory://shardtools-build-test"
    command = ["build", str(corpus), "--tokenizer", str(tokenizer), "--output", url, "--workers", "2", "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 400
    assert main(["verify", url]) == 0
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["already_built"] is True
