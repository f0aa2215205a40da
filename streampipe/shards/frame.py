"""A frame: whole documents, compressed on their own."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from streampipe.errors import ShardCorruptError
from streampipe.shards.codec import FrameCodec, decompress
from streampipe.shards.frame_index import FrameIndex
from streampipe.shards.index import MAX_FRAME_BYTES
from streampipe.shards.manifest import Compression
from streampipe.shards.member import BLOCK, END_MARKER, npy_header, padding, parse_npy, tar_header

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Keys have no dot (WebDataset cuts there), no slash, and fit a plain tar header with any suffix."""

NPY_MEMBERS = frozenset({"tokens", "loss", "chosen.tokens", "chosen.loss", "rejected.tokens", "rejected.loss"})
META_MEMBER = "meta.json"


@dataclass(frozen=True, eq=False)
class Document:
    """One tokenized document.

    Attributes:
        key: its name in the shard, `[A-Za-z0-9][A-Za-z0-9_-]*`, at most 64 characters, unique within the shard.
        tokens: integers [length], length >= 1.
        origin_file: place of its input file in the manifest's `inputs`, if known.
        origin_row: its row or line in that file, from 0, if known.
    """

    key: str
    tokens: NDArray[Any]
    origin_file: int | None = None
    origin_row: int | None = None


@dataclass(frozen=True, eq=False)
class EncodedFrame:
    """A frame ready to be written, and what the index says of it.

    `lengths` (tokens) and `payload_offsets` (bytes into the raw frame) are int64 [documents].
    """

    data: bytes
    raw_bytes: int
    checksum: int
    lengths: NDArray[np.int64]
    payload_offsets: NDArray[np.int64]


def encode_frame(documents: Sequence[Document], codec: FrameCodec, *, last: bool) -> EncodedFrame:
    """Encode documents, whose tokens are already uint16 or uint32, as one frame.

    Args:
        documents: at least one.
        codec: compresses the frame.
        last: whether the shard ends here, so that the tar end marker belongs to this frame.

    Raises:
        ValueError: if a key, an array or the size of the frame is outside the format.
    """
    parts: list[bytes] = []
    lengths, payload_offsets, position = [], [], 0
    for document in documents:
        payload = _payload(document)
        header = npy_header(document.tokens.dtype.newbyteorder("<").str, document.tokens.shape)
        size = len(header) + len(payload)
        parts += (tar_header(f"{document.key}.tokens.npy", size), header, payload, bytes(padding(size)))
        lengths.append(len(document.tokens))
        payload_offsets.append(position + BLOCK + len(header))
        position += BLOCK + size + padding(size)
    if last:
        parts.append(END_MARKER)
    raw = b"".join(parts)
    if not documents or len(raw) > MAX_FRAME_BYTES:
        raise ValueError(
            f"a frame must hold 1 document or more in at most {MAX_FRAME_BYTES} bytes, but got {len(documents)} "
            f"documents in {len(raw)} bytes; split very long documents before building"
        )
    data = codec.compress(raw)
    checksum = xxhash.xxh3_64_intdigest(data)
    return EncodedFrame(data, len(raw), checksum, np.array(lengths, np.int64), np.array(payload_offsets, np.int64))


def _payload(document: Document) -> bytes:
    tokens = document.tokens
    if not KEY.fullmatch(document.key):
        raise ValueError(f"a key must match {KEY.pattern} (no dot, no slash), but got {document.key!r}")
    if tokens.ndim != 1 or not len(tokens) or tokens.dtype.kind != "u" or tokens.dtype.itemsize not in (2, 4):
        raise ValueError(
            f"document {document.key!r}: tokens must be uint16 or uint32 [1 or more], but got {tokens.dtype} "
            f"{list(tokens.shape)}"
        )
    return tokens.astype(tokens.dtype.newbyteorder("<"), copy=False).tobytes()


