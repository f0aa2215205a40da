"""What an unfinished build has done so far, kept beside the shards in `.build/` and removed at the end.

`plan.json` says which build it is; a record a task says what its shard must be. A record counts only if it belongs to
the same build and the files are there with the size and hash it names.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from shardtools.corpus.tally import MAX_EXAMPLES
from streampipe.shards import ShardEntry
from streampipe.storage import Store, is_local_url

FOLDER = ".build"
PLAN_NAME = f"{FOLDER}/plan.json"
SUMMARY_NAME = f"{FOLDER}/summary.json"


class BuildPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which build a folder belongs to."""

    fingerprint: str
    splits: list[str]
    tasks: int


class Seen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was seen of input: rows read, rows left out or altered by reason, bad rows in words, fields of a row.

    `bad` are those reasons that are of bad rows.
    """

    rows: int = 0
    counts: dict[str, int] = {}
    examples: list[str] = []
    fields: list[str] = []
    bad: list[str] = []


class TaskRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one task made: a shard; `entry` is None if there was no document for it.

    `seen` is of the slice of the input, if the shard was made of one.
    """

    fingerprint: str
    split: str
    number: int
    entry: ShardEntry | None
    histogram: list[tuple[int, int]]
    seen: Seen = Seen()


class SliceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What scattering one slice of the input made: bytes of each chunk and of its hashes; see `HeldOutRule`."""

    fingerprint: str
    number: int
    chunks: list[int]
    hashes: int
    documents: int
    tokens: int
    held_tokens: int
    nearest: list[tuple[int, int]]
    seen: Seen


class CopiesRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What looking for copies in one range of hashes made: bytes of the list, and how many."""

    fingerprint: str
    number: int
    bytes: int
    copies: int


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all slices together say; with it and all shards a build can end without its scratch files."""

    fingerprint: str
    chunks: list[int]
    threshold: int | None
    held_out_shards: int
    copies_parts: int
    copies: int
    seen: Seen


Record = TaskRecord | SliceRecord | CopiesRecord


def together(seen: Iterable[Seen]) -> Seen:
    """Return what was seen in all slices, which come in order."""
    rows, counts, examples, fields, bad = 0, Counter[str](), list[str](), list[str](), set[str]()
    for some in seen:
        rows += some.rows
        counts.update(some.counts)
        examples += some.examples[: MAX_EXAMPLES - len(examples)]
        fields = fields or some.fields
        bad.update(some.bad)
    return Seen(rows, dict(sorted(counts.items())), examples, fields, sorted(bad))


def record_name(split: str, number: int) -> str:
    """Return where the record of a task is."""
    return f"{FOLDER}/{split}-{number:05d}.json"


def write_record(store: Store, name: str, record: Record | Summary) -> None:
    """Store a record."""
    store.write(name, msgspec.json.encode(record))


RecordType = TypeVar("RecordType", TaskRecord, SliceRecord, CopiesRecord, Summary)


def read_record(store: Store, name: str, kind: type[RecordType], fingerprint: str) -> RecordType | None:
    """Return a record of this build; None if there is none, or one of another build."""
    try:
        record = msgspec.json.decode(store.read(name), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    return record if record.fingerprint == fingerprint else None


def has_bad_rows(seen: Seen) -> bool:
    """Tell whether rows were left out that the rule `error` would stop at."""
    return bool(seen.bad)


def read_plan(store: Store) -> BuildPlan | None:
    """Return the plan of the unfinished build in a folder; None if there is none that can be read."""
    try:
        return msgspec.json.decode(store.read(PLAN_NAME), type=BuildPlan)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_plan(store: Store, plan: BuildPlan) -> None:
    """Mark a folder as belonging to a build."""
    store.write(PLAN_NAME, msgspec.json.encode(plan))


def finished_shards(store: Store, plan: BuildPlan, split: str, count: int, *, bad_rows: bool) -> dict[int, TaskRecord]:
    """Return the records of shards that need not be made again: same build, files whole.

    A file is whole if it has the size that its record names, and on this machine the hash too; a server stores an
    object whole or not at all. With `bad_rows` false, a task that left bad rows out is to be done again, and will fail.
    """
    sizes = store.sizes()
    found: dict[int, TaskRecord] = {}
    for number in range(count):
        name = record_name(split, number)
        record = read_record(store, name, TaskRecord, plan.fingerprint) if name in sizes else None
        if record is None or record.number != number or (not bad_rows and has_bad_rows(record.seen)):
            continue
        if _whole(store, sizes, record.entry):
            found[number] = record
    return found


def _whole(store: Store, sizes: dict[str, int], entry: ShardEntry | None) -> bool:
    if entry is None:
        return True
    files = ((entry.path, entry.bytes, entry.hash), (entry.index_path, entry.index_bytes, entry.index_hash))
    if not all(sizes.get(name) == size for name, size, _ in files):
        return False
    return not is_local_url(store.url) or all(
        hashlib.sha256(store.read(name)).hexdigest() == wanted for name, _, wanted in files
    )


def build_files(names: Iterable[str], splits: Sequence[str] = ()) -> list[str]:
    """Return those names that a build writes: shards, indexes, records, scratch; of some splits, or of any."""
    word = "|".join(map(re.escape, splits)) or r"[A-Za-z0-9_][A-Za-z0-9_-]*"
    pattern = re.compile(rf"(?:{word})-\d{{5,}}(\.tar|\.tar\.zst|\.index\.parquet)|{re.escape(FOLDER)}/.*\.(json|bin)")
    return [name for name in names if pattern.fullmatch(name)]


def clear_ledger(store: Store) -> None:
    """Remove what is only of use while a build is unfinished."""
    names = [name for name in store.names() if name.startswith(f"{FOLDER}/") and name.endswith((".json", ".bin"))]
    for name in sorted(names, key=lambda name: name == PLAN_NAME):  # the plan goes last: it says whose the rest is
        store.delete(name)
