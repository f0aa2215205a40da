"""One file of the input, and where it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import fsspec

from streampipe.errors import StorageError

FileKind = str
"""The kind of a registered `Corpus`: lines, parquet, plain, ..."""
Packing = Literal["", "gz", "zst"]


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read.

    Attributes:
        name: its path relative to the argument that named it; the only part of its address that may decide anything.
        path: where it is: a local path, or the path inside the filesystem of `url`.
        url: the argument it came from, for remote files; "" for local ones.
        bytes: its size when it was found; 0 if only reading it will tell.
        kind: how rows are stored in it.
        packing: how it is compressed as a whole.
        named: whether the user named it, rather than a folder or a glob that it was found in.
    """

    name: str
    path: str
    url: str
    bytes: int
    kind: FileKind
    packing: Packing = ""
    named: bool = False

    @property
    def address(self) -> str:
        """What to show to people."""
        return f"{self.url.split('://', 1)[0]}://{self.path}" if self.url else self.path

    def place(self, row: int) -> str:
        """Return the file and a row or line of it, from 0, for messages."""
        if self.kind == "plain":
            return self.address
        return f"{self.address}:{row + 1}" if self.kind == "lines" else f"{self.address}: row {row + 1}"


def filesystem_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the fsspec filesystem of a URL and the path in it.

    Raises:
        StorageError: if the protocol is not known or its package is not installed.
    """
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **options)
    except Exception as error:
        raise StorageError(f"{url}: cannot open: {type(error).__name__}: {error}; check the URL and options") from error
    return filesystem, str(path)
