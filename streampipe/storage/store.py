"""What a store is, and which names it refuses."""

from collections.abc import Sequence
from typing import Protocol

from streampipe.errors import StorageError

Range = tuple[str, int, int]
"""(name, offset, length): `length` bytes of the object `name` from byte `offset` on."""


class Store(Protocol):
    """A folder of named byte objects.

    A store can be pickled, used by many threads at once, and used in a forked child. Its constructor does no I/O.
    Names are relative, with `/` between folders; one that would leave the folder is refused with `StorageError`.
    A missing object is a `FileNotFoundError` (the caller knows what was missing); every other failure a `StorageError`.
    """

    @property
    def url(self) -> str:
        """The address to show to people: an absolute path or a URL, without credentials."""
        ...

    def read(self, name: str) -> bytes:
        """Return a whole object."""
        ...

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        """Return the ranges in the order asked for, several in flight at once.

        A range that reaches over the end of its object comes back short (callers check).
        """
        ...

    def write(self, name: str, data: bytes) -> None:
        """Store an object whole or not at all, over an older one of the same name; folders are made as needed."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Store an object as `write` does if there is none of that name, and tell whether it was stored.

        Of several that create one name at once, one is told yes. Some object stores ignore the condition and overwrite:
        `keeps_first` finds out. An object that is there with the very same bytes counts as stored: after a lost answer
        to a put that worked, the second try finds its own object.
        """
        ...

    def holds(self, name: str, data: bytes) -> bool:
        """Tell whether an object is there with these bytes, by its size and the server's own hash where it gives one.

        A server that gives none is asked for the bytes.
        """
        ...

    def names(self) -> list[str]:
        """Return the names of all objects, sorted, from a fresh listing; none for a folder that is not there.

        What an interrupted `write` left behind is not listed.
        """
        ...

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every object by name, as `names` lists them."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object. One that is not there is no error: it is gone either way."""
        ...

    def sweep(self) -> int:
        """Remove what interrupted writes left behind and return how many; only while nobody writes."""
        ...


def keeps_first(store: Store, name: str) -> bool:
    """Tell whether `create` is honoured by the server behind a store: of two puts the first must stay.

    Args:
        store: the store.
        name: of an object to try it with, which must not be there; it is removed.
    """
    try:
        return store.create(name, b"first") and not store.create(name, b"second") and store.read(name) == b"first"
    finally:
        store.delete(name)


def refuse_escape(name: str, url: str) -> None:
    """Check that a name stays inside its folder.

    Raises:
        StorageError: if it is empty, absolute, or has an empty, `.` or `..` part (so URLs are refused too) or a NUL.
    """
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise StorageError(
            f"{url}: {name!r} is not a name inside this folder; expected a relative name without empty, '.' or '..' "
            f"parts; if a manifest holds it, do not trust that source"
        )


def is_local_url(url: str) -> bool:
    """Tell whether a URL means a folder of this machine: a plain path, `file://` or `local://`."""
    return url.startswith(("file://", "local://")) or ("://" not in url and "::" not in url)
