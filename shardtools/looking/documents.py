"""Documents of a source, read back one by one."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.errors import ConfigError, ShardCorruptError
from streampipe.shards import Source, parse_frame

READ_FRAMES = 8
"""Frames read at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """The tokens of a document, or of one side of a pair.

    Attributes:
        name: "" of a text or conversation, else `chosen` or `rejected`.
        tokens: uint16 or uint32 [length].
        loss: int32 [spans, 2], start and end of the trained tokens; None of a text, all of whose tokens are.
    """

    name: str
    tokens: NDArray[Any]
    loss: NDArray[Any] | None

    def trained(self) -> int:
        """Return how many tokens are trained."""
        return len(self.tokens) if self.loss is None else int((self.loss[:, 1] - self.loss[:, 0]).sum())


@dataclass(frozen=True, slots=True, eq=False)
class StoredDocument:
    """A document as it is stored.

    Attributes:
        number: its place in the split.
        shard: the name of its shard.
        frame: the number of its frame there.
        key: its name there.
        members: one, or the two sides of a pair.
        meta: what else is stored with it, or None.
    """

    number: int
    shard: str
    frame: int
    key: str
    members: tuple[Member, ...]
    meta: Any


def documents(source: Source, first: int = 0) -> Iterator[StoredDocument]:
    """Yield the documents of a split from number `first` on, in the order in which they are stored.

    Raises:
        SourceError: if a shard is damaged.
    """
    before = 0
    for shard, count in enumerate(source.shard_documents.tolist()):
        if before + count > first:
            yield from documents_of_shard(source, shard, before, first)
        before += count


def document(source: Source, number: int) -> StoredDocument:
    """Return one document.

    Raises:
        ConfigError: if the split has fewer.
    """
    count = int(source.shard_documents.sum())
    if not 0 <= number < count:
        raise ConfigError(f"{source.url}: split {source.split!r} has documents 0 to {count - 1}, but got {number}")
    return next(documents(source, number))


def origin_of(source: Source, number: int) -> str:
    """Return where a document came from, as file and row; "" if the source does not say."""
    starts = np.concatenate([[0], np.cumsum(source.shard_documents)])
    shard = int(np.searchsorted(starts, number, side="right")) - 1
    origins = source.origins(shard)
    if origins is None:
        return ""
    row = number - int(starts[shard])
    file, line = int(origins.file[row]), int(origins.row[row])
    if not 0 <= file < len(source.manifest.inputs):
        return ""
    return source.manifest.inputs[file].path + (f":{line + 1}" if line >= 0 else "")


def documents_of_shard(source: Source, shard: int, before: int = 0, first: int = 0) -> Iterator[StoredDocument]:
    """Yield the documents of a shard.

    Args:
        source: the split.
        shard: its number.
        before: how many documents the shards before it have.
        first: the number in the split of the first one wanted.

    Raises:
        SourceError: if the shard is damaged.
    """
    index = source.index(shard)
    frames = len(index.offset)
    start = int(np.searchsorted(index.first_document, max(0, first - before), side="right")) - 1
    for group in range(start, frames, READ_FRAMES):
        wanted = range(group, min(group + READ_FRAMES, frames))
        for frame, raw in zip(wanted, source.read_frames([(shard, f) for f in wanted]), strict=True):
            number = before + int(index.first_document[frame])
            for found in _of_frame(source, shard, frame, bytes(raw), number):
                if found.number >= first:
                    yield found


def _of_frame(source: Source, shard: int, frame: int, raw: bytes, number: int) -> Iterator[StoredDocument]:
    path = source.shards[shard].path
    last = frame == len(source.index(shard).offset) - 1
    try:
        parsed = parse_frame(raw, last=last, kind=source.manifest.kind)
    except ValueError as error:
        raise ShardCorruptError(
            f"{source.url}/{path}: frame {frame}: {error}; `shardtools verify {source.url}` lists all faults",
            source.url,
            path,
        ) from error
    parts: dict[str, dict[str, Any]] = {}
    for key, member, array in parsed:
        parts.setdefault(key, {})[member] = array
    for place, (key, arrays) in enumerate(parts.items()):
        meta = arrays.pop("meta.json", None)
        members = tuple(_members(arrays))
        yield StoredDocument(number + place, path, frame, key, members, _json(meta))


def _members(arrays: dict[str, NDArray[Any]]) -> Iterator[Member]:
    for name, tokens in arrays.items():
        if name.endswith("tokens"):
            side = name.removesuffix("tokens")
            yield Member(side.rstrip("."), tokens, arrays.get(f"{side}loss"))


def _json(meta: NDArray[Any] | None) -> Any:
    return None if meta is None else json.loads(meta.tobytes())
