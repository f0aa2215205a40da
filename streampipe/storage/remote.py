"""A folder behind a URL that fsspec knows."""

import contextlib
import hashlib
import os
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fsspec

from streampipe.errors import StorageError
from streampipe.storage.store import Range, refuse_escape

SECRET_KEY = re.compile(r"key|secret|token|password|passwd|credential|sas|auth", re.IGNORECASE)
"""Option names whose values never appear in a message."""

# A filesystem that is collected closes its connections. In a forked child that would take the parent's sockets out of
# the event queue which both share, and the parent's next read would wait until it times out: the child keeps them all.
_USED: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
_INHERITED: list[Any] = []
os.register_at_fork(after_in_child=lambda: _INHERITED.extend(_USED.values()))


class FsspecStore:
    """Objects below a URL: `s3://`, `gs://`, `az://`, `https://`, `memory://`, ...

    The filesystem is made at the first use in each process, because clients of object stores do not survive a fork.
    A `write` is one put: whole or not at all on object stores.

    Args:
        url: the folder.
        options: handed to the filesystem; never shown.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._full_url = url.rstrip("/") if not url.endswith("://") else url
        self._options = dict(options or {})
        self._opened: tuple[int, Any, str] | None = None

    @property
    def url(self) -> str:
        """The URL without user, password and query."""
        return re.sub(r"\?.*", "", re.sub(r"://[^/@]*@", "://", self._full_url))

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"

    def __reduce__(self) -> tuple[type["FsspecStore"], tuple[str, dict[str, Any]]]:
        return type(self), (self._full_url, self._options)

    def read(self, name: str) -> bytes:
        """Return a whole object."""
        filesystem, path = self._locate(name)
        with self._translated(name, "cannot read"):
            return bytes(filesystem.cat_file(path))

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        """Return the ranges in order, with as many requests in flight as the filesystem allows."""
        filesystem, _ = self._filesystem()
        found: list[bytes] = [b""] * len(ranges)
        asked = [i for i, (_, _, length) in enumerate(ranges) if length > 0]  # an empty range is not a valid request
        if not asked:
            return found
        paths = [self._locate(ranges[i][0])[1] for i in asked]
        starts = [ranges[i][1] for i in asked]
        ends = [ranges[i][1] + ranges[i][2] for i in asked]
        with self._translated(f"{ranges[asked[0]][0]} and {len(asked) - 1} more ranges", "cannot read"):
            answers = filesystem.cat_ranges(paths, starts, ends, on_error="return")
        for i, answer in zip(asked, answers, strict=True):
            found[i] = answer if isinstance(answer, bytes) else self._settled(answer, *ranges[i])
        return found

    def write(self, name: str, data: bytes) -> None:
        """Put an object in one call."""
        filesystem, path = self._locate(name)
        with self._translated(name, "cannot write"):
            filesystem.pipe_file(path, data)

    def create(self, name: str, data: bytes) -> bool:
        """Put an object on condition that there is none; clients say in their own words that there is one."""
        filesystem, path = self._locate(name)
        with self._translated(name, "cannot write"):
            try:
                filesystem.pipe_file(path, data, mode="create")
            except Exception:
                filesystem.invalidate_cache()
                if not filesystem.exists(path):
                    raise
                return self.holds(name, data)
        return True

    def holds(self, name: str, data: bytes) -> bool:
        """Compare the size, then the MD5 if the server gives it as the ETag, else the bytes."""
        filesystem, path = self._locate(name)
        with self._translated(name, "cannot look at"):
            filesystem.invalidate_cache()
            try:
                info = filesystem.info(path)
            except FileNotFoundError:
                return False
        if int(info["size"]) != len(data):
            return False
        tag = str(info.get("ETag", "")).strip('"')
        return tag == hashlib.md5(data, usedforsecurity=False).hexdigest() or self.read(name) == data

    def names(self) -> list[str]:
        """Return the names of all objects below the URL, sorted, from a fresh listing."""
        return sorted(self._listing())

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every object by name."""
        return {name: int(info["size"]) for name, info in sorted(self._listing().items())}

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""
        filesystem, path = self._locate(name)
        with contextlib.suppress(FileNotFoundError), self._translated(name, "cannot delete"):
            filesystem.rm_file(path)

    def sweep(self) -> int:
        """Nothing to remove: an interrupted put leaves no object."""
        return 0

    def _filesystem(self) -> tuple[Any, str]:
        """Return this process's filesystem and the path of the folder in it."""
        if self._opened is None or self._opened[0] != os.getpid():
            with self._translated("", "cannot open"):
                filesystem, root = fsspec.core.url_to_fs(self._full_url, **self._options)
            _USED[id(filesystem)] = filesystem
            self._opened = (os.getpid(), filesystem, str(root).rstrip("/"))
        return self._opened[1], self._opened[2]

    def _locate(self, name: str) -> tuple[Any, str]:
        refuse_escape(name, self.url)
        filesystem, root = self._filesystem()
        return filesystem, f"{root}/{name}"

    def _listing(self) -> dict[str, dict[str, Any]]:
        filesystem, root = self._filesystem()
        with self._translated("", "cannot list"):
            filesystem.invalidate_cache()
            try:
                found = filesystem.find(root, detail=True)
            except FileNotFoundError:
                return {}
        prefix = f"{root}/"
        return {path.removeprefix(prefix): info for path, info in found.items() if path.startswith(prefix)}

    def _settled(self, answer: Any, name: str, offset: int, length: int) -> bytes:
        """Turn what came back in place of bytes into bytes or an error.

        Servers refuse a range that starts at or after the end (HTTP 416), each in its own words: the size decides.
        """
        if isinstance(answer, (bytearray, memoryview)):
            return bytes(answer)
        if not isinstance(answer, Exception):
            raise StorageError(f"{self.url}/{name}: expected bytes for a range, but got {type(answer).__name__}")
        filesystem, path = self._locate(name)
        with self._translated(name, f"cannot read {length} bytes at {offset}"):
            if isinstance(answer, FileNotFoundError):
                raise answer
            filesystem.invalidate_cache()
            size = filesystem.size(path)
            if size is not None and offset >= size:
                return b""
            raise answer

    @contextlib.contextmanager
    def _translated(self, name: str, what: str) -> Iterator[None]:
        """Turn whatever a client raises into a `StorageError` that names the object; a missing one stays missing."""
        where = f"{self.url}/{name}" if name else self.url
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(error.errno or 2, f"{what}: no such object", where) from error
        except StorageError:
            raise
        except Exception as error:  # each client has its own tree of exceptions
            raise StorageError(
                f"{where}: {what}: {type(error).__name__}: {self._without_secrets(str(error))}; "
                f"check the URL, the credentials and the network"
            ) from error

    def _without_secrets(self, text: str) -> str:
        for secret in [self._full_url, *_secrets(self._options)]:
            text = text.replace(secret, self.url if secret == self._full_url else "***")
        return text


def _secrets(options: Any, *, hidden: bool = False) -> Iterator[str]:
    """Yield every string that stands below an option whose name speaks of a secret."""
    if isinstance(options, Mapping):
        for key, value in options.items():
            yield from _secrets(value, hidden=hidden or bool(SECRET_KEY.search(str(key))))
    elif hidden and isinstance(options, str) and options:
        yield options
