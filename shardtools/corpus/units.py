"""Where files can be cut.

A unit is the smallest piece of a file that goes to one task: whole lines, a run of rows or samples, or a plain file.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardtools.corpus.blocks import START, Seek, chunks
from shardtools.corpus.files import InputFile
from streampipe.errors import SourceError


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest piece of a file that a task can take.

    Attributes:
        file: where it is.
        start: its first decompressed byte, its first row from 0 (Parquet, Arrow, Hub), or 0.
        length: decompressed bytes, or rows.
        first_line: the number of its first line or row, from 1, for messages and origins.
        digest: xxh3 of its decompressed bytes, where it is counted in bytes; may be "" for rows.
        seek: where decompression can start.
    """

    file: InputFile
    start: int
    length: int
    first_line: int = 1
    digest: str = ""
    seek: Seek = START


@dataclass(frozen=True, slots=True)
class Scan:
    """What one look at a file found.

    Attributes:
        file: the file, with the size that was read.
        sha256: of its bytes as they are.
        units: the pieces, in order; together the whole file.
    """

    file: InputFile
    sha256: str
    units: tuple[Unit, ...]


class HashedChunks:
    """The bytes of a file on their way through, hashed and counted.

    Args:
        file: what to read, once.
        options: for the filesystem of a URL.
    """

    def __init__(self, file: InputFile, options: Mapping[str, Any]) -> None:
        self._file = file
        self._source = chunks(file, 0, options)
        self._hash = hashlib.sha256()
        self._bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield what is left of the file."""
        for chunk in self._source:
            self._hash.update(chunk)
            self._bytes += len(chunk)
            yield chunk

    def finish(self, units: tuple[Unit, ...]) -> Scan:
        """Read what is left and return what was found.

        Raises:
            SourceError: if the file has another size than it had when it was found.
        """
        for _ in self:
            pass
        file = self._file
        if self._bytes != file.bytes:
            raise SourceError(
                f"{file.address}: has {self._bytes} bytes, but had {file.bytes} when it was found; "
                f"wait until nobody writes to it",
                path=file.address,
            )
        return Scan(file, self._hash.hexdigest(), units)


def changed(file: InputFile, unit: Unit) -> SourceError:
    """Return the error for a file that is no longer what the scan saw."""
    return SourceError(
        f"{file.address}: changed since the build looked at it ({unit.start} to {unit.start + unit.length}); "
        f"wait until nobody writes to it and run the build again",
        path=file.address,
    )
