"""Worker processes: started in every way, gone when they should be, and killed as the kernel does without memory."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing import synchronize
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from laws import Batch, assert_same_future, take
from streams import stream_of, write_stream

from streampipe import StreamConfig, Topology, build_loader
from streampipe.loader import StreamLoader

# torch raises wherever the main thread is when the signal comes: out of the opening or the closing of a temporary file
# (with which it sees whether any can be opened) or of a socket, which then are closed once more, or by the collector.
pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

RANK = Topology(dp_size=2, dp_rank=1)


@contextmanager
def signals(torch_is_told: bool) -> Iterator[None]:
    """A trainer may have a handler of its own in the place of torch's, and one that iterates in a thread has none."""
    before = signal.getsignal(signal.SIGCHLD)
    if not torch_is_told:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def kill_one(loader: StreamLoader, batches: list[Batch], before: float, after: float) -> str:
    """Kill a worker and take what still comes; return the error that tells of it, and check that none is left."""
    with pytest.raises(RuntimeError, match="worker") as told:
        time.sleep(before)
        multiprocessing.active_children()[0].kill()
        time.sleep(after)
        while True:
            batches.append(next(loader))
    loader.close()
    assert multiprocessing.active_children() == []
    return str(told.value)


@pytest.fixture
def two_workers(corpora: Path) -> StreamConfig:
    return stream_of(corpora, {"loader.num_workers": 2})


@pytest.mark.parametrize("torch_is_told", [True, False])
def test_a_killed_worker_is_an_error_and_takes_the_others_with_it(
    corpora: Path, two_workers: StreamConfig, torch_is_told: bool
) -> None:
    """Whether it is killed while it makes a batch, hands one over, or waits until one is taken."""
    expected = take(stream_of(corpora), 40, RANK)
    for before, after in [(0.0, 0.0), (0.0, 0.3), (0.01, 0.0), (0.3, 0.0), (0.3, 0.3)]:
        with build_loader(two_workers, RANK) as loader:
            batches = [next(loader)]
            with signals(torch_is_told):
                told = kill_one(loader, batches, before, after)
            if not torch_is_told:
                assert "was killed by SIGKILL" in told
                assert "go on from the last saved state" in told
            batches += islice(iter(loader), 4)
        assert_same_future(batches, expected[: len(batches)])


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_worker_that_takes_a_lock_with_it_leaves_nobody_waiting(
    two_workers: StreamConfig, monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    """Workers ask torch's event whether to end, under its lock; one that is killed then never gives it back."""

    def asking_for_long(event: synchronize.Event) -> bool:
        with event._cond:
            time.sleep(0.2)
            return False

    monkeypatch.setattr(synchronize.Event, "is_set", asking_for_long)
    loader = build_loader(two_workers, RANK)
    next(loader)
    with pytest.raises(RuntimeError, match="worker"):
        time.sleep(0.1)
        for worker in multiprocessing.active_children():
            worker.kill()
        while True:
            next(loader)
    began = time.monotonic()
    if forgotten:
        del loader
    else:
        loader.close()
    assert time.monotonic() - began < 30
    assert multiprocessing.active_children() == []


STARTED = """
import multiprocessing, sys
from streampipe import build_loader, load_config
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    config = load_config(sys.argv[1], {"loader.num_workers": 2})
    for _ in range(3):
        with build_loader(config) as loader:
            print(*(int(next(loader)["tokens"].sum()) for _ in range(5)))
    forgotten = build_loader(config)
    next(forgotten)
"""


def started(corpora: Path, tmp_path: Path, method: str, temporary: str) -> "subprocess.CompletedProcess[str]":
    script = tmp_path / "script.py"
    script.write_text(STARTED)
    words = [sys.executable, script, write_stream(tmp_path / "stream.yaml", corpora), method]
    environment = {**os.environ, "TMPDIR": temporary}
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=90, env=environment)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method_work_and_leave_no_file(corpora: Path, tmp_path: Path, method: str) -> None:
    with TemporaryDirectory() as temporary:
        done = started(corpora, tmp_path, method, temporary)
        left = list(Path(temporary).iterdir())
    expected = [int(batch["tokens"].sum()) for batch in take(stream_of(corpora), 5)]
    assert [[int(word) for word in line.split()] for line in done.stdout.splitlines()] == [expected] * 3
    assert "Error" not in done.stderr
    assert left == []


def test_a_path_too_long_for_sockets_is_refused_where_torch_would_hang(corpora: Path, tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 90)
    folder.mkdir()
    done = started(corpora, tmp_path, "fork", str(folder))
    assert done.returncode
    assert "set TMPDIR to a folder with a shorter path" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("how", ["close", "forget"])
def test_a_fork_of_the_process_leaves_its_workers_alone(two_workers: StreamConfig, corpora: Path, how: str) -> None:
    """As when a trainer forks processes of its own while it has a loader."""
    with build_loader(two_workers, RANK) as loader:
        batches = [next(loader)]

        def in_fork() -> None:
            if how == "close":
                loader.close()
            loader._batches = None

        child = multiprocessing.get_context("fork").Process(target=in_fork)
        child.start()
        child.join(30)
        assert child.exitcode == 0
        batches += islice(loader, 30)
    assert_same_future(batches, take(stream_of(corpora), 31, RANK))
