"""Sources whose files are whole, listed with the right hashes and sizes, and wrong: what no checksum can show."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import xxhash

from streampipe.shards import FrameIndex, Manifest, Source, codec_for, encode_index, write_manifest


def publish(source: Source, index: FrameIndex, data: bytes | None = None, **changes: Any) -> Source:
    """Put another index (and shard) in place of shard 0's, with hashes and sizes that are right."""
    entry = source.shards[0]
    index_bytes = encode_index(index)
    source.store.write(entry.index_path, index_bytes)
    fields: dict[str, Any] = {"index_bytes": len(index_bytes), "index_hash": hashlib.sha256(index_bytes).hexdigest()}
    if data is not None:
        source.store.write(entry.path, data)
        fields |= {"bytes": len(data), "hash": hashlib.sha256(data).hexdigest()}
    return sign(source, splits={"train": [msgspec.structs.replace(entry, **fields, **changes), *source.shards[1:]]})


def sign(source: Source, **changes: Any) -> Source:
    """Change the manifest."""
    manifest: Manifest = msgspec.structs.replace(source.manifest, **changes)
    write_manifest(source.store, manifest)
    return Source.open("web", source.url)


def reframed(source: Source, raws: Sequence[bytes], index: FrameIndex | None = None) -> Source:
    """Replace the raw bytes of shard 0's frames, keeping everything that the index says of their documents."""
    codec = codec_for("zstd")
    stored = [codec.compress(raw) for raw in raws]
    sizes = np.array([len(data) for data in stored])
    index = replace(
        index or source.index(0),
        offset=np.cumsum(sizes) - sizes,
        compressed_bytes=sizes,
        raw_bytes=np.array([len(raw) for raw in raws]),
        checksum=np.array([xxhash.xxh3_64_intdigest(data) for data in stored], np.uint64),
    )
    return publish(source, index, b"".join(stored))


def files_of(raw: bytes) -> list[tuple[str, bytes]]:
    """Take a raw frame apart: (name, header and body) of each file in it."""
    found, position = [], 0
    while position < len(raw) and raw[position]:
        size = int(raw[position + 124 : position + 135], 8)
        end = position + 512 + size + -size % 512
        found.append((raw[position : position + 100].rstrip(b"\0").decode(), raw[position:end]))
        position = end
    return found


def renamed(raw: bytes, name: str) -> bytes:
    """Give the first file of a raw frame another name, with the checksum that belongs to it."""
    head = bytearray(name.encode().ljust(100, b"\0") + raw[100:512])
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + raw[512:]
