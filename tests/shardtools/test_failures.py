"""A full disk, a failing upload, an input that fails in the middle: non-zero exit, no manifest, everything named."""

import subprocess
import sys
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shardtools.cli import main
from shardtools.corpus.texts import TextReader
from shardtools.engines.local import LocalEngine
from streampipe.storage import open_store

SMALL = ("--shard-tokens", 8_000, "--frame-tokens", 1_000)


class Trouble:
    """What the filesystem below does wrong: calls that fail before one works, by the end of a name."""

    def __init__(self) -> None:
        self.puts: dict[str, list[Exception]] = {}
        self.damaged: set[str] = set()
        self.gets: dict[str, list[Exception]] = {}
        self.reads_left: int | None = None


TROUBLE = Trouble()


class FailingFileSystem(MemoryFileSystem):
    """Keeps objects in memory, and fails as it is told."""

    protocol = "failing"
    store: dict = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        for end, errors in TROUBLE.puts.items():
            if path.endswith(end) and errors:
                raise errors.pop(0)
        if any(path.endswith(end) for end in TROUBLE.damaged):
            value = value[:-1] + b"\0"
        super().pipe_file(path, value, mode, **kwargs)

    def cat_file(self, path, start=None, end=None, **kwargs):
        for ending, errors in TROUBLE.gets.items():
            if path.endswith(ending) and errors:
                raise errors.pop(0)
        return super().cat_file(path, start, end, **kwargs)

    def _open(self, path, mode="rb", **kwargs):
        opened = super()._open(path, mode, **kwargs)
        if mode == "rb" and TROUBLE.reads_left is not None:
            TROUBLE.reads_left -= 1
            if TROUBLE.reads_left < 0:
                raise OSError("connection reset by peer")
        return opened


fsspec.register_implementation("failing", FailingFileSystem, clobber=True)


@pytest.fixture
def url():
    TROUBLE.__init__()
    yield f"failing://{uuid4().hex}"
    TROUBLE.__init__()


