"""Folders of this machine: the files below one, or those that a glob matches. What cannot be read there is an error.

Links are followed. A folder that several names lead to is read once: by its own name if it lies below the input, else
by the first link to it; so a link to a folder further up ends there.
"""

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from shardtools.corpus.files import InputFile
from streampipe.errors import StorageError

_NOWHERE = 0
MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Selection:
    """Which files of folders and globs are wanted.

    Attributes:
        include: patterns for names or relative paths; none means everything but hidden files and folders.
    """

    include: Sequence[str] = ()

    def takes(self, name: str) -> bool:
        """Tell whether a file is wanted, by its path below the folder."""
        if not self.include:
            return not _hidden(name)
        own = PurePosixPath(name).name
        return any(fnmatch.fnmatchcase(name, glob) or fnmatch.fnmatchcase(own, glob) for glob in self.include)

    def looks_at(self, name: str) -> bool:
        """Tell whether something may be a wanted file, or a folder that holds one."""
        return bool(self.include) or not _hidden(name)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is in a folder.

    Attributes:
        name: its path below the input.
        path: where it is.
        mode: its type, behind all links; 0 for a link that leads nowhere.
        bytes: its size.
    """

    name: str
    path: Path
    mode: int
    bytes: int

    @property
    def is_folder(self) -> bool:
        """Whether it has entries of its own."""
        return stat.S_ISDIR(self.mode)


def look(path: Path, *, follow: bool = True) -> os.stat_result | None:
    """Return what a path leads to, or with `follow` false what it is itself; None if it leads nowhere.

    Raises:
        StorageError: if that cannot be told.
    """
    try:
        return path.stat(follow_symlinks=follow)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise StorageError(
            f"{path}: cannot look at it: {error.strerror or error}; check the permissions of the folders above it"
        ) from error


def files_below(folder: Path, selection: Selection) -> Iterator[InputFile]:
    """Yield all files below a folder, in no order that counts.

    Raises:
        StorageError: naming what cannot be listed, or is neither a file nor a folder.
    """
    for _, _, entries in _folders(folder, "", selection):
        yield from _files(entries, selection)


def files_matching(base: Path, glob: str, selection: Selection) -> Iterator[InputFile]:
    """Yield the files below a folder whose relative paths match a glob; one may come more than once.

    Raises:
        StorageError: as `files_below`, for what may match.
    """
    seen = look(base)
    if seen is not None and stat.S_ISDIR(seen.st_mode) and not glob.endswith("/"):  # which asks for folders
        yield from _matching(base, "", PurePosixPath(glob).parts, selection)


def _matching(folder: Path, prefix: str, parts: Sequence[str], selection: Selection) -> Iterator[InputFile]:
    first, rest = parts[0], parts[1:]
    if first == "**":
        for name, below, entries in _folders(folder, prefix, selection):
            yield from _matching(below, name, rest, selection) if rest else _files(entries, selection)
        return
    if MAGIC.search(first):
        names = [name for name in _names(folder) if fnmatch.fnmatchcase(name, first)]
    else:
        names = [first] if look(folder / first, follow=False) else []
    entries = _entries(folder, prefix, names, selection)
    if not rest:
        yield from _files(entries, selection)
        return
    for entry in entries:
        if entry.is_folder:
            yield from _matching(entry.path, f"{entry.name}/", rest, selection)


def _folders(folder: Path, prefix: str, selection: Selection) -> Iterator[tuple[str, Path, list[Entry]]]:
    """Yield a folder and all below it: what the names in it begin with, where it is, its entries."""
    seen: set[Path] = set()
    links = [(prefix, folder)]
    while links:
        starts, links = sorted(links), []
        for start in starts:
            stack = [(*start, start[1].resolve())]
            while stack:
                name, below, real = stack.pop()
                if real in seen:
                    continue
                seen.add(real)
                entries = _entries(below, name, _names(below), selection)
                yield name, below, entries
                for entry in entries:
                    if entry.is_folder and entry.path.is_symlink():
                        links.append((f"{entry.name}/", entry.path))
                    elif entry.is_folder:
                        stack.append((f"{entry.name}/", entry.path, real / entry.path.name))


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except OSError as error:
        raise StorageError(
            f"{folder}: cannot list this folder: {error.strerror or error}; "
            f"make it readable, or give inputs or a glob that leave it out"
        ) from error


def _entries(folder: Path, prefix: str, names: Sequence[str], selection: Selection) -> list[Entry]:
    found = []
    for name in names:
        if not selection.looks_at(prefix + name):
            continue
        path = folder / name
        seen = look(path)
        if seen is None and not path.suffix and not _hidden(prefix + name):  # it may have been a folder of wanted files
            raise _leads_nowhere(path)
        found.append(Entry(prefix + name, path, seen.st_mode if seen else _NOWHERE, seen.st_size if seen else 0))
    return found


def _files(entries: Sequence[Entry], selection: Selection) -> Iterator[InputFile]:
    for entry in entries:
        if stat.S_ISREG(entry.mode):
            yield InputFile(entry.name, str(entry.path), "", entry.bytes, "")
        elif entry.mode == _NOWHERE and selection.takes(entry.name):
            raise _leads_nowhere(entry.path)
        elif not entry.is_folder and selection.takes(entry.name):
            raise StorageError(
                f"{entry.path}: neither a file nor a folder, but a socket, pipe or device; remove it, or choose the "
                f"files by --include"
            )


def _leads_nowhere(path: Path) -> StorageError:
    return StorageError(
        f"{path}: a link to a file or folder that is not there; bring that back, or remove the link "
        f"(`find -L {path.parent} -type l` lists all such links)"
    )


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))
