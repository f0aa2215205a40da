"""The folder in which documents wait for their place: what is in it, and its end."""

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from shardtools.ledger import CopiesRecord, SliceRecord, has_bad_rows, read_record
from shardtools.stages.scatter import chunk_name, hashes_name
from shardtools.worker import copies_record_name, drops_name, slice_record_name
from streampipe.storage import Store, is_local_url

OURS = re.compile(r"(run-\d{5,}-\d{3,}|hashes-\d{5,}|drops-\d{5,})\.bin|(slice|copies)-\d{5,}\.json")


@dataclass(frozen=True)
class Scratch:
    """The scratch folder of one build.

    Attributes:
        store: the folder.
        fingerprint: of the build; records of others do not count.
    """

    store: Store
    fingerprint: str

    def slices(self, count: int, *, bad_rows: bool) -> dict[int, SliceRecord]:
        """Return the records of slices that are whole; with `bad_rows` false, none that left bad rows out."""
        sizes = self.store.sizes()
        found: dict[int, SliceRecord] = {}
        for number in range(count):
            name = slice_record_name(number)
            record = read_record(self.store, name, SliceRecord, self.fingerprint) if name in sizes else None
            if record is None or (not bad_rows and has_bad_rows(record.seen)):
                continue
            whole = all(sizes.get(chunk_name(number, chunk)) == size for chunk, size in enumerate(record.chunks))
            if whole and (not record.hashes or sizes.get(hashes_name(number)) == record.hashes):
                found[number] = record
        return found

    def copies(self, count: int) -> dict[int, CopiesRecord]:
        """Return the records of lists of copies that are whole."""
        sizes = self.store.sizes()
        found: dict[int, CopiesRecord] = {}
        for number in range(count):
            name = copies_record_name(number)
            record = read_record(self.store, name, CopiesRecord, self.fingerprint) if name in sizes else None
            if record is not None and sizes.get(drops_name(number)) == record.bytes:
                found[number] = record
        return found

    def clear(self) -> None:
        """Remove what the build left here, and the folder if that was all."""
        for name in self.store.names():
            if OURS.fullmatch(name):
                self.store.delete(name)
        if is_local_url(self.store.url):
            self.store.sweep()
            with contextlib.suppress(OSError):  # other files are there, or it never was
                Path(self.store.url).rmdir()
