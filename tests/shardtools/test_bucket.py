"""Builds to a real S3 server: killed builds, killed servers, two builds at once; the same bytes or no manifest."""

import contextlib
import json
import os
import random
import signal
import threading
import time
from uuid import uuid4

import pytest
from s3_server import S3Server

from shardtools import locks
from shardtools.cli import main
from shardtools.ledger import FOLDER
from shardtools.patience import PatientStore
from shardtools.progress import Progress
from shardtools.publish import publish
from streampipe.errors import ConfigError, StreampipeError
from streampipe.shards import read_manifest
from streampipe.storage import open_store

SMALL = ("--shard-tokens", 4_000, "--frame-tokens", 1_000, "--validation", "5%")
KILLS = [
    pytest.param(kind, i, marks=[pytest.mark.slow] if i >= quick else [])
    for kind, quick, count in (("texts", 2, 20), ("chats", 1, 10))
    for i in range(count)
]


@pytest.fixture(scope="module")
def large(what):
    return what["texts"][0]


@pytest.fixture(scope="module")
def local(tmp_path_factory, what, tokenizer):
    """The files of builds of texts and of chats on this machine."""
    found = {}
    for kind, inputs in what.items():
        folder = tmp_path_factory.mktemp("local") / kind
        command = ["build", *inputs, "--tokenizer", tokenizer, "--output", folder, *SMALL, "--workers", 1]
        assert main([str(part) for part in command]) == 0
        found[kind] = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert sum(name.endswith(".tar.zst") for name in found[kind]) >= 10
    return found


@pytest.fixture
def url():
    return f"s3://bucket/{uuid4().hex}"


def to_bucket(large, tokenizer, url, options, *more):
    storage = [word for key, value in options.items() for word in ("--storage-option", f"{key}={value}")]
    return ["build", large, "--tokenizer", tokenizer, "--output", url, *SMALL, *storage, *more]


def contents_of(url, options):
    store = open_store(url, options)
    return {name: store.read(name) for name in store.names()}


def differences(found, wanted):
    """Names only: the bytes of a shard in a report hide which one it is."""
    names = sorted(found.keys() | wanted.keys())
    return [f"{name}: {len(found.get(name, b''))} bytes" for name in names if found.get(name) != wanted.get(name)]


def wait_for(process, store, count):
    """Returns once so many shards are there, or the process has ended."""
    while process.poll() is None:
        with contextlib.suppress(StreampipeError):
            if sum(name.endswith(".tar.zst") for name in store.names()) >= count:
                return
        time.sleep(0.01)


