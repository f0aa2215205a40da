"""Which entry of the manifest's inputs a document came from."""

import hashlib
from collections.abc import Sequence

from shardtools.corpus.units import Scan
from streampipe.shards import InputEntry

MAX_ENTRIES = 10_000
"""With more input files than this, all plain files share one entry, because the manifest must stay small."""

Origin = tuple[int, int]
"""(place in the manifest's inputs, number of the file's first row there)."""


def origins_of(scans: Sequence[Scan], limit: int = MAX_ENTRIES) -> list[Origin]:
    """Return the origin of each file. Plain files that share an entry count as its rows."""
    if len(scans) <= limit:
        return [(place, 0) for place in range(len(scans))]
    shared = sum(scan.file.kind != "plain" for scan in scans)
    origins: list[Origin] = []
    records = plain = 0
    for scan in scans:
        if scan.file.kind == "plain":
            origins.append((shared, plain))
            plain += 1
        else:
            origins.append((records, 0))
            records += 1
    return origins


def input_entries(scans: Sequence[Scan], limit: int = MAX_ENTRIES) -> list[InputEntry]:
    """Return what the manifest says of the inputs; `origins_of` gives places in this list."""
    single = [scan for scan in scans if scan.file.kind != "plain" or len(scans) <= limit]
    entries = [InputEntry(scan.file.name, scan.file.bytes, scan.sha256) for scan in single]
    shared = [scan for scan in scans if scan.file.kind == "plain"] if len(single) < len(scans) else []
    if shared:
        listing = "".join(f"{scan.sha256}  {scan.file.name}\n" for scan in shared)  # what `sha256sum` prints
        together = hashlib.sha256(listing.encode()).hexdigest()
        entries.append(InputEntry(f"({len(shared)} plain files)", sum(scan.file.bytes for scan in shared), together))
    return entries
