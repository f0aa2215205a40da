"""Reading a source back, all splits of it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardtools.looking.deep import deep_faults
from streampipe.errors import SourceError
from streampipe.shards import Source, read_manifest
from streampipe.shards.verify import faults
from streampipe.storage import open_store

Say = Callable[[str], None]


@dataclass(frozen=True)
class VerifyReport:
    """What was found.

    Attributes:
        faults: one line each, naming the shard and the place.
        documents, tokens, shards: what the manifest lists; 0 if it cannot be read.
        splits: their names.
    """

    faults: list[str]
    documents: int
    tokens: int
    shards: int
    splits: list[str]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)


def verify(
    url: str, storage: Mapping[str, Any] | None = None, *, say: Say | None = None, deep: bool = False
) -> VerifyReport:
    """Read everything of a source back; each fault is said as soon as it is found.

    With `deep` every document is decoded too, and its ids, masks and key are checked by themselves.

    Raises:
        StorageError: if the folder cannot be reached at all.
    """
    store = open_store(url, storage)
    found: list[str] = []

    def hear(fault: str) -> None:
        line = " ".join(fault.split())
        found.append(line)
        if say is not None:
            say(line)

    try:
        manifest = read_manifest(store)
    except SourceError as error:
        hear(str(error))
        return VerifyReport(found, 0, 0, 0, [])
    for split in manifest.splits:
        source = Source(split, store, manifest, split)
        for fault in faults(source):
            hear(fault)
        if deep:
            for fault in deep_faults(source):
                hear(fault)
    entries = [entry for shards in manifest.splits.values() for entry in shards]
    return VerifyReport(
        found,
        sum(entry.documents for entry in entries),
        sum(entry.tokens for entry in entries),
        len(entries),
        sorted(manifest.splits),
    )
