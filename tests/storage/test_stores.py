"""One suite for every store; a store passes it by subclassing it with a `url` fixture."""

import multiprocessing
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streampipe.errors import StorageError
from streampipe.storage import LocalStore, Store, keeps_first, open_store

DATA = bytes(range(256)) * 40


def _read_in_child(store: Store, answers: "multiprocessing.SimpleQueue[list[bytes]]") -> None:
    answers.put(store.read_ranges([("a", 1, 3), ("sub/b", 0, 2)]))


class StoreConformance:
    @pytest.fixture
    def options(self) -> dict[str, object]:
        return {}

    @pytest.fixture
    def store(self, url: str, options: dict[str, object]) -> Store:
        return open_store(url, options)

    def test_what_is_written_is_read(self, store: Store) -> None:
        store.write("a", DATA)
        store.write("sub/folder/b", b"")
        assert store.read("a") == DATA
        assert store.read("sub/folder/b") == b""

    def test_a_second_write_replaces_the_first_for_every_kind_of_read(self, store: Store) -> None:
        store.write("a", DATA)
        assert store.read_ranges([("a", 0, 4)]) == [DATA[:4]]
        store.write("a", b"shorter")
        assert store.read("a") == b"shorter"
        assert store.read_ranges([("a", 0, 100)]) == [b"shorter"]

    def test_a_missing_object_is_file_not_found(self, store: Store) -> None:
        store.write("a", DATA)
        with pytest.raises(FileNotFoundError, match="absent"):
            store.read("absent")
        with pytest.raises(FileNotFoundError, match="absent"):
            store.read_ranges([("a", 0, 1), ("absent", 0, 1)])

    def test_an_object_that_appears_after_a_failed_read_is_found(self, store: Store) -> None:
        assert store.names() == []
        with pytest.raises(FileNotFoundError):
            store.read("late")
        store.write("late", b"here")
        assert store.names() == ["late"]
        assert store.read("late") == b"here"

    def test_ranges_come_in_the_order_asked_for(self, store: Store) -> None:
        store.write("a", DATA)
        store.write("sub/b", DATA[::-1])
        ranges = [("a", 100, 5), ("sub/b", 0, 3), ("a", 0, 0), ("a", 0, 5), ("a", 100, 5)]
        assert store.read_ranges(ranges) == [DATA[100:105], DATA[::-1][:3], b"", DATA[:5], DATA[100:105]]
        assert store.read_ranges([]) == []

    @pytest.mark.parametrize("offset", [len(DATA) - 3, len(DATA), len(DATA) + 7])
    def test_a_range_over_the_end_comes_back_short(self, store: Store, offset: int) -> None:
        store.write("a", DATA)
        assert store.read_ranges([("a", 0, 2), ("a", offset, 9)]) == [DATA[:2], DATA[offset:]]

    def test_random_ranges_equal_slices(self, store: Store) -> None:
        store.write("a", DATA)
        ranges = st.lists(st.tuples(st.just("a"), st.integers(0, len(DATA) + 9), st.integers(0, 5_000)), max_size=8)

        @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(ranges)
        def check(asked: list[tuple[str, int, int]]) -> None:
            assert store.read_ranges(asked) == [DATA[offset : offset + length] for _, offset, length in asked]

        check()

    def test_create_stores_once_and_never_replaces(self, store: Store) -> None:
        assert store.create("sub/a", DATA)
        assert store.create("sub/a", DATA), "the same bytes count as stored"
        assert not store.create("sub/a", DATA[::-1])
        assert not store.create("sub/a", b"")
        assert store.read("sub/a") == DATA
        assert store.names() == ["sub/a"]
        assert keeps_first(store, "probe")
        assert store.names() == ["sub/a"]

    def test_of_many_that_create_at_once_one_is_told_yes(self, store: Store) -> None:
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda i: store.create("a", bytes([i]) * 1000), range(16)))
        assert sum(won) == 1
        assert store.read("a") == bytes([won.index(True)]) * 1000

    def test_an_object_holds_its_own_bytes_only(self, store: Store) -> None:
        store.write("a", DATA)
        assert store.holds("a", DATA)
        assert not store.holds("a", DATA[:-1])
        assert not store.holds("a", DATA[::-1])
        assert not store.holds("absent", b"")
        store.write("a", DATA[::-1])
        assert store.holds("a", DATA[::-1])

    def test_names_and_sizes_list_everything_once_in_order(self, store: Store) -> None:
        for name in ("b", "a", "sub/c", "a.partial"):
            store.write(name, name.encode())
        assert store.names() == ["a", "a.partial", "b", "sub/c"]
        assert store.sizes() == {"a": 1, "a.partial": 9, "b": 1, "sub/c": 5}

    def test_deleting_leaves_nothing_and_may_be_repeated(self, store: Store) -> None:
        store.write("a", DATA)
        store.read_ranges([("a", 0, 1)])
        store.delete("a")
        store.delete("a")
        assert store.names() == []
        with pytest.raises(FileNotFoundError):
            store.read_ranges([("a", 0, 1)])

    @pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/passwd", "", ".", "a//b", "s3://x/y", "a\0b"])
    def test_names_that_leave_the_folder_are_refused(self, store: Store, name: str) -> None:
        store.write("a", DATA)
        calls = [
            lambda: store.read(name),
            lambda: store.read_ranges([(name, 0, 1)]),
            lambda: store.write(name, b"evil"),
            lambda: store.delete(name),
            lambda: store.create(name, b"evil"),
            lambda: store.holds(name, b"evil"),
        ]
        for call in calls:
            with pytest.raises(StorageError, match="is not a name inside this folder"):
                call()
        assert store.names() == ["a"]

    def test_threads_may_share_a_store(self, store: Store) -> None:
        store.write("a", DATA)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda i: store.read_ranges([("a", i, 50), ("a", 0, i)]), range(100)))
        assert found == [[DATA[i : i + 50], DATA[:i]] for i in range(100)]

    def test_a_pickled_store_reads_the_same(self, store: Store) -> None:
        store.write("a", DATA)
        store.read_ranges([("a", 0, 1)])
        copy = pickle.loads(pickle.dumps(store))
        assert copy.url == store.url
        assert copy.read("a") == DATA

    def test_a_forked_child_reads_the_same_after_the_parent_used_the_store(self, store: Store) -> None:
        store.write("a", DATA)
        store.write("sub/b", DATA)
        store.read_ranges([("a", 0, 1)])
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=_read_in_child, args=(store, answers))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        assert answers.get() == [DATA[1:4], DATA[:2]]
        start = time.monotonic()
        assert store.read_ranges([("a", 0, 1)]) == [DATA[:1]]
        assert time.monotonic() - start < 5, "the child took the parent's connection"

    def test_no_io_happens_before_the_first_read(self, url: str) -> None:
        assert open_store(f"{url}/absent/folder").names() == []


