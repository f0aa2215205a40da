"""A build killed at any moment goes on and ends in the same bytes."""

import contextlib
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from shardtools.cli import main

SMALL = ("--shard-tokens", 3_000, "--frame-tokens", 1_000)
KILLS = [*range(6), *(pytest.param(i, marks=pytest.mark.slow) for i in range(6, 26))]


@pytest.fixture(scope="module")
def large(tmp_path_factory, corpus):
    path = tmp_path_factory.mktemp("large") / "large.jsonl"
    path.write_bytes(corpus.read_bytes() * 6)
    return path


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, large, tokenizer):
    folder = tmp_path_factory.mktemp("unbroken") / "source"
    command = ["build", large, "--tokenizer", tokenizer, "--output", folder, *SMALL, "--workers", 1]
    assert main([str(part) for part in command]) == 0
    return folder


@pytest.mark.parametrize("kill", KILLS)
def test_a_build_killed_at_any_moment_goes_on_and_ends_in_the_same_bytes(
    kill, tmp_path, *, large, tokenizer, unbroken, contents, shell
):
    moments = random.Random(kill)
    output = tmp_path / "source"
    workers = (1, 2, 8)[kill % 3]
    command = ["build", large, "--tokenizer", tokenizer, "--output", output, *SMALL, "--workers", workers]
    process = shell(*command)
    count = moments.randrange(0, 2 * len(list(unbroken.glob("*.tar.zst"))))
    deadline = time.monotonic() + 60
    while process.poll() is None and commits(output) < count and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(moments.random() * 0.05)
    if kill % 2:
        process.kill()  # the workers find out by themselves
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    finished = {path.name: path.stat().st_mtime_ns for path in output.glob("*.tar.zst")}
    assert (process.returncode == 0) == (output / "manifest.json").exists() or process.returncode == -signal.SIGKILL

    again = shell(*command)
    _, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    assert contents(output) == contents(unbroken)
    assert not (output / ".build").exists()
    assert {name: (output / name).stat().st_mtime_ns for name in finished} == finished, "made again"


def commits(output: Path) -> int:
    """Counts slices of the input and shards that are finished."""
    return len(list(output.glob("*.tar.zst"))) + len(list(output.glob(".build/slice-*.json")))


def test_workers_leave_when_their_parent_is_killed(tmp_path, large, tokenizer, shell):
    output = tmp_path / "source"
    process = shell("build", large, "--tokenizer", tokenizer, "--output", output, *SMALL, "--workers", 2)
    while not list(output.glob("*.tar.zst")) and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and members(process.pid):
        time.sleep(0.05)
    assert members(process.pid) == []


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_worker_process_has_one_thread_so_that_it_needs_no_locks(tmp_path, large, tokenizer, shell):
    process = shell("build", large, "--tokenizer", tokenizer, "--output", tmp_path / "out", *SMALL, "--workers", 2)
    threads = set()
    while process.poll() is None:
        for member in members(process.pid):
            with contextlib.suppress(OSError, StopIteration):
                spawned = b"spawn_main" in Path(f"/proc/{member}/cmdline").read_bytes()
                status = Path(f"/proc/{member}/status").read_text().splitlines()
                count = next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
                if spawned:
                    threads.add(count)
        time.sleep(0.01)
    process.communicate()
    assert process.returncode == 0
    assert threads == {1}


def members(group: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(process.name))
    return found


def test_an_interrupt_ends_in_one_line_and_the_build_goes_on(tmp_path, large, tokenizer, unbroken, contents, shell):
    for number in range(5):  # on a busy machine the build may be through before the signal comes
        output = tmp_path / f"source{number}"
        command = ["build", large, "--tokenizer", tokenizer, "--output", output, *SMALL, "--workers", 2]
        process = shell(*command)
        # The first slice of the input is done: shards are to come, so most of the build is.
        while not list(output.glob(".build/slice-*.json")) and process.poll() is None:
            time.sleep(0.002)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        if process.returncode:
            break
    assert process.returncode == 130
    assert "interrupted" in errors
    assert not re.search(r"Traceback|Error", errors), errors
    again = shell(*command)
    again.communicate(timeout=60)
    assert contents(output) == contents(unbroken)
