"""A build on a Ray cluster is the build of this machine, also when a node is lost on the way."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from shardtools.cli import main

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # stay on 127.0.0.1, as Ray does on those systems
pytest.importorskip("ray", reason="needs the [ray] extra")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray warns of its own future
]

SMALL = ("--shard-tokens", 3_000, "--frame-tokens", 1_000, "--validation", "5%", "--dedup", "exact")
SEPARATED = ("--fragments-at", "<|pad|>")


def options_of(kind):
    return (*SMALL, *SEPARATED) if kind == "texts" else SMALL


@pytest.fixture
def run(what, tokenizer, tmp_path):
    lines = what["texts"][0].read_text().splitlines()
    large = tmp_path / "large.jsonl"
    large.write_text(
        "".join(line.replace("document", f"document <|pad|> {i}") + "\n" for i in range(4) for line in lines)
    )
    inputs = {**what, "texts": (large,)}

    def command(output, *more, kind="texts"):
        arguments = ["build", *inputs[kind], "--tokenizer", tokenizer, "--output", output, *options_of(kind), *more]
        return main([str(part) for part in arguments])

    return command


@pytest.mark.parametrize("kind", ["texts", "chats"])
def test_a_cluster_started_for_the_build_gives_the_same_bytes(kind, run, tmp_path, contents, capsys):
    assert run(tmp_path / "local", "--workers", 2, kind=kind) == 0
    assert run(tmp_path / "ray", "--engine", "ray", "--workers", 2, kind=kind) == 0
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    assert run(tmp_path / "ray", "--engine", "ray", kind=kind) == 0
    assert "already built" in capsys.readouterr().out
    assert run(tmp_path / "ray", "--engine", "ray", "--seed", 1, kind=kind) == 2


@pytest.mark.parametrize(("kind", "slices"), [("texts", 1), ("texts", 5), ("texts", 40), ("chats", 2), ("chats", 9)])
def test_a_node_that_is_lost_on_the_way_changes_nothing(kind, slices, run, tmp_path, contents):
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    assert run(tmp_path / "local", "--workers", 2, kind=kind) == 0
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "node_ip_address": "127.0.0.1"})
    node = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1")
    output = tmp_path / "ray"
    lost = []

    def lose_a_node():
        while len(list(output.glob(".build/slice-*.json"))) < slices:
            time.sleep(0.01)
        cluster.remove_node(node, allow_graceful=False)
        lost.append(len(list(output.glob("*.tar.zst"))))

    thread = threading.Thread(target=lose_a_node, daemon=True)
    thread.start()
    try:
        assert run(output, "--engine", "ray", "--ray-address", cluster.address, kind=kind) == 0
        thread.join(10)
        assert lost
        assert lost[0] < len(list(output.glob("*.tar.zst")))
        assert contents(output) == contents(tmp_path / "local")
    finally:
        cluster.shutdown()


@pytest.mark.parametrize(("kind", "kill"), [("texts", 0), ("texts", 1), ("texts", 2), ("chats", 3), ("chats", 4)])
def test_a_build_on_a_cluster_killed_at_any_moment_goes_on(
    kind, kill, what, run, tokenizer, *, tmp_path, contents, shell
):
    assert run(tmp_path / "local", "--workers", 2, kind=kind) == 0
    moments, output = random.Random(kill), tmp_path / "ray"
    inputs = (tmp_path / "large.jsonl",) if kind == "texts" else what[kind]
    command = ["build", *inputs, "--tokenizer", tokenizer, "--output", output, *options_of(kind)]
    process = shell(
        *command, "--engine", "ray", "--workers", (1, 2, 8)[kill % 3], RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0"
    )
    count = moments.randrange(1, 2 * len(list((tmp_path / "local").glob("train-*.tar.zst"))) - 5)
    while process.poll() is None and commits(output) < count:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (output / "manifest.json").exists()
    assert run(output, "--engine", "ray", "--workers", 2, kind=kind) == 0
    assert contents(output) == contents(tmp_path / "local")


def commits(output: Path) -> int:
    """Counts slices of the input and shards that are finished."""
    return len(list(output.glob("train-*.tar.zst"))) + len(list(output.glob(".build/slice-*.json")))


def test_an_error_in_a_task_is_told_as_it_was_raised(corpus, tokenizer, tmp_path, capsys):
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(corpus.read_bytes() + b"{broken\n")
    command = ["build", bad, "--tokenizer", tokenizer, "--output", tmp_path / "out", "--engine", "ray"]
    assert main([str(part) for part in command]) == 1
    error = capsys.readouterr().err
    assert f"shardtools: error: {bad}:401: " in error
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_cluster_that_is_not_there_is_a_wrong_request(run, tmp_path, capsys):
    assert run(tmp_path / "out", "--engine", "ray", "--ray-address", "127.0.0.1:1") == 2
    assert "no Ray cluster at 127.0.0.1:1" in capsys.readouterr().err
