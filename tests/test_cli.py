"""The `streampipe` command: what it prints, what it saves, how it fails."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from streams import CODE, WEB, stream_of, write_source, write_stream

from streampipe.cli import main
from streampipe.cursor import read_cursor
from streampipe.tools.digest import digest_steps

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    write_source(folder / "web", 0, WEB)
    write_source(folder / "code", 1, CODE)
    return folder


@pytest.fixture
def stream(corpora: Path, tmp_path: Path) -> str:
    return str(write_stream(tmp_path / "stream.yaml", corpora))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(list(words)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    answer: dict[str, Any] = json.loads(out)
    assert out.count("\n") == 1, "one JSON object and nothing else"
    return answer


def digests(capsys: pytest.CaptureFixture[str], stream: str, steps: int, *words: str) -> list[dict[str, Any]]:
    return list(printed(capsys, "digest", "--config", stream, "--steps", str(steps), "--json", *words)["steps"])


BENCH_KEYS = {
    "tokens_per_second",
    "cpu_seconds_per_billion_tokens",
    "padding",
    "time_to_first_batch",
    "wait_p50",
    "wait_p99",
    "peak_rss_bytes",
    "decode_share",
}
MOCK = ("bench", "--mock", "--documents", "2e4", "--seq-length", "512", "--steps", "5", "--json")


def test_bench_of_a_mock_tells_every_number_and_no_share_of_a_limit_it_does_not_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = printed(capsys, *MOCK, "--dp-size", "2", "--at", "0.5", "--set", "plan.windows=4")
    assert answer.keys() >= BENCH_KEYS
    assert answer["decode_share"] is None
    assert answer["steps"] == 5
    assert 0 <= answer["padding"] < 0.2
    for key in BENCH_KEYS - {"decode_share", "padding"}:
        assert answer[key] > 0, key


def test_bench_of_local_shards_tells_the_share_of_bare_decoding(
    capsys: pytest.CaptureFixture[str], stream: str
) -> None:
    answer = printed(capsys, "bench", "--config", stream, "--steps", "4", "--json")
    assert answer["decode_share"] > 0
    assert answer["decode_share_discarding"] > 0
    assert answer["batches"] == 4 * 8


def test_bench_counts_the_steps_that_came(capsys: pytest.CaptureFixture[str], stream: str) -> None:
    finite = ("--set", "sources[0].epochs=1", "--set", "sources[1].epochs=1")
    answer = printed(capsys, "bench", "--config", stream, "--steps", "1000", "--json", *finite)
    assert answer["steps"] == len(digests(capsys, stream, 1000, *finite))
    assert answer["batches"] == answer["steps"] * 8
    ramp = ("--set", "batch.global_batch_size=[{size: 4}, {size: 16, steps: 2}]")
    answer = printed(capsys, "bench", "--config", stream, "--steps", "3", "--json", *ramp)
    assert (answer["steps"], answer["batches"]) == (3, 2 + 2 + 8)
    by_documents = ("--set", "batch.batch_by=documents", "--set", "packing.overlong=truncate")
    assert printed(capsys, "bench", "--config", stream, "--steps", "9", "--json", *by_documents)["steps"] == 9


def test_bench_prints_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(MOCK[:-1])) == 0
    out = capsys.readouterr().out
    assert "tokens per second" in out
    assert "padding" in out
    assert not out.startswith("{")


def test_digest_gives_a_sha256_for_each_step(capsys: pytest.CaptureFixture[str], stream: str, corpora: Path) -> None:
    steps = digests(capsys, stream, 3)
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert all(step.keys() == {"step", "sha256"} and len(bytes.fromhex(step["sha256"])) == 32 for step in steps)
    expected = [step["sha256"] for step in digest_steps(stream_of(corpora), 3, 1)]
    assert [step["sha256"] for step in steps] == expected
    assert main(["digest", "--config", stream, "--steps", "3"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == expected


@pytest.mark.parametrize(
    "words",
    [
        ("--dp-size", "4"),
        ("--micro-batch-size", "1"),
        ("--dp-size", "2", "--micro-batch-size", "4", "--num-workers", "1"),
        ("--set", "storage.threads=1", "--set", "loader.prefetch=1"),
        ("--global-batch-size", "16"),
    ],
)
def test_digest_options_that_decide_nothing_change_nothing(
    capsys: pytest.CaptureFixture[str], stream: str, words: tuple[str, ...]
) -> None:
    assert digests(capsys, stream, 2, *words) == digests(capsys, stream, 2)


@pytest.mark.parametrize(
    "words",
    [
        ("--set", "seed=9"),
        ("--set", "sources[0].weight=0.3"),
        ("--set", "sources[1].shuffle={shards: 1}"),
        ("--set", "packing.policy=concat"),
        ("--set", "plan.windows=2"),
        ("--global-batch-size", "32"),
        ("--set", "batch.global_batch_tokens=1024"),
    ],
)
def test_overrides_reach_the_stream(capsys: pytest.CaptureFixture[str], stream: str, words: tuple[str, ...]) -> None:
    assert digests(capsys, stream, 2, *words) != digests(capsys, stream, 2)


def test_a_size_on_the_command_line_wins_over_the_tokens_of_the_config(
    capsys: pytest.CaptureFixture[str], stream: str, corpora: Path, tmp_path: Path
) -> None:
    tokens = str(write_stream(tmp_path / "tokens.yaml", corpora, {"batch": {"global_batch_tokens": 1024}}))
    assert digests(capsys, tokens, 2, "--global-batch-size", "16") == digests(capsys, stream, 2)
    assert digests(capsys, tokens, 2) != digests(capsys, stream, 2)


def test_a_sequence_length_on_the_command_line_overrides_the_config_of_a_plan(
    capsys: pytest.CaptureFixture[str], stream: str
) -> None:
    plan = ("plan", "--config", stream, "--steps", "2", "--json")
    assert printed(capsys, *plan, "--seq-length", "256") == printed(capsys, *plan, "--set", "seq_length=256")
    assert printed(capsys, *plan, "--seq-length", "256") != printed(capsys, *plan)


def test_a_saved_cursor_goes_on_where_it_was_saved(
    capsys: pytest.CaptureFixture[str], stream: str, tmp_path: Path
) -> None:
    saved = str(tmp_path / "cursor.json")
    first = digests(capsys, stream, 3, "--save-cursor", saved, "--dp-size", "2")
    assert read_cursor(Path(saved).read_bytes()).step == 3
    second = digests(capsys, stream, 3, "--cursor", saved, "--save-cursor", saved, "--dp-size", "4")
    third = digests(capsys, stream, 3, "--cursor", saved, "--dp-size", "8")
    assert [*first, *second, *third] == digests(capsys, stream, 9)


def test_digest_of_a_finite_run_stops_at_its_end(capsys: pytest.CaptureFixture[str], stream: str) -> None:
    finite = ("--set", "sources[0].epochs=1", "--set", "sources[1].epochs=1")
    steps = digests(capsys, stream, 1000, *finite)
    assert 3 < len(steps) < 20
    assert digests(capsys, stream, 1000, *finite, "--dp-size", "4") == steps


# How it fails


@pytest.fixture
def broken(corpora: Path, tmp_path: Path) -> str:
    folder = tmp_path / "broken"
    shutil.copytree(corpora, folder)
    for shard in folder.glob("web/*.tar.zst"):
        shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    return str(write_stream(tmp_path / "broken.yaml", folder))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["digest", "--config", "absent.yaml", "--steps", "1"], "absent.yaml: cannot read the config"),
        (["digest", "--config", "STREAM", "--steps", "0"], "--steps: must be at least 1, but got 0"),
        (["digest", "--config", "STREAM", "--steps", "1", "--dp-size", "3"], "global_batch_size: 16 is not divisible"),
        (["digest", "--config", "STREAM", "--steps", "1", "--dp-size", "0"], "--dp-size: must be at least 1"),
        (["digest", "--config", "STREAM", "--steps", "1", "--set", "seed"], "expected key=value"),
        (["digest", "--config", "STREAM", "--steps", "1", "--set", "sede=1"], "$.sede: no such key"),
        (["digest", "--config", "STREAM", "--steps", "1", "--set", "sources[7].weight=1"], "no element [7]"),
        (["digest", "--config", "STREAM", "--steps", "1", "--set", "sources[0].path=/nowhere"], "/nowhere"),
        (["digest", "--config", "STREAM", "--steps", "1", "--set", "sources[0].split=test"], "no split 'test'"),
        (["digest", "--config", "STREAM", "--steps", "1", "--set", "sources[0].weight=-1"], "$.sources[0].weight"),
        (["digest", "--config", "STREAM", "--steps", "1", "--set", "sources[0].weight=1/0"], "$.sources[0].weight"),
        (["digest", "--config", "STREAM", "--steps", "1", "--cursor", "absent.json"], "cannot read the cursor"),
        (["digest", "--config", "STREAM", "--steps", "1", "--cursor", "STREAM"], "not a cursor"),
        (["digest", "--config", "STREAM", "--steps", "1", "--save-cursor", "/nowhere/c"], "/nowhere/c"),
        (["digest", "--config", "BROKEN", "--steps", "9"], "shardtools verify"),
        (["digest", "--config", "BROKEN", "--steps", "9", "--num-workers", "2"], "shardtools verify"),
        (["bench", "--config", "BROKEN", "--steps", "9"], "shardtools verify"),
        (["bench", "--mock", "--steps", "0"], "--steps"),
        (["bench", "--config", "STREAM", "--mean", "9"], "--mean: is for --mock"),
        (["plan", "--config", "STREAM", "--tokens-from", "x"], "--tokens-from: is for --mock"),
        (["bench", "--mock", "--at", "1.5", "--documents", "1e4"], "--at: must be within 0 and 1"),
        (["bench", "--mock", "--lengths", "absent.txt"], "absent.txt"),
        (["bench", "--mock", "--documents", "0"], "documents: must be at least 1"),
        (["bench", "--mock", "--tokens-from", "/nowhere"], "/nowhere"),
    ],
    ids=lambda value: " ".join(value[5:] or value[1:]) if isinstance(value, list) else "",
)
def test_an_error_is_one_line_and_a_non_zero_exit(
    capsys: pytest.CaptureFixture[str], stream: str, broken: str, words: list[str], told: str
) -> None:
    words = [{"STREAM": stream, "BROKEN": broken}.get(word, word) for word in words]
    assert main(words) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.startswith("streampipe: error: ")
    assert err.count("\n") == 1, err
    with pytest.raises(Exception, match=r".+"):
        main([*words, "--debug"])


def test_a_cursor_of_another_stream_names_the_fields(
    capsys: pytest.CaptureFixture[str], stream: str, tmp_path: Path
) -> None:
    saved = str(tmp_path / "cursor.json")
    digests(capsys, stream, 1, "--save-cursor", saved)
    assert main(["digest", "--config", stream, "--steps", "1", "--cursor", saved, "--set", "seed=8"]) == 1
    assert "seed: the cursor has 7, this stream 8" in capsys.readouterr().err


SKIP = ["skip", "--config", "x", "--steps", "1", "--dp-size", "7"]


@pytest.mark.parametrize("words", [[], ["digest"], ["bench"], ["bench", "--mock", "--config", "x"], ["unknown"], SKIP])
def test_wrong_usage_exits_with_two_and_a_usage_line(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: streampipe" in capsys.readouterr().err


# As a process of its own


def run(*words: str, hash_seed: str = "0") -> "subprocess.Popen[str]":
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "streampipe", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_digests_do_not_depend_on_hash_randomisation(stream: str, corpora: Path) -> None:
    words = ("digest", "--config", stream, "--steps", "6", "--dp-size", "2", "--json")
    processes = [run(*words, hash_seed="1"), run(*words, "--num-workers", "1", hash_seed="4294967295")]
    expected = [{"step": s["step"], "sha256": s["sha256"]} for s in digest_steps(stream_of(corpora), 6, 1)]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert json.loads(out) == {"steps": expected}


def test_a_failing_process_prints_one_line_and_with_debug_a_traceback(stream: str) -> None:
    words = ("digest", "--config", stream, "--steps", "1", "--set", "seq_length=0")
    processes = [run(*words), run(*words, "--debug")]
    (_, brief), (_, long) = (process.communicate(timeout=120) for process in processes)
    assert brief.count("\n") == 1
    assert "$.seq_length: must be at least 1, but got 0" in brief
    assert "Traceback" in long
    assert [process.returncode for process in processes] == [2, 1]
