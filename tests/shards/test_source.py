"""A source: reads little, reads it once, checks it always, and survives threads, forks and pickling."""

import multiprocessing
import pickle
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampipe.errors import ConfigError
from streampipe.shards import MANIFEST_NAME, Document, Source, read_manifest, source
from streampipe.shards.index import FrameIndex
from streampipe.shards.index_cache import IndexCache
from streampipe.storage import FsspecStore, LocalStore, Range

WriteSource = Callable[..., Source]
ReadTokens = Callable[[Source], list[list[np.ndarray]]]


class WatchedStore(LocalStore):
    """A local store that remembers what was asked of it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads: list[str] = []
        self.bulk_reads: list[list[Range]] = []

    def read(self, name: str) -> bytes:
        self.reads.append(name)
        return super().read(name)

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        self.bulk_reads.append(list(ranges))
        return super().read_ranges(ranges)


@pytest.fixture
def watched(tmp_path: Path, documents: list[Document], write_source: WriteSource) -> tuple[Source, WatchedStore]:
    write_source(str(tmp_path), documents)
    store = WatchedStore(str(tmp_path))
    return Source("web", store, read_manifest(store), "train"), store


def test_opening_reads_the_manifest_and_nothing_else(watched: tuple[Source, WatchedStore]) -> None:
    opened, store = watched
    assert store.reads == [MANIFEST_NAME]
    assert store.bulk_reads == []
    assert opened.shard_documents.tolist() == [30, 30]
    assert opened.shard_tokens.sum() == sum(entry.tokens for entry in opened.shards)
    assert opened.token_dtype == np.dtype("<u2")
    assert opened.tokenizer.vocab_size == 50_000


def test_each_index_is_read_once(watched: tuple[Source, WatchedStore]) -> None:
    opened, store = watched
    for _ in range(3):
        opened.index(1)
        opened.read_frames([(1, 0), (1, 1)])
    assert store.reads == [MANIFEST_NAME, "train-00001.index.parquet"]


def test_adjacent_frames_are_one_range_of_one_bulk_read(watched: tuple[Source, WatchedStore]) -> None:
    opened, store = watched
    index = opened.index(0)
    frames = [(1, 0), (0, 2), (0, 1), (0, 1), (1, 2)]
    raw = opened.read_frames(frames)
    assert [len(data) for data in raw] == [int(opened.index(shard).raw_bytes[f]) for shard, f in frames]
    assert raw[2] is raw[3]
    (ranges,) = store.bulk_reads
    two = int(index.compressed_bytes[1] + index.compressed_bytes[2])
    assert ranges[0] == ("train-00000.tar.zst", int(index.offset[1]), two)
    assert len(ranges) == 3
    assert opened.read_frames([]) == []


def test_long_runs_are_cut_into_several_requests(
    watched: tuple[Source, WatchedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, store = watched
    every = [(0, f) for f in range(opened.shards[0].frames)]
    whole = opened.read_frames(every)
    largest = int(opened.index(0).compressed_bytes.max())
    monkeypatch.setattr(source, "MAX_READ_BYTES", largest)
    assert opened.read_frames(every) == whole
    assert [len(ranges) for ranges in store.bulk_reads] == [1, opened.shards[0].frames]


@given(data=st.data())
def test_any_frames_in_any_order_are_what_each_is_alone(data: st.DataObject, documents_source: Source) -> None:
    every = [(s, f) for s, entry in enumerate(documents_source.shards) for f in range(entry.frames)]
    asked = data.draw(st.lists(st.sampled_from(every), max_size=12))
    assert documents_source.read_frames(asked) == [documents_source.read_frames([frame])[0] for frame in asked]


@pytest.fixture(scope="session")
def documents_source(documents: list[Document], write_source: WriteSource) -> Source:
    return write_source("memory://source/any-order", documents)


@pytest.mark.parametrize("frame", [(0, -1), (0, 10**6), (-1, 0), (2, 0)])
def test_a_frame_that_is_not_there_is_an_index_error(
    watched: tuple[Source, WatchedStore], frame: tuple[int, int]
) -> None:
    with pytest.raises(IndexError, match="but got"):
        watched[0].read_frames([frame])


def test_an_unknown_split_is_refused_with_those_there_are(watched: tuple[Source, WatchedStore]) -> None:
    with pytest.raises(ConfigError, match=r"no split 'test'; choose one of \['train'\]"):
        Source.open("web", watched[0].url, "test")


def test_the_content_hash_is_of_what_is_held_and_not_of_where(
    tmp_path: Path, documents: list[Document], write_source: WriteSource
) -> None:
    here = write_source(str(tmp_path / "here"), documents)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert Source.open("other-name", str(tmp_path / "there")).content_hash == here.content_hash
    assert len(here.content_hash) == 16
    others = [
        write_source(str(tmp_path / "fewer"), documents[:-1]),
        write_source(str(tmp_path / "wider"), documents, token_dtype="uint32"),
        write_source(str(tmp_path / "turned"), documents[::-1]),
        write_source(str(tmp_path / "frames"), documents, frame_tokens=500),
    ]
    assert len({here.content_hash, *(other.content_hash for other in others)}) == 5


def test_threads_share_a_source_and_load_each_index_once(watched: tuple[Source, WatchedStore]) -> None:
    opened, store = watched
    frames = [(s, f) for s, entry in enumerate(opened.shards) for f in range(entry.frames)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: opened.read_frames([frames[i % len(frames)]])[0], range(200)))
    alone = [opened.read_frames([frame])[0] for frame in frames]
    assert found == [alone[i % len(frames)] for i in range(200)]
    assert sorted(store.reads) == sorted([MANIFEST_NAME, "train-00000.index.parquet", "train-00001.index.parquet"])


def test_a_pickled_source_reads_the_same(
    tmp_path: Path, documents: list[Document], write_source: WriteSource, read_tokens: ReadTokens
) -> None:
    opened = write_source(str(tmp_path), documents)
    expected = read_tokens(opened)
    copy = pickle.loads(pickle.dumps(opened))
    assert copy.content_hash == opened.content_hash
    for shard, tokens in enumerate(read_tokens(copy)):
        assert all(np.array_equal(a, b) for a, b in zip(tokens, expected[shard], strict=True))


def test_a_child_forked_while_another_thread_loads_an_index_does_not_hang(
    watched: tuple[Source, WatchedStore],
) -> None:
    opened, _ = watched
    loading, forked = threading.Event(), threading.Event()

    def load_slowly(shard: int) -> FrameIndex:
        loading.set()
        forked.wait(30)
        return opened.load_index(shard)

    thread = threading.Thread(target=lambda: opened._indexes.get(0, load_slowly))
    thread.start()
    loading.wait(30)
    child = multiprocessing.get_context("fork").Process(target=lambda: opened.read_frames([(0, 0), (1, 0)]))
    child.start()
    child.join(20)
    exitcode = child.exitcode
    child.kill()
    forked.set()
    thread.join()
    assert exitcode == 0


def test_indexes_in_memory_are_bounded_and_the_one_used_last_stays(watched: tuple[Source, WatchedStore]) -> None:
    opened, _ = watched
    one = opened.index(0).nbytes
    loads: list[int] = []

    def load(shard: int) -> FrameIndex:
        loads.append(shard)
        return opened.index(0)

    cache = IndexCache(2 * one)
    for shard in (0, 1, 0, 2, 0, 1):  # 2 drops 1, the one not used for longest
        cache.get(shard, load)
    assert loads == [0, 1, 2, 1]
    tiny = IndexCache(1)
    assert tiny.get(0, load) is opened.index(0)
    assert tiny.get(0, load) is opened.index(0)
    assert loads == [0, 1, 2, 1, 0]


def test_a_load_that_fails_is_tried_again(watched: tuple[Source, WatchedStore]) -> None:
    opened, store = watched
    index = opened.load_index(0)
    path = Path(store.url) / "train-00000.index.parquet"
    path.rename(path.with_suffix(".away"))
    with pytest.raises(Exception, match="it is not there"):
        opened.index(0)
    path.with_suffix(".away").rename(path)
    assert np.array_equal(opened.index(0).lengths, index.lengths)


def test_a_source_behind_fsspec_is_the_same_source(
    tmp_path: Path, documents: list[Document], write_source: WriteSource, read_tokens: ReadTokens
) -> None:
    here, there = write_source(str(tmp_path), documents), write_source("memory://source/same", documents)
    assert isinstance(there.store, FsspecStore)
    assert here.content_hash == there.content_hash
    for ours, theirs in zip(read_tokens(here), read_tokens(there), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
