"""A folder on this machine."""

import contextlib
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from streampipe.errors import StorageError
from streampipe.storage.store import Range, refuse_escape

PARTIAL = re.compile(r"\.[0-9a-f]{16}\.partial$")
"""How the temporary names of unfinished writes end."""


class LocalStore:
    """Objects are files below `url`. Links are followed: who owns the folder put them there.

    Ranges are read with `pread` from open files, of which at most `max_open_files` are kept. An open file pins what it
    was when first read: a file replaced by rename meanwhile is not mixed with its successor.

    Args:
        url: a path (`~` allowed) or a `file://` URL.
        max_open_files: how many descriptors to keep between calls.
    """

    def __init__(self, url: str, max_open_files: int = 64) -> None:
        path = url.split("://", 1)[1] if "://" in url else url
        self._root = Path(path).expanduser().absolute()  # not resolve(), which would do I/O
        self._max_open_files = max_open_files
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()
        self._locks: dict[int, threading.Lock] = {}

    @property
    def url(self) -> str:
        """The absolute path."""
        return str(self._root)

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    def __reduce__(self) -> tuple[type["LocalStore"], tuple[str, int]]:
        return type(self), (self.url, self._max_open_files)

    def read(self, name: str) -> bytes:
        """Return a whole object, read afresh."""
        path = self._path(name)
        with _translated(str(path), "cannot read"):
            return path.read_bytes()

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        """Return the ranges in order; the kernel is told of all of them before the first is waited for."""
        files = [self._open(name) for name, _, _ in ranges]
        if len(ranges) > 1 and hasattr(os, "posix_fadvise"):
            for file, (_, offset, length) in zip(files, ranges, strict=True):
                with contextlib.suppress(OSError):  # advice only: some filesystems do not take it
                    os.posix_fadvise(file.descriptor, offset, length, os.POSIX_FADV_WILLNEED)
        return [
            file.read(offset, length, self._root / name)
            for file, (name, offset, length) in zip(files, ranges, strict=True)
        ]

    def write(self, name: str, data: bytes) -> None:
        """Write to a temporary name beside the target, force it to disk, then rename."""
        self._put(name, data, lambda partial, path: partial.replace(path))

    def create(self, name: str, data: bytes) -> bool:
        """Write as `write` does, but link in place of renaming: a link does not replace."""
        try:
            self._put(name, data, lambda partial, path: path.hardlink_to(partial))
        except StorageError as error:
            if not isinstance(error.__cause__, FileExistsError):
                raise
            return self.holds(name, data)
        return True

    def holds(self, name: str, data: bytes) -> bool:
        """Compare sizes, then bytes."""
        try:
            with _translated(str(self._path(name)), "cannot stat"):
                size = self._path(name).stat().st_size
            return size == len(data) and self.read(name) == data
        except FileNotFoundError:
            return False

    def _put(self, name: str, data: bytes, commit: Callable[[Path, Path], object]) -> None:
        path = self._path(name)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
        with _translated(str(path), "cannot write"):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with partial.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                commit(partial, path)
            finally:
                partial.unlink(missing_ok=True)
            _sync_folder(path.parent)
        self._forget(name)

    def names(self) -> list[str]:
        """Return the relative names of all files below the folder, sorted."""
        return sorted(name for name in self._walk() if not PARTIAL.search(name))

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every file by name."""
        sizes = {}
        for name in self.names():
            with contextlib.suppress(FileNotFoundError), _translated(f"{self._root}/{name}", "cannot stat"):
                sizes[name] = (self._root / name).stat().st_size
        return sizes

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        path = self._path(name)
        with _translated(str(path), "cannot delete"):
            path.unlink(missing_ok=True)
        self._forget(name)

    def sweep(self) -> int:
        """Remove the temporary files of interrupted writes and return how many."""
        partials = [name for name in self._walk() if PARTIAL.search(name)]
        for name in partials:
            self.delete(name)
        return len(partials)

    def close(self) -> None:
        """Close the files kept open; the next read opens them again."""
        with self._locked() as files:
            files.clear()

    def _path(self, name: str) -> Path:
        refuse_escape(name, self.url)
        return self._root / name

    def _walk(self) -> Iterator[str]:
        def fail(error: OSError) -> None:
            if not (isinstance(error, FileNotFoundError) and error.filename == str(self._root)):
                raise error

        with _translated(self.url, "cannot list"):
            for folder, _, files in os.walk(self._root, onerror=fail):
                below = Path(folder).relative_to(self._root)
                yield from ((below / file).as_posix() for file in files)

    @contextlib.contextmanager
    def _locked(self) -> Iterator["OrderedDict[str, _OpenFile]"]:
        """Give the open files to one thread; a lock of its own for each process: one inherited may be held for ever."""
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            yield self._files

    def _open(self, name: str) -> "_OpenFile":
        with self._locked() as files:
            file = files.get(name)
            if file is None:
                path = self._path(name)
                with _translated(str(path), "cannot open"):
                    file = files[name] = _OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                if len(files) > self._max_open_files:
                    files.popitem(last=False)
            else:
                files.move_to_end(name)
            return file

    def _forget(self, name: str) -> None:
        with self._locked() as files:
            files.pop(name, None)


class _OpenFile:
    """A descriptor that closes when its last user lets go of it, so that none is closed under a running read."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter ends
        close(self.descriptor)

    def read(self, offset: int, length: int, path: Path) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file (one `pread` gives at most 2 GiB)."""
        try:
            data = os.pread(self.descriptor, length, offset)
            while len(data) < length and (more := os.pread(self.descriptor, length - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise StorageError(_message(str(path), f"cannot read {length} bytes at {offset}", error)) from error
        return data


@contextlib.contextmanager
def _translated(where: str, what: str) -> Iterator[None]:
    """Turn an `OSError` into a `StorageError` that names the file; a missing file stays a `FileNotFoundError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, f"{what}: no such file", where) from error
    except OSError as error:
        raise StorageError(_message(where, what, error)) from error


def _message(where: str, what: str, error: OSError) -> str:
    return f"{where}: {what}: {error.strerror or error}; check the path, its permissions and the disk"


def _sync_folder(path: Path) -> None:
    """Make a rename survive a power cut; filesystems that cannot sync a folder are left alone."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