class TestLocalStore(StoreConformance):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "folder")


class TestFileUrl(StoreConformance):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/folder"


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def url(self) -> str:
        return f"memory://{uuid4().hex}/folder"


class TestS3Store(StoreConformance):
    @pytest.fixture
    def url(self) -> str:
        return f"s3://bucket/{uuid4().hex}"

    @pytest.fixture
    def options(self, s3_options: dict[str, object]) -> dict[str, object]:
        return s3_options

    def test_no_io_happens_before_the_first_read(self, url: str) -> None:
        assert open_store(url, {"endpoint_url": "http://127.0.0.1:1"}).url == url

    def test_a_wrong_secret_is_an_error_that_does_not_tell_it(self, url: str, options: dict[str, object]) -> None:
        store = open_store(url, {**options, "secret": "wrongsecret"})
        with pytest.raises((StorageError, FileNotFoundError)) as caught:
            store.write("a", b"")
        assert url in str(caught.value)
        assert "wrongsecret" not in str(caught.value)


def test_an_interrupted_write_is_not_listed_and_is_swept(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.write("a", DATA)
    (tmp_path / f"a.{'0' * 16}.partial").write_bytes(b"half")
    assert store.names() == ["a"]
    assert store.sizes() == {"a": len(DATA)}
    assert store.sweep() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_write_that_fails_leaves_the_old_object_and_no_rest(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    (tmp_path / "taken").mkdir()
    with pytest.raises(StorageError, match="taken: cannot write"):
        store.write("taken", DATA)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_open_files_are_bounded_and_closed(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path), max_open_files=3)
    for i in range(20):
        store.write(str(i), bytes([i]))

    def open_here() -> int:
        return sum(str(tmp_path) in str(link.resolve()) for link in Path("/proc/self/fd").iterdir() if link.exists())

    assert store.read_ranges([(str(i), 0, 1) for i in range(20)]) == [bytes([i]) for i in range(20)]
    assert open_here() == 3
    store.close()
    assert open_here() == 0
    store.read_ranges([("0", 0, 1)])
    assert open_here() == 1
    del store
    assert open_here() == 0


def test_a_file_replaced_by_rename_is_not_mixed_with_its_successor(tmp_path: Path) -> None:
    reader, writer = LocalStore(str(tmp_path)), LocalStore(str(tmp_path))
    writer.write("a", b"old!old!")
    assert reader.read_ranges([("a", 0, 4)]) == [b"old!"]
    writer.write("a", b"new!new!")
    assert reader.read_ranges([("a", 4, 4)]) == [b"old!"]


def test_credentials_are_in_no_message() -> None:
    store = open_store("s3://user:hunter2@bucket/x?token=abc", {"client_kwargs": {"aws_secret_access_key": "hunter3"}})
    assert store.url == "s3://bucket/x"
    assert "hunter" not in repr(store)
    unknown = open_store("nosuchprotocol://user:hunter2@host/x", {"secret": "hunter3", "note": "plain"})
    with pytest.raises(StorageError) as caught:
        unknown.read("a")
    assert "nosuchprotocol://host/x" in str(caught.value)
    assert "hunter" not in str(caught.value)