def decode_frame(data: bytes | memoryview, f: int, index: FrameIndex, compression: Compression, where: str) -> bytes:
    """Check the stored bytes of frame `f` and return its raw bytes.

    Length, checksum of the stored bytes, promised content size and zstd's own checksum must all agree with the index.

    Args:
        data: what was read at `index.offset[f]`.
        f: the frame's number in its shard.
        index: the shard's index.
        compression: the source's.
        where: full URL of the shard file, for messages.

    Raises:
        ShardCorruptError: if anything differs.
    """
    expected = int(index.compressed_bytes[f])
    if len(data) != expected:
        raise _corrupt(where, f, index, f"short read: expected {expected} bytes, got {len(data)}")
    checksum = xxhash.xxh3_64_intdigest(data)
    if checksum != int(index.checksum[f]):
        raise _corrupt(where, f, index, f"checksum: expected {int(index.checksum[f]):016x}, got {checksum:016x}")
    try:
        return decompress(data, int(index.raw_bytes[f]), compression)
    except ValueError as error:
        raise _corrupt(where, f, index, str(error)) from error


def _corrupt(where: str, f: int, index: FrameIndex, fault: str) -> ShardCorruptError:
    root, _, path = where.rpartition("/")
    offset = int(index.offset[f])
    return ShardCorruptError(
        f"{where}: frame {f} at bytes {offset} to {offset + int(index.compressed_bytes[f])} is damaged: {fault}; "
        f"restore this file from where it was built; `shardtools verify {root}` lists all faults",
        root,
        path,
    )


def parse_frame(raw: bytes, *, last: bool | None = None) -> list[tuple[str, str, NDArray[Any]]]:
    """Parse a raw frame in full, as `verify` does: (key, member, array) in order; nothing is unpickled.

    A `meta.json` member comes as its bytes, uint8.

    Args:
        raw: the raw bytes.
        last: whether the tar end marker must (True) or must not (False) be at the end; None allows both.

    Raises:
        ValueError: if the bytes are not whole plain files, with members of one document adjacent and named as the
            format says; says at which byte.
    """
    found: list[tuple[str, str, NDArray[Any]]] = []
    seen: set[tuple[str, str]] = set()
    keys: set[str] = set()
    position = 0
    while position < len(raw) and not (len(raw) - position == len(END_MARKER) and raw.endswith(END_MARKER)):
        name, size = _parse_header(raw, position)
        key, _, rest = name.partition(".")
        member = rest if rest == META_MEMBER else rest.removesuffix(".npy")
        if not KEY.fullmatch(key) or rest not in (META_MEMBER, f"{member}.npy") or _unknown(member):
            raise ValueError(f"byte {position}: {name!r} is not the name of a member")
        if (key, member) in seen:
            raise ValueError(f"byte {position}: {name!r} is there twice")
        if key in keys and found[-1][0] != key:
            raise ValueError(f"byte {position}: the members of document {key!r} are not adjacent")
        seen.add((key, member))
        keys.add(key)
        body = raw[position + BLOCK : position + BLOCK + size]
        try:
            found.append((key, member, np.frombuffer(body, np.uint8) if member == META_MEMBER else parse_npy(body)))
        except ValueError as error:
            raise ValueError(f"byte {position}: {name!r}: {error}") from error
        position += BLOCK + size + padding(size)
    if last is not None and last != (position < len(raw)):
        raise ValueError(f"byte {position}: expected {'the' if last else 'no'} tar end marker after the last document")
    return found


def _unknown(member: str) -> bool:
    return member != META_MEMBER and member not in NPY_MEMBERS


def _parse_header(raw: bytes, position: int) -> tuple[str, int]:
    header = raw[position : position + BLOCK]
    name = header[:100].rstrip(b"\0").decode("ascii", "backslashreplace")
    size = int(header[124:135], 8) if re.fullmatch(rb"[0-7]{11}", header[124:135]) else -1
    try:
        plain = header == tar_header(name, size)
    except (ValueError, UnicodeEncodeError):
        plain = False
    if not plain:
        raise ValueError(f"byte {position}: expected the tar header of a plain file, got {header[:32]!r}...")
    stop = position + BLOCK + size
    if stop + padding(size) > len(raw) or any(raw[stop : stop + padding(size)]):
        raise ValueError(f"byte {position}: {name!r} of {size} bytes does not end inside its frame with zeros")
    return name, size
