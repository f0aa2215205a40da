"""StreamDataset under the loaders that people have: the same sequence, nothing left behind, errors that arrive."""

import gc
import multiprocessing
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import Batch, assert_same_future, plain, same_batch, take
from streams import raw_stream, stream_of, write_stream
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from streampipe import (
    CursorMismatchError,
    ManifestError,
    ShardCorruptError,
    ShardMissingError,
    SourceError,
    StreamConfig,
    StreamDataset,
    Topology,
    build_loader,
    config_from,
)
from streampipe.plan.schedule import Schedule
from streampipe.run_ahead import MicroBatches

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 with torch 2.13
]

RANK = Topology(dp_size=2, dp_rank=1)


def finite(folder: Path, changes: dict[str, Any] | None = None) -> StreamConfig:
    raw = raw_stream(folder, changes)
    for source in raw["sources"]:
        source["epochs"] = 1
    return config_from(raw)


# Under a plain DataLoader


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_plain_dataloader_delivers_the_same_sequence(corpora: Path, workers: int) -> None:
    dataset = StreamDataset(stream_of(corpora), RANK)
    batches = list(islice(DataLoader(dataset, batch_size=None, num_workers=workers), 20))
    assert_same_future(batches, take(stream_of(corpora), 20, RANK))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_plain_dataloader_ends_where_a_finite_run_ends_and_begins_again(corpora: Path, workers: int) -> None:
    loader = DataLoader(StreamDataset(finite(corpora), RANK), batch_size=None, num_workers=workers)
    whole = take(finite(corpora), None, RANK)
    assert_same_future(list(loader), whole)
    assert_same_future(list(loader), whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_cursor_in_a_batch_resumes_a_plain_dataloader_with_any_workers(corpora: Path, workers: int) -> None:
    whole = take(stream_of(corpora), 20, RANK)
    for number in (0, 3, 8):
        dataset = StreamDataset(stream_of(corpora), RANK)
        dataset.load_state_dict(whole[number]["cursor"])
        loader = DataLoader(dataset, batch_size=None, num_workers=workers, prefetch_factor=4 if workers else None)
        assert_same_future(list(islice(loader, 19 - number)), whole[number + 1 :])


def test_a_resumed_epoch_does_not_shorten_the_next(corpora: Path) -> None:
    whole = take(finite(corpora), None, RANK)
    dataset = StreamDataset(finite(corpora), RANK)
    dataset.load_state_dict(whole[-3]["cursor"])
    assert dataset.state_dict() == whole[-3]["cursor"]
    loader = DataLoader(dataset, batch_size=None)
    assert_same_future(list(loader), whole[-2:])
    assert_same_future(list(loader), whole)


def test_persistent_workers_give_whole_epochs(corpora: Path) -> None:
    whole = take(finite(corpora), None, RANK)
    dataset = StreamDataset(finite(corpora), RANK)
    dataset.load_state_dict(whole[-3]["cursor"])
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    assert_same_future(list(loader), whole[-2:])
    assert_same_future(list(loader), whole)


def test_the_constructor_does_no_io_and_a_copy_gives_the_same(corpora: Path) -> None:
    StreamDataset(stream_of("/nowhere"), RANK)
    dataset = StreamDataset(stream_of(corpora), RANK)
    next(iter(dataset))
    copy = pickle.loads(pickle.dumps(dataset))
    assert_same_future(list(islice(iter(copy), 5)), take(stream_of(corpora), 5, RANK))


# Under torchdata's StatefulDataLoader


def stateful(config: StreamConfig, workers: int) -> "StatefulDataLoader[Batch]":
    return StatefulDataLoader(StreamDataset(config, RANK), batch_size=None, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_dataloader_goes_on_from_its_state_in_mid_run(corpora: Path, workers: int) -> None:
    config = stream_of(corpora, {"batch.micro_batch_size": 1})  # eight micro batches a step: most states lie inside one
    whole = take(config, 24, RANK)
    for delivered in (1, 5, 8, 12) if workers else range(1, 16):
        loader = stateful(config, workers)
        first = list(islice(iter(loader), delivered))
        state = loader.state_dict()
        resumed = stateful(config, workers)
        resumed.load_state_dict(state)
        assert_same_future([*first, *islice(iter(resumed), 24 - delivered)], whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_dataloader_resumed_twice_in_a_finite_run_ends_with_it(corpora: Path, workers: int) -> None:
    whole = take(finite(corpora), None, RANK)
    got: list[Batch] = []
    state: dict[str, Any] | None = None
    for delivered in (5, 6, None):
        loader = stateful(finite(corpora), workers)
        if state is not None:
            loader.load_state_dict(state)
        got += islice(iter(loader), delivered)
        state = loader.state_dict()
    assert_same_future(got, whole)
    assert_same_future(list(loader), whole, "the epoch after the resumed one is whole")


# What is left behind


def open_files() -> int:
    gc.collect()  # what a thread held while it ended
    return len(list(Path("/proc/self/fd").iterdir()))


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("streampipe")]


def settled(measure: Callable[[], Any], wanted: Any) -> Any:
    """Threads end when they next look: give them a moment."""
    deadline = time.monotonic() + 5
    while measure() != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return measure()


def stop_in_the_middle(config: StreamConfig, how: str) -> None:
    if how == "close":
        loader = build_loader(config, RANK)
        for _ in islice(loader, 3):
            pass
        loader.close()
    elif how == "with":
        with build_loader(config, RANK) as loader:
            next(loader)
    elif how == "forget":
        loader = build_loader(config, RANK)
        next(loader)
    elif how == "dataloader":
        for _ in DataLoader(StreamDataset(config, RANK), batch_size=None, num_workers=config.loader.num_workers):
            break
    elif how == "reload":
        with build_loader(config, RANK) as loader:
            cursor = next(loader)["cursor"]
            for _ in range(3):
                loader.load_state_dict(cursor)
                next(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["close", "with", "forget", "dataloader", "reload"])
def test_stopping_early_leaves_no_thread_no_process_and_no_open_file(corpora: Path, how: str, workers: int) -> None:
    config = stream_of(corpora, {"loader.num_workers": workers})
    stop_in_the_middle(config, how)  # what torch opens once and keeps
    gc.collect()
    settled(our_threads, [])
    before = open_files()
    for _ in range(4):
        stop_in_the_middle(config, how)
    gc.collect()
    assert settled(our_threads, []) == []
    assert settled(multiprocessing.active_children, []) == []
    assert settled(open_files, before) == before


def test_many_epochs_hold_no_more_files_and_threads_than_one(corpora: Path) -> None:
    with build_loader(finite(corpora)) as loader:
        counts = []
        for _ in range(5):
            for _ in loader:
                pass
            settled(our_threads, [])
            counts.append((len(our_threads()), open_files()))
    assert counts == counts[:1] * 5


SCRIPT = """
import sys, torch
from streampipe import build_loader, load_config
loader = build_loader(load_config(sys.argv[1], {"loader.num_workers": int(sys.argv[2])}))
next(loader)
if sys.argv[3] == "wait":
    print(*[worker.pid for worker in loader._batches.processes], flush=True)
    sys.stdin.read()
"""


def start(config: Path, workers: int, then: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", SCRIPT, str(config), str(workers), then]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_process_that_ends_without_closing_ends_at_once(corpora: Path, tmp_path: Path) -> None:
    process = start(write_stream(tmp_path / "stream.yaml", corpora), 0, "end")
    process.communicate(timeout=60)
    assert process.returncode == 0


# Exit functions run in the reverse of the order in which they were registered: this one after those of streampipe.
LOOK_AT_THE_END = """
import atexit, threading
atexit.register(lambda: print([t.name for t in threading.enumerate() if "streampipe" in t.name], flush=True))
"""


def test_no_thread_of_a_loader_outlives_the_exit_functions(corpora: Path, tmp_path: Path) -> None:
    """One that does is torn out of whatever it is in, which aborts the process where that is C++ code."""
    config = write_stream(tmp_path / "stream.yaml", corpora)
    began = SCRIPT.replace("next(loader)", "next(loader)\nprint(threading.active_count() > 1)")
    words = [sys.executable, "-c", LOOK_AT_THE_END + began, str(config), "0", "end"]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["True", "[]"]


def test_workers_do_not_outlive_a_killed_parent(corpora: Path, tmp_path: Path) -> None:
    process = start(write_stream(tmp_path / "stream.yaml", corpora), 2, "wait")
    assert process.stdout is not None
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    process.send_signal(signal.SIGKILL)
    process.communicate()

    def alive() -> list[int]:
        states = {pid: Path(f"/proc/{pid}/stat") for pid in workers}
        return [
            pid
            for pid, stat in states.items()
            if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
        ]

    deadline = time.monotonic() + 12
    while alive() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive() == []


# When something breaks


@pytest.fixture
def broken(corpora: Path, tmp_path: Path) -> Path:
    """Return copies of the sources; one bit of a shard of `code` is flipped."""
    shutil.copytree(corpora, tmp_path, dirs_exist_ok=True)
    shard = tmp_path / "code" / "train-00001.tar.zst"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    return tmp_path


def until_it_breaks(loader: Iterator[Batch]) -> tuple[list[Batch], SourceError]:
    batches: list[Batch] = []
    with pytest.raises(SourceError) as caught:
        for _ in range(1000):
            batches.append(next(loader))
    return batches, caught.value


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_corrupt_shard_is_an_error_of_next_naming_it_again_and_again(
    corpora: Path, broken: Path, workers: int
) -> None:
    with build_loader(stream_of(broken, {"loader.num_workers": workers}), RANK) as loader:
        batches, error = until_it_breaks(loader)
        assert isinstance(error, ShardCorruptError)
        assert error.path == "train-00001.tar.zst"
        assert str(broken / "code" / "train-00001.tar.zst") in str(error)
        assert "shardtools verify" in str(error)
        assert "\n" not in str(error)
        assert multiprocessing.active_children() == [], "workers end with the error, not when it is collected"
        for _ in range(3):
            with pytest.raises(ShardCorruptError, match="train-00001"):
                next(loader)
        # Nothing was lost: what came before the fault is what should have come, and the state stands before it.
        assert_same_future(batches, take(stream_of(corpora), len(batches), RANK))
        shutil.copy(corpora / "code" / "train-00001.tar.zst", broken / "code")
    with build_loader(stream_of(broken, {"loader.num_workers": workers}), RANK) as repaired:
        repaired.load_state_dict(loader.state_dict())
        expected = take(stream_of(corpora), len(batches) + 4, RANK)
        assert_same_future(list(islice(repaired, 4)), expected[len(batches) :])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fault_that_has_gone_away_is_left_behind_by_iter(corpora: Path, broken: Path, workers: int) -> None:
    shard, away = broken / "code" / "train-00001.tar.zst", broken / "away"
    shard.rename(away)
    with build_loader(stream_of(broken, {"loader.num_workers": workers}), RANK) as loader:
        batches, error = until_it_breaks(loader)
        assert isinstance(error, ShardMissingError)
        assert "train-00001.tar.zst" in str(error)
        shutil.copy(corpora / "code" / "train-00001.tar.zst", shard)
        with pytest.raises(ShardMissingError):
            next(loader)  # only iter() asks anew
        batches += islice(iter(loader), 6)
    assert_same_future(batches, take(stream_of(corpora), len(batches), RANK))


@pytest.mark.parametrize("threads", [None, 0, 2])
def test_every_batch_before_a_fault_comes_however_many_are_made_at_once(broken: Path, threads: int | None) -> None:
    delivered: dict[int, int] = {}
    for workers in (0, 1, 3):  # three make one at a time, one or none many
        changes = {
            "loader.num_workers": workers,
            "storage.threads": threads,
            "shuffle": False,
            "plan.window_tokens": 2048,
        }
        with build_loader(stream_of(broken, changes), RANK) as loader:
            delivered[workers] = len(until_it_breaks(loader)[0])
            assert until_it_breaks(iter(loader))[0] == [], "asked anew, the fault is where it was"
    assert len(set(delivered.values())) == 1, delivered
    assert delivered[0] == 18, "not where those made at once begin"


def test_assembling_ahead_goes_on_after_every_batch_that_is_taken(corpora: Path) -> None:
    class SlowDeque(deque[Any]):
        def popleft(self) -> Any:
            time.sleep(0.05)  # whoever waits for room looks meanwhile
            return super().popleft()

    dataset = StreamDataset(stream_of(corpora, {"loader.prefetch": 1}), RANK)
    batches = MicroBatches(dataset.stream, RANK, dataset.stream.start())
    ready = batches._pipeline.ready = SlowDeque()
    for _ in range(6):
        next(batches)
        deadline = time.monotonic() + 10
        while not ready and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ready, "nothing is made ahead any more"
    batches.close()


def test_a_state_is_of_its_own_place_while_another_iterator_asks(corpora: Path) -> None:
    stream = StreamDataset(stream_of(corpora), RANK).stream
    schedule = Schedule(stream.planner, stream.place(stream.start()))
    here = schedule.place
    while schedule.place.round == here.round:
        schedule.next(16)
    there, due = schedule.place, stream.state(here)

    class Interrupted(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            stream.sources = [*super().__iter__()]
            stream.state(there)
            return super().__iter__()

    stream.sources = Interrupted(stream.sources)
    assert stream.state(here) == due


def test_a_refused_state_leaves_an_iterator_where_it_was(corpora: Path) -> None:
    batches = iter(StreamDataset(stream_of(corpora), RANK))
    first = [next(batches) for _ in range(3)]
    other = StreamDataset(stream_of(corpora, {"seed": 9}), RANK)
    with pytest.raises(CursorMismatchError):
        batches.load_state_dict({"cursor": other.state_dict(), "skip": 0})
    first += islice(batches, 300)
    assert len(first) == 303
    assert_same_future(first, take(stream_of(corpora), len(first), RANK))
    batches.close()


def test_a_plain_dataloader_names_the_corrupt_shard_too(broken: Path) -> None:
    for workers in (0, 2):
        loader = DataLoader(StreamDataset(stream_of(broken), RANK), batch_size=None, num_workers=workers)
        iterator = iter(loader)
        with pytest.raises(ShardCorruptError, match="train-00001"):
            list(islice(iterator, 1000))
        if workers:
            iterator._shutdown_workers()  # or the garbage collector does, and waits for each of them


def test_a_damaged_index_and_an_absent_manifest_are_errors_before_the_first_batch(broken: Path) -> None:
    index = broken / "web" / "train-00000.index.parquet"
    index.write_bytes(index.read_bytes()[:-1])
    with (
        build_loader(stream_of(broken)) as loader,
        pytest.raises(ShardCorruptError, match=r"train-00000\.index\.parquet"),
    ):
        next(loader)
    (broken / "web" / "manifest.json").unlink()
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        build_loader(stream_of(broken))


# What a batch is made of


@pytest.mark.parametrize(
    "changes", [{}, {"packing.policy": "none", "batch.layout": "sbhd"}, {"batch.token_dtype": "int32"}]
)
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_contiguous_tensors_of_the_documented_types(
    corpora: Path, changes: dict[str, Any], workers: int
) -> None:
    batch = take(stream_of(corpora, changes | {"loader.num_workers": workers}), 1)[0]
    tokens = torch.int32 if "batch.token_dtype" in changes else torch.int64
    expected = {"tokens": tokens, "labels": tokens, "position_ids": tokens, "loss_mask": torch.float32}
    expected |= {"source_ids": torch.int32, "document_ids": torch.int64, "epochs": torch.int32}
    sbhd = changes.get("batch.layout") == "sbhd"
    expected |= {"lengths": torch.int32} if sbhd else {"cu_seqlens": torch.int32, "cu_seqlens_padded": torch.int32}
    for name, dtype in expected.items():
        tensor = batch[name]
        assert isinstance(tensor, torch.Tensor), name
        assert tensor.dtype == dtype, name
        assert tensor.is_contiguous(), name
        assert tensor.device.type == "cpu"
        if torch.cuda.is_available():
            assert tensor.pin_memory().is_pinned()
    for name in ("tokens", "labels", "position_ids", "loss_mask"):
        assert batch[name].shape == ((2, 128) if sbhd else (256,))
    for name in ("loss_tokens", "step_loss_tokens", "num_micro_batches", "step", "micro_batch"):
        assert type(batch[name]) is int, name


def test_writing_into_a_batch_changes_no_other_batch(corpora: Path) -> None:
    whole = take(stream_of(corpora), 12)
    with build_loader(stream_of(corpora)) as loader:
        for expected in whole:
            batch = next(loader)
            assert same_batch(batch, expected)
            for value in plain(batch).values():
                if hasattr(value, "fill"):
                    value.fill(9)


def test_kept_batches_stay_what_they_were(corpora: Path) -> None:
    with build_loader(stream_of(corpora)) as loader:
        kept = list(islice(loader, 64))
    assert_same_future(kept, take(stream_of(corpora), 64))
