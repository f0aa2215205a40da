"""Which files a build reads, and in which order."""

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import fsspec

from streampipe.errors import ConfigError, StorageError
from streampipe.storage import is_local_url

FileKind = Literal["lines", "parquet", "plain"]
Packing = Literal["", "gz", "zst"]

_RECORDS = re.compile(r"\.(jsonl|ndjson)(\.gz|\.zst)?$", re.IGNORECASE)
_JSON = re.compile(r"\.json(\.gz|\.zst)?$", re.IGNORECASE)
_PARQUET = re.compile(r"\.(parquet|pq)$", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read.

    Attributes:
        name: its path relative to the argument that named it; the only part of its address that may decide anything.
        path: where it is: a local path, or the path inside the filesystem of `url`.
        url: the argument it came from, for remote files; "" for local ones.
        bytes: its size when it was found.
        kind: JSON lines, Parquet, or one document.
        packing: how lines are compressed.
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


def discover(
    inputs: Sequence[str], include: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> list[InputFile]:
    """Return the files of all inputs, sorted by name (then by argument), whatever order a listing gives.

    A file is itself; a folder stands for all files below it, and a glob for all files it matches. Hidden files and
    folders (a leading dot) inside a folder or glob are left out unless a pattern of `include` or the glob says so.
    `.json` files are JSON lines when the argument itself ends so; inside a folder they are plain documents.

    Args:
        inputs: paths, globs (`**` allowed) or fsspec URLs.
        include: glob patterns for names or relative paths in folders and globs; none means everything.
        options: for the filesystems of URLs.

    Raises:
        ConfigError: if an input does not exist or matches nothing, or a file is named twice.
    """
    found: list[tuple[str, int, InputFile]] = []
    seen: dict[str, str] = {}
    for position, argument in enumerate(inputs):
        files = [file for file in _of_argument(argument, options or {}) if _included(file, include)]
        if not files:
            raise ConfigError(
                f"{argument}: no input file found there"
                + (f" that matches --include {' '.join(include)}" if include else "")
                + "; check the path, or quote the glob so that the shell leaves it alone"
            )
        for name, file in files:
            if file.address in seen:
                raise ConfigError(
                    f"{file.address}: given twice, by {seen[file.address]!r} and by {argument!r}; name each input once"
                )
            seen[file.address] = argument
            found.append((name, position, file))
    found.sort(key=lambda entry: entry[:2])
    return [file for _, _, file in found]


Found = tuple[str, InputFile]
"""(relative name, file)."""


def _of_argument(argument: str, options: Mapping[str, Any]) -> Iterator[Found]:
    return _local(argument) if is_local_url(argument) else _remote(argument, options)


def _included(found: Found, include: Sequence[str]) -> bool:
    name, file = found
    if file.named:
        return True
    if include:
        return any(
            fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(PurePosixPath(name).name, pattern)
            for pattern in include
        )
    return not any(part.startswith(".") for part in name.split("/"))


def _kind(name: str, *, argument_is_json: bool) -> tuple[FileKind, Packing]:
    match = _RECORDS.search(name) or (_JSON.search(name) if argument_is_json else None)
    if match:
        ending = name.lower()
        return "lines", "gz" if ending.endswith(".gz") else "zst" if ending.endswith(".zst") else ""
    return ("parquet", "") if _PARQUET.search(name) else ("plain", "")


def _local(argument: str) -> Iterator[Found]:
    plain = re.sub(r"^(file|local)://", "", argument)
    json_named = bool(_JSON.search(plain))
    path = Path(plain).expanduser()
    if path.is_file():
        yield path.name, replace(_local_file(path, path.name, argument_is_json=json_named), named=True)
    elif path.is_dir():
        for below in _walk(path):
            name = below.relative_to(path).as_posix()
            yield name, _local_file(below, name, argument_is_json=False)
    elif _MAGIC.search(plain):
        root = _fixed_part(plain)
        base = Path(root or ".").expanduser()
        for below in base.glob(plain[len(root) :].lstrip("/")):
            if below.is_file():
                name = below.relative_to(base).as_posix()
                yield name, _local_file(below, name, argument_is_json=json_named)
    else:
        raise ConfigError(f"{argument}: no such file or folder; check the path")


def _walk(folder: Path) -> Iterator[Path]:
    try:
        for entry in folder.rglob("*"):
            if entry.is_file():
                yield entry
    except OSError as error:
        raise StorageError(f"{folder}: cannot list it: {error.strerror or error}; check its permissions") from error


def _local_file(path: Path, name: str, *, argument_is_json: bool) -> InputFile:
    kind, packing = _kind(name, argument_is_json=argument_is_json)
    return InputFile(name, str(path), "", path.stat().st_size, kind, packing)


def _fixed_part(glob: str) -> str:
    """Return the folders of a glob that come before its first wildcard: `data/**/*.py` gives `data/`."""
    match = _MAGIC.search(glob)
    head = glob[: match.start()] if match else glob
    return head[: head.rfind("/") + 1]


def _remote(argument: str, options: Mapping[str, Any]) -> Iterator[Found]:
    filesystem, path = filesystem_of(argument, options)
    json_named = bool(_JSON.search(path))
    try:
        if _MAGIC.search(path):
            root, named, listing = _fixed_part(path), False, filesystem.glob(path, detail=True)
        elif filesystem.isfile(path):
            root, named, listing = path[: path.rfind("/") + 1], True, {path: filesystem.info(path)}
        else:
            root, named, listing = path.rstrip("/") + "/", False, filesystem.find(path, detail=True)
            json_named = False
    except FileNotFoundError:
        return
    except Exception as error:
        raise StorageError(f"{argument}: cannot list it: {type(error).__name__}: {error}; check the URL") from error
    for below, info in listing.items():
        if info.get("type", "file") != "file" or below.endswith("/"):
            continue
        name = below.removeprefix(root)
        kind, packing = _kind(name, argument_is_json=json_named)
        yield name, InputFile(name, below, argument, int(info["size"]), kind, packing, named)


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
