"""What an unfinished build has done so far, kept beside the shards in `.build/` and removed at the end.

`plan.json` says which build it is; a record a task says what its shard must be. A record counts only if it belongs to
the same build and the files are there with the size and hash it names.
"""

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shardtools.corpus.tally import BAD
from streampipe.errors import ConfigError
from streampipe.shards import ShardEntry
from streampipe.storage import Store, is_local_url

FOLDER = ".build"
PLAN_NAME = f"{FOLDER}/plan.json"
LOCK_NAME = f"{FOLDER}/lock"


class BuildPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which build a folder belongs to."""

    fingerprint: str
    split: str
    tasks: int


class TaskRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one task made; `entry` is None if no row gave a document."""

    fingerprint: str
    number: int
    entry: ShardEntry | None
    histogram: list[tuple[int, int]]
    counts: dict[str, int]
    examples: list[str]
    fields: list[str]


def record_name(split: str, number: int) -> str:
    """Return where the record of a task is."""
    return f"{FOLDER}/{split}-{number:05d}.json"


def write_record(store: Store, split: str, record: TaskRecord) -> None:
    """Store the record of a task."""
    store.write(record_name(split, record.number), msgspec.json.encode(record))


def read_plan(store: Store) -> BuildPlan | None:
    """Return the plan of the unfinished build in a folder; None if there is none that can be read."""
    try:
        return msgspec.json.decode(store.read(PLAN_NAME), type=BuildPlan)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_plan(store: Store, plan: BuildPlan) -> None:
    """Mark a folder as belonging to a build."""
    store.write(PLAN_NAME, msgspec.json.encode(plan))


def finished_tasks(store: Store, plan: BuildPlan, *, bad_rows: bool) -> dict[int, TaskRecord]:
    """Return the records of tasks that need not be done again: same build, files whole (size and hash).

    With `bad_rows` false, a task that left bad rows out is to be done again, and will fail.
    """
    sizes = store.sizes()
    found: dict[int, TaskRecord] = {}
    for number in range(plan.tasks):
        name = record_name(plan.split, number)
        if name not in sizes:
            continue
        try:
            record = msgspec.json.decode(store.read(name), type=TaskRecord)
        except (FileNotFoundError, msgspec.MsgspecError):
            continue
        ours = record.fingerprint == plan.fingerprint and record.number == number
        if ours and (bad_rows or not set(BAD) & set(record.counts)) and _whole(store, sizes, record.entry):
            found[number] = record
    return found


def _whole(store: Store, sizes: dict[str, int], entry: ShardEntry | None) -> bool:
    if entry is None:
        return True
    files = ((entry.path, entry.bytes, entry.hash), (entry.index_path, entry.index_bytes, entry.index_hash))
    return all(sizes.get(name) == size for name, size, _ in files) and all(
        hashlib.sha256(store.read(name)).hexdigest() == wanted for name, _, wanted in files
    )


def build_files(names: list[str], split: str | None = None) -> list[str]:
    """Return those names that a build writes: shards, indexes, records; of one split, or of any."""
    word = re.escape(split) if split else r"[A-Za-z0-9_][A-Za-z0-9_-]*"
    pattern = re.compile(rf"{word}-\d{{5,}}(\.tar|\.tar\.zst|\.index\.parquet)|{re.escape(FOLDER)}/.*\.json")
    return [name for name in names if pattern.fullmatch(name)]


def clear_ledger(store: Store) -> None:
    """Remove what is only of use while a build is unfinished."""
    names = [name for name in store.names() if name.startswith(f"{FOLDER}/") and name.endswith(".json")]
    for name in sorted(names, key=lambda name: name == PLAN_NAME):  # the plan goes last: it says whose the rest is
        store.delete(name)


@contextlib.contextmanager
def locked(store: Store, url: str) -> Iterator[None]:
    """Hold a local output folder for one build; the system lets go of it when the process dies.

    Object stores have no such lock: two builds of the same thing write the same bytes there, and different ones are
    told apart by their plan.

    Raises:
        ConfigError: if another build is running there.
    """
    if not is_local_url(url):
        yield
        return
    path = Path(store.url) / LOCK_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                raise BlockingIOError("the lock was removed by a build that has just ended")
        except BlockingIOError as error:
            raise ConfigError(
                f"{store.url}: another build is writing there now; wait for it to end, or choose another --output"
            ) from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty: the build is unfinished
                path.parent.rmdir()
