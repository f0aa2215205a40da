"""Which files a build reads, and in which order."""

import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardtools.corpus.blocks import chunks, decompressed
from shardtools.corpus.files import InputFile, Packing, filesystem_of
from shardtools.corpus.folders import MAGIC, Selection, files_below, files_matching, look
from shardtools.corpus.formats.array import ARRAY, is_array
from shardtools.corpus.formats.lines import LINES, packing_of
from shardtools.corpus.known import known_corpora
from shardtools.corpus.saved import without_descriptions
from streampipe.errors import ConfigError, StorageError
from streampipe.storage import is_local_url

__all__ = ["InputFile", "discover", "filesystem_of"]

_JSON = re.compile(r"\.json(\.gz|\.zst)?$", re.IGNORECASE)


def discover(
    inputs: Sequence[str], include: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> list[InputFile]:
    """Return the files of all inputs, sorted by name (then by argument), whatever order a listing gives.

    A file is itself; a folder stands for all files below it, and a glob for all files it matches. Hidden files and
    folders (a leading dot) inside a folder or glob are left out unless a pattern of `include` or the glob says so.
    Links are followed; a folder that a walk could reach by several names is read once.
    `.json` files hold rows (lines, or one array) when the argument itself ends so; inside a folder they are plain
    documents. A folder saved by `datasets` stands for its Arrow files. What begins with the prefix of a corpus, such as
    `hf:`, is looked up by that corpus.

    Args:
        inputs: paths, globs (`**` allowed) or fsspec URLs.
        include: glob patterns for names or relative paths in folders and globs; none means everything.
        options: for the filesystems of URLs.

    Raises:
        ConfigError: if an input does not exist or matches nothing, or a file is named twice.
        StorageError: if a folder cannot be listed, or something in it is neither a file nor a folder.
    """
    found: list[tuple[str, int, InputFile]] = []
    seen: dict[str, str] = {}
    selection = Selection(include)
    for position, argument in enumerate(inputs):
        found_there = _of_argument(argument, selection, options or {})
        files = [file for file in found_there if file.named or selection.takes(file.name)]
        if not files:
            raise ConfigError(
                f"{argument}: no input file found there"
                + (f" that matches --include {' '.join(include)}" if include else "")
                + "; check the path, or quote the glob so that the shell leaves it alone"
            )
        for file in files:
            if file.address in seen:
                raise ConfigError(
                    f"{file.address}: given twice, by {seen[file.address]!r} and by {argument!r}; name each input once"
                )
            seen[file.address] = argument
            found.append((file.name, position, file))
    found.sort(key=lambda entry: entry[:2])
    return [file for _, _, file in found]


def _of_argument(argument: str, selection: Selection, options: Mapping[str, Any]) -> Iterator[InputFile]:
    for corpus in known_corpora().values():
        if corpus.prefix and corpus.find and argument.startswith(corpus.prefix) and "://" not in argument:
            yield from (replace(file, named=True) for file in corpus.find(argument, options))
            return
    listed = list(_local(argument, selection) if is_local_url(argument) else _remote(argument, selection, options))
    records = bool(_JSON.search(argument))
    for file in without_descriptions({file.name: file for file in listed}, lambda file: _content(file, options)):
        yield _of_kind(file, options, records=records)


def _of_kind(file: InputFile, options: Mapping[str, Any], *, records: bool) -> InputFile:
    """Return a file with its kind: by its name, and for `.json` that was asked for as records by how it begins."""
    kind, packing = _kind(file.name, records)
    found = replace(file, kind=kind, packing=packing)
    if kind != LINES.kind or not _JSON.search(file.name):
        return found
    return replace(found, kind=ARRAY.kind) if is_array(_beginning(found, options)) else found


def _kind(name: str, records: bool) -> tuple[str, Packing]:
    for corpus in known_corpora().values():
        if corpus.kind == LINES.kind and records and _JSON.search(name):
            return LINES.kind, packing_of(name)
        packing = corpus.packing(name, records)
        if packing is not None:
            return corpus.kind, packing
    raise ConfigError(f"{name}: no corpus takes this file")  # the plain one takes any


def _beginning(file: InputFile, options: Mapping[str, Any]) -> bytes:
    for block, _ in decompressed(file, chunks(file, 0, options)):
        if block.strip():
            return block
    return b""


def _content(file: InputFile, options: Mapping[str, Any]) -> bytes:
    return b"".join(chunks(file, 0, options))


def _local(argument: str, selection: Selection) -> Iterator[InputFile]:
    plain = re.sub(r"^(file|local)://", "", argument)
    path = Path(plain).expanduser()
    seen = look(path)
    if seen is not None and stat.S_ISREG(seen.st_mode):
        yield InputFile(path.name, str(path), "", seen.st_size, "", named=True)
    elif seen is not None and stat.S_ISDIR(seen.st_mode):
        yield from files_below(path, selection)
    elif MAGIC.search(plain):
        root = _fixed_part(plain)
        yield from files_matching(Path(root or ".").expanduser(), plain[len(root) :].lstrip("/"), selection)
    else:
        raise ConfigError(f"{argument}: no such file or folder; check the path")


def _fixed_part(glob: str) -> str:
    """Return the folders of a glob that come before its first wildcard: `data/**/*.py` gives `data/`."""
    match = MAGIC.search(glob)
    head = glob[: match.start()] if match else glob
    return head[: head.rfind("/") + 1]


def _remote(argument: str, selection: Selection, options: Mapping[str, Any]) -> Iterator[InputFile]:
    filesystem, path = filesystem_of(argument, options)
    try:
        if MAGIC.search(path):
            root, named, listing = _fixed_part(path), False, filesystem.glob(path, detail=True)
        elif filesystem.isfile(path):
            root, named, listing = path[: path.rfind("/") + 1], True, {path: filesystem.info(path)}
        else:
            root, named, listing = path.rstrip("/") + "/", False, filesystem.find(path, detail=True)
    except FileNotFoundError:
        return
    except Exception as error:
        raise StorageError(f"{argument}: cannot list it: {type(error).__name__}: {error}; check the URL") from error
    for below, info in listing.items():
        if info.get("type", "file") == "directory" or below.endswith("/"):
            continue
        name = below.removeprefix(root)
        if info.get("type", "file") != "file":
            if selection.takes(name):
                raise StorageError(
                    f"{argument}: {name} is neither a file nor a folder, but of type {info['type']!r}; "
                    f"remove it, or choose the files by --include"
                )
            continue
        yield InputFile(name, below, argument, int(info["size"]), "", named=named)