@pytest.fixture
def run(corpus, tokenizer):
    def command(output, *more, source=corpus):
        arguments = ["build", source, "--tokenizer", tokenizer, "--output", output, *SMALL, "--workers", 1, *more]
        return main([str(part) for part in arguments])

    return command


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kilobytes", [40, 120])
def test_a_full_disk_ends_the_build_and_the_rerun_goes_on(
    corpus, tokenizer, tmp_path, workers, kilobytes, *, contents, build
):
    folder = tmp_path / "source"
    more = [f"--shard-tokens={200_000 if kilobytes == 40 else 60_000}", "--workers", workers, "--level", 1]
    arguments = ["build", corpus, "--tokenizer", tokenizer, "--output", folder, "--compression=none", *more]
    command = " ".join(map(str, [sys.executable, "-m", "shardtools", *arguments]))
    limited = ["bash", "-c", f"ulimit -f {kilobytes}; exec {command}"]
    ended = subprocess.run(limited, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stderr
    assert f"{folder}/{'.build/run-' if kilobytes == 40 else 'train-'}" in ended.stderr
    assert "File too large" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (folder / "manifest.json").exists()
    assert not list(folder.rglob("*.partial"))
    build(corpus, "--compression=none", *more[:1], "--level", 1, output=folder)
    assert contents(folder) == contents(
        build(corpus, "--compression=none", *more[:1], "--level", 1, output=tmp_path / "fresh")
    )


@pytest.mark.parametrize("name", ["train-00003.tar.zst", "train-00003.index.parquet", "manifest.json"])
def test_an_upload_that_is_refused_ends_the_build_without_a_manifest(run, url, name, capsys):
    TROUBLE.puts[name] = [OSError("429 slow down"), PermissionError("403 forbidden")]
    assert run(url) == 1
    error = capsys.readouterr().err
    assert f"{url}/{name}" in error
    assert "403 forbidden" in error
    store = open_store(url)
    assert "manifest.json" not in store.names()
    assert "train-00002.tar.zst" in store.names(), "what was finished is kept"
    assert run(url) == 0
    assert main(["verify", url]) == 0
    assert not [name for name in store.names() if name.startswith(".build")]


def test_an_upload_that_works_at_a_later_try_is_no_fault(run, url, contents, tmp_path):
    TROUBLE.puts["train-00001.tar.zst"] = [OSError("503 busy"), OSError("503 busy")]
    assert run(url) == 0
    assert run(tmp_path / "local") == 0
    store = open_store(url)
    assert {name: store.read(name) for name in store.names()} == contents(tmp_path / "local")


def test_a_server_that_stores_other_bytes_than_were_sent_is_found_out(run, url, capsys):
    TROUBLE.damaged = {"train-00001.tar.zst"}
    assert run(url, "--give-up-after", 0.5) == 1
    error = capsys.readouterr().err
    assert "train-00001.tar.zst" in error
    assert "does not hold" in error
    assert "manifest.json" not in open_store(url).names()


@pytest.mark.parametrize("shuffle", ["global", "shard"])
@pytest.mark.parametrize("reads", [4, 14])
def test_an_input_that_fails_in_the_middle_is_named(run, url, corpus, tmp_path, capsys, *, shuffle, reads, contents):
    lines = corpus.read_bytes().splitlines(keepends=True)
    store = open_store(url)
    for i in range(0, 400, 50):
        store.write(f"{i:03d}.jsonl", b"".join(lines[i : i + 50]))
    # before, four files are looked at for their columns, and each for its tokens and for its hash
    TROUBLE.reads_left = 4 + 8 + 8 + reads
    folder = tmp_path / "source"
    assert run(folder, "--shuffle", shuffle, source=url) == 1
    error = capsys.readouterr().err
    assert "connection reset by peer" in error
    assert ".jsonl: cannot" in error
    assert not (folder / "manifest.json").exists()
    TROUBLE.reads_left = None
    assert run(folder, "--shuffle", shuffle, source=url) == 0
    assert "going on" in capsys.readouterr().err
    assert run(tmp_path / "fresh", "--shuffle", shuffle, source=url) == 0
    assert contents(folder) == contents(tmp_path / "fresh")


def test_a_reader_that_raises_in_the_middle_of_a_shard_is_named_and_drops_that_shard_only(
    run, tmp_path, capsys, monkeypatch
):
    read, done = TextReader.read, []

    def failing(self, units, tally):
        done.append(units)
        for i, text in enumerate(read(self, units, tally)):
            if len(done) == 3 and i == 10:
                raise KeyError("a fault of a library")
            yield text

    monkeypatch.setattr(TextReader, "read", failing)
    folder = tmp_path / "source"
    assert run(folder, "--shuffle", "shard") == 1
    assert "corpus.jsonl: encoding slice 2 failed: KeyError: 'a fault of a library'" in capsys.readouterr().err
    assert sorted(path.name for path in folder.glob("*.zst")) == ["train-00000.tar.zst", "train-00001.tar.zst"]


def test_scratch_that_goes_away_during_the_build_is_named(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("shardtools.sequence.GatherTask", gone(tmp_path / "scratch"))
    assert run(tmp_path / "source", "--scratch", tmp_path / "scratch") == 1
    error = capsys.readouterr().err
    assert "scratch" in error
    assert "run-00000-000.bin" in error
    assert not (tmp_path / "source" / "manifest.json").exists()


@pytest.mark.parametrize("engine", ["local", "ray"])
@pytest.mark.parametrize("ends", ["slice-00001.json", "run-00001-000.bin"])
def test_scratch_in_a_bucket_that_fails_for_a_moment_is_waited_for(
    run, url, contents, tmp_path, ends, *, engine, monkeypatch
):
    for trouble in (TROUBLE.puts, TROUBLE.gets):
        trouble[ends] = [OSError("503 busy")]
    if engine == "local":
        assert run(tmp_path / "a", "--scratch", url) == 0
        found = contents(tmp_path / "a")
    else:  # its scratch is in the output; the tasks run here
        monkeypatch.setattr("shardtools.build.open_engine", lambda job: LocalEngine(job.recipe(), 1, here=True))
        assert run(url, "--engine", "ray") == 0
        found = {name: open_store(url).read(name) for name in open_store(url).names()}
    assert TROUBLE.puts[ends] == []
    assert TROUBLE.gets[ends] == [] or ends.endswith(".json"), "a record is read by the next run only"
    assert run(tmp_path / "b") == 0
    assert found == contents(tmp_path / "b")


def gone(folder):
    """Returns a maker of tasks that empties a folder first."""
    from shardtools.stages.gather import GatherTask  # noqa: PLC0415

    def make(*arguments, **named):
        for path in folder.rglob("run-*"):
            path.unlink()
        return GatherTask(*arguments, **named)

    return make
