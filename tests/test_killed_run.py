"""A real run of the training script: killed on two processes, resumed on four, fed as one rank would have been."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from shardtools.cli import main as shardtools
from streampipe import load_config
from streampipe.tools.digest import digest_steps

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_example", EXAMPLES / "demo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a stream of two small sources, relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    folders = {name: str(EXAMPLES.parent / name) for name in ("streampipe", "shardtools")}
    options = ["--vocab-size", "300", "--output", "t.json"]
    assert shardtools(["train-tokenizer", *folders.values(), "--include", "*.py", *options]) == 0
    for name, folder in folders.items():
        options = ["--include", "*.py", "--tokenizer", "t.json", "--frame-tokens", "2048"]
        assert shardtools(["build", folder, *options, "--output", name]) == 0
    path = tmp_path / "stream.yaml"
    path.write_text(
        "seed: 5\nseq_length: 64\n"
        "sources: [{name: a, path: streampipe, weight: 0.7}, {name: b, path: shardtools, weight: 0.3}]\n"
        "plan: {windows: 4, window_tokens: 8192}\nbatch: {global_batch_size: 8, micro_batch_size: 2}\n"
    )
    return path


def start(ranks: int, steps: int, hash_seed: str) -> "subprocess.Popen[bytes]":
    """Start the script under torchrun; it writes to `out`."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(EXAMPLES / "train.py")]
    options = ["--config", "stream.yaml", "--out", "out", "--steps", str(steps), "--checkpoint-every", "2"]
    paths = os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.Popen([sys.executable, *words, *options], env=environment)


def test_a_run_killed_on_two_processes_goes_on_on_four_as_if_nothing_had_happened(
    demo: ModuleType, config: Path, tmp_path: Path
) -> None:
    run = start(ranks=2, steps=1_000_000, hash_seed="1")
    deadline = time.monotonic() + 120
    try:
        while len(demo.steps_of(tmp_path / "out")) < 6:
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        family = demo.descendants(run.pid)
        for pid in family:
            os.kill(pid, signal.SIGKILL)
    assert len(family) >= 3  # torchrun and its ranks
    run.wait()
    while any(demo.is_alive(pid) for pid in family):
        time.sleep(0.02)

    before = demo.steps_of(tmp_path / "out")
    steps = before[-1]["step"] + 4
    assert start(ranks=4, steps=steps, hash_seed="2").wait(120) == 0

    lines = demo.steps_of(tmp_path / "out")
    assert {line["ranks"] for line in lines} == {2, 4}
    assert {line["step"] for line in lines} == set(range(steps))
    expected = {one["step"]: one["sha256"] for one in digest_steps(load_config(config), steps, dp_size=1)}
    assert len(set(expected.values())) == steps
    for line in lines:
        assert line["sha256"] == expected[line["step"]], json.dumps(line)
