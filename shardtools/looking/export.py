"""A source decoded back to JSON lines."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from shardtools.looking.decoder import Decoder, own_ends, without_ends
from shardtools.looking.documents import Member, StoredDocument, documents
from streampipe.errors import ConfigError, ShardCorruptError
from streampipe.shards import Source

Ends = tuple[int | None, int | None]


def export(source: Source, path: str, *, overwrite: bool = False) -> int:
    """Write a line for each document of a split, in the order in which they are stored; return how many.

    A text is `{"text": ...}` without the begin and end tokens of the build; a conversation `{"text": ..., "trained":
    [[start, end], ...]}` with its control tokens, start and end in characters; a pair `{"chosen": {...}, "rejected":
    {...}}`, each so. The file is there when it is whole.

    Raises:
        ConfigError: if another file is there and may not be replaced.
        SourceError: if a shard is damaged or an id has no meaning.
    """
    decoder, ends, count = Decoder.of(source.store, source.manifest), own_ends(source.manifest, source.split), 0
    with _whole_file(Path(path), overwrite=overwrite) as file:
        for stored in documents(source):
            _check_known(source, decoder, stored)
            file.write(json.dumps(as_row(decoder, stored, ends), ensure_ascii=False) + "\n")
            count += 1
    return count


def as_row(decoder: Decoder, stored: StoredDocument, ends: Ends) -> dict[str, Any]:
    """Return a document as `export` writes it."""
    rows = {member.name: _of_member(decoder, member, ends) for member in stored.members}
    return dict(rows[""]) if "" in rows else rows


def _of_member(decoder: Decoder, member: Member, ends: Ends) -> Mapping[str, Any]:
    if member.loss is None:
        return {"text": decoder.text(without_ends(member.tokens, ends))}
    text, trained = decoder.trained(member)
    return {"text": text, "trained": trained}


def _check_known(source: Source, decoder: Decoder, stored: StoredDocument) -> None:
    for member in stored.members:
        unknown = decoder.unknown(member.tokens)
        if len(unknown):
            raise ShardCorruptError(
                f"{source.url}/{stored.shard}: frame {stored.frame}: document {stored.key!r} has the id {unknown[0]}, "
                f"which the tokenizer does not; `shardtools verify --deep {source.url}` lists all faults",
                source.url,
                stored.shard,
            )


@contextmanager
def _whole_file(path: Path, *, overwrite: bool) -> Iterator[IO[str]]:
    if path.exists() and not overwrite:
        raise ConfigError(f"{path}: is there already; choose another --jsonl, or give --overwrite to replace it")
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent}: no such folder; make it first")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