@pytest.mark.parametrize(("kind", "kill"), KILLS)
def test_a_build_to_a_bucket_killed_at_any_moment_goes_on(
    kind, kill, what, tokenizer, local, *, url, s3_options, shell, tmp_path
):
    moments = random.Random(kill)
    first, *more = what[kind]
    command = to_bucket(first, tokenizer, url, s3_options, *more, "--workers", (1, 2, 8)[kill % 3])
    process = shell(*command, TMPDIR=str(tmp_path))
    wait_for(process, open_store(url, s3_options), moments.randrange(0, 10))
    time.sleep(moments.random() * 0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    again = shell(*command, TMPDIR=str(tmp_path))
    _, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    assert differences(contents_of(url, s3_options), local[kind]) == []
    assert list(tmp_path.glob("shardtools-*")) == []


@pytest.mark.parametrize(
    ("kind", "shards"),
    [("texts", 3), *(pytest.param(kind, i, marks=pytest.mark.slow) for kind in ("texts", "chats") for i in (0, 1, 6))],
)
def test_a_server_killed_and_restarted_during_the_build_is_waited_for(
    kind, shards, what, tokenizer, local, *, tmp_path, url, shell
):
    first, *more = what[kind]
    folder = tmp_path / "s3"
    folder.mkdir()
    server = S3Server(folder)
    server.start()
    try:
        server.make_bucket()
        command = to_bucket(first, tokenizer, url, server.options, *more, "--workers", 2)
        process = shell(*command, TMPDIR=str(tmp_path))
        wait_for(process, open_store(url, server.options), shards)
        server.kill()
        assert process.poll() is None
        time.sleep(1.5)
        server.start()
        _, errors = process.communicate(timeout=90)
        assert process.returncode == 0, errors
        assert differences(contents_of(url, server.options), local[kind]) == []
    finally:
        server.kill()


@pytest.mark.slow
def test_a_server_that_stays_away_ends_the_build_without_a_manifest(large, tokenizer, tmp_path, url, *, shell):
    folder = tmp_path / "s3"
    folder.mkdir()
    server = S3Server(folder)
    server.start()
    try:
        server.make_bucket()
        command = to_bucket(large, tokenizer, url, server.options, "--give-up-after", 1)
        process = shell(*command, TMPDIR=str(tmp_path))
        wait_for(process, open_store(url, server.options), 2)
        server.kill()
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert url in errors
        assert "testsecret" not in errors
        server.start()
        server.wait()
        assert "manifest.json" not in open_store(url, server.options).names()
    finally:
        server.kill()


def test_a_second_build_into_a_bucket_is_refused_while_the_first_one_runs(
    large, tokenizer, url, s3_options, tmp_path, *, shell
):
    store = open_store(url, s3_options)
    with locks.locked(store, url):
        process = shell(*to_bucket(large, tokenizer, url, s3_options), TMPDIR=str(tmp_path))
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "another build is writing there now" in errors
    assert store.names() == []


def test_a_lock_of_a_build_that_died_elsewhere_is_taken_over(monkeypatch):
    monkeypatch.setattr(locks, "LEASE_SECONDS", 0.5)
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.2)
    store = open_store(f"memory://{uuid4().hex}")
    store.write(locks.LOCK_NAME, json.dumps({"token": "x", "beats": 3, "process": 1, "host": "elsewhere"}).encode())
    with locks.locked(store, "memory://") as hold:
        hold.check()
        with pytest.raises(ConfigError, match="another build is writing"), locks.locked(store, "memory://"):
            pass
        time.sleep(0.5)
        store.write(locks.LOCK_NAME, json.dumps({"token": "thief", "beats": 0}).encode())
        with pytest.raises(StreampipeError, match="took this folder over"):
            hold.check()
    assert store.names() == [locks.LOCK_NAME], "the lock of another is left alone"


class StuckStore(PatientStore):
    """A store whose rewriting of an object waits, as a client does between its tries, until `go`."""

    def __init__(self, store):
        super().__init__(store, 0)
        self.stuck, self.go, self.gone_on = threading.Event(), threading.Event(), threading.Event()

    def write(self, name, data):
        self.stuck.set()
        self.go.wait()
        super().write(name, data)

    def delete(self, name):
        super().delete(name)
        if self.go.is_set():
            self.gone_on.set()


def test_a_beat_that_waits_for_its_next_try_leaves_no_lock_behind(monkeypatch):
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(locks, "PARTING_SECONDS", 2.0)
    store = StuckStore(open_store(f"memory://{uuid4().hex}"))
    with locks.locked(store, "memory://"):
        assert store.names() == [locks.LOCK_NAME]
        assert store.stuck.wait(10)
    assert store.names() == []
    store.go.set()
    assert store.gone_on.wait(10), "a beat that is written after all is removed by whom it was written"
    assert store.names() == []


def test_a_manifest_that_another_build_put_first_is_left_alone(large, tokenizer, local, url, s3_options):
    store = open_store(url, s3_options)
    for name, data in local["texts"].items():
        store.write(name, data)
    manifest = read_manifest(store)
    patient = PatientStore(store, 0)
    assert publish(patient, manifest, Progress(quiet=True), replacing=False) == manifest, (
        "the very same one is no fault"
    )
    store.write("manifest.json", b"another")
    with pytest.raises(StreampipeError, match="another build has published here"):
        publish(patient, manifest, Progress(quiet=True), replacing=False)
    assert store.read("manifest.json") == b"another"
    assert not [name for name in store.names() if name.startswith(FOLDER)]


def test_another_build_in_a_bucket_is_refused_until_overwrite(corpus, tokenizer, url, s3_options, capsys):
    command = [str(part) for part in to_bucket(corpus, tokenizer, url, s3_options, "--workers", 1)]
    assert main(command) == 0
    before = contents_of(url, s3_options)
    assert main([*command, "--seed", "1"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert contents_of(url, s3_options) == before
    assert main([*command, "--seed", "1", "--shard-tokens", "90000", "--overwrite"]) == 0
    after = contents_of(url, s3_options)
    assert len(after) < len(before)
    assert {name for name in after if name.endswith(".zst")} == {
        entry.path for split in read_manifest(open_store(url, s3_options)).splits.values() for entry in split
    }
