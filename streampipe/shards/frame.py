"""A frame: whole documents, compressed on their own."""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from streampipe.errors import ShardCorruptError
from streampipe.shards.buffers import FrameBuffers
from streampipe.shards.codec import FrameCodec, decompress, decompress_into, decompress_many
from streampipe.shards.document import ARRAYS_OF_KIND, KEY, META_MEMBER, AnyDocument, encode_meta
from streampipe.shards.frame_index import FrameIndex
from streampipe.shards.index import MAX_FRAME_BYTES
from streampipe.shards.manifest import Compression, Kind
from streampipe.shards.member import BLOCK, END_MARKER, npy_header, padding, parse_npy, tar_header

_NPY_MEMBERS = frozenset(name for names in ARRAYS_OF_KIND.values() for name in names)
_DTYPES = {1: ("<u2", "<u4"), 2: ("<i4",)}
"""Of tokens (one dimension) and of loss spans (two)."""


@dataclass(frozen=True, eq=False)
class EncodedFrame:
    """A frame ready to be written, and what the index says of its documents, which have M token members each.

    `lengths` (tokens) and `payload_offsets` (bytes into the raw frame) are int64 [documents * M]; `loss` has as many
    arrays of spans, or none for texts.
    """

    data: bytes
    raw_bytes: int
    checksum: int
    documents: int
    lengths: NDArray[np.int64]
    payload_offsets: NDArray[np.int64]
    loss: list[NDArray[np.int32]]


def encode_frame(documents: Sequence[AnyDocument], codec: FrameCodec, *, last: bool) -> EncodedFrame:
    """Encode documents of one kind as one frame.

    Args:
        documents: at least one, as `as_stored` returns them.
        codec: compresses the frame.
        last: whether the shard ends here, so that the tar end marker belongs to this frame.

    Raises:
        ValueError: if the dtype of an array, the meta data, or the size of the frame is outside the format.
    """
    parts: list[bytes] = []
    lengths, payload_offsets, loss, position = [], [], [], 0
    for document in documents:
        for member, array in zip(ARRAYS_OF_KIND[document.kind], document.arrays(), strict=True):
            name, descr = f"{document.key}.{member}.npy", array.dtype.str
            if descr not in _DTYPES.get(array.ndim, ()):
                raise ValueError(f"{name}: expected an array as it is stored, got {descr} {list(array.shape)}")
            header = npy_header(descr, array.shape)
            if array.ndim == 1:
                lengths.append(len(array))
                payload_offsets.append(position + BLOCK + len(header))
            else:
                loss.append(array)
            position += _append(parts, name, header, array.tobytes())
        if document.meta is not None:
            position += _append(parts, f"{document.key}.{META_MEMBER}", encode_meta(document))
    if last:
        parts.append(END_MARKER)
    raw = b"".join(parts)
    if not documents or len(raw) > MAX_FRAME_BYTES:
        raise ValueError(
            f"a frame must hold 1 document or more in at most {MAX_FRAME_BYTES} bytes, but got {len(documents)} "
            f"documents in {len(raw)} bytes; split very long documents before building"
        )
    data = codec.compress(raw)
    return EncodedFrame(
        data=data,
        raw_bytes=len(raw),
        checksum=xxhash.xxh3_64_intdigest(data),
        documents=len(documents),
        lengths=np.array(lengths, np.int64),
        payload_offsets=np.array(payload_offsets, np.int64),
        loss=loss,
    )


def _append(parts: list[bytes], name: str, *body: bytes) -> int:
    """Append a file of a tar; return its bytes, header and zeros at the end included."""
    size = sum(map(len, body))
    zeros = padding(size)
    parts += (tar_header(name, size), *body, bytes(zeros))
    return BLOCK + size + zeros


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
    return bytes(StoredFrame(data, f, index, compression, where).decoded())


@dataclass(frozen=True, eq=False)
class StoredFrame:
    """A frame as it is stored, whose length and checksum agree with the index.

    Attributes:
        data: its bytes.
        number: in its shard.
        index: the shard's.
        compression: the source's.
        where: full URL of the shard file, for messages.

    Raises:
        ShardCorruptError: if its length or checksum is another.
    """

    data: bytes | memoryview
    number: int
    index: FrameIndex
    compression: Compression
    where: str

    def __post_init__(self) -> None:
        _check_stored(self.data, self.number, self.index, self.where)

    @property
    def raw_bytes(self) -> int:
        """What it holds."""
        return int(self.index.raw_bytes[self.number])

    def decoded(self, buffers: FrameBuffers | None = None) -> bytes | memoryview:
        """Return its raw bytes, in memory that is used again where `buffers` are given.

        Raises:
            ShardCorruptError: if it does not hold exactly what the index promises.
        """
        try:
            if buffers is None:
                return decompress(self.data, self.raw_bytes, self.compression)
            room = buffers.take(self.raw_bytes)
            decompress_into(self.data, room, self.compression)
        except ValueError as error:
            raise _corrupt(self.where, self.number, self.index, str(error)) from error
        return room


def decode_frames(frames: Sequence[StoredFrame]) -> list[bytes | memoryview]:
    """Return the raw bytes of frames, decoded in one call where all are compressed.

    Raises:
        ShardCorruptError: naming the first that is damaged.
    """
    if all(frame.compression == "zstd" for frame in frames):
        with contextlib.suppress(ValueError):
            return [*decompress_many([frame.data for frame in frames], [frame.raw_bytes for frame in frames])]
    return [frame.decoded() for frame in frames]


def _check_stored(data: bytes | memoryview, f: int, index: FrameIndex, where: str) -> None:
    expected = int(index.compressed_bytes[f])
    if len(data) != expected:
        raise _corrupt(where, f, index, f"short read: expected {expected} bytes, got {len(data)}")
    checksum = xxhash.xxh3_64_intdigest(data)
    if checksum != int(index.checksum[f]):
        raise _corrupt(where, f, index, f"checksum: expected {int(index.checksum[f]):016x}, got {checksum:016x}")


def _corrupt(where: str, f: int, index: FrameIndex, fault: str) -> ShardCorruptError:
    root, _, path = where.rpartition("/")
    offset = int(index.offset[f])
    return ShardCorruptError(
        f"{where}: frame {f} at bytes {offset} to {offset + int(index.compressed_bytes[f])} is damaged: {fault}; "
        f"restore this file from where it was built; `shardtools verify {root}` lists all faults",
        root,
        path,
    )


def parse_frame(
    raw: bytes, *, last: bool | None = None, kind: Kind | None = None
) -> list[tuple[str, str, NDArray[Any]]]:
    """Parse a raw frame in full, as `verify` does: (key, member, array) in order; nothing is unpickled.

    A `meta.json` member comes as its bytes, uint8.

    Args:
        raw: the raw bytes.
        last: whether the tar end marker must (True) or must not (False) be at the end; None allows both.
        kind: what every document must be, with all its members in order; None allows any kind.

    Raises:
        ValueError: if the bytes are not whole plain files, with the members of each document complete, adjacent, and
            named as the format says; says at which byte.
    """
    found: list[tuple[str, str, NDArray[Any]]] = []
    members: dict[str, list[str]] = {}
    position = 0
    while position < len(raw) and not (len(raw) - position == len(END_MARKER) and raw.endswith(END_MARKER)):
        name, size = _parse_header(raw, position)
        key, _, rest = name.partition(".")
        member = rest if rest == META_MEMBER else rest.removesuffix(".npy")
        if not KEY.fullmatch(key) or rest not in (META_MEMBER, f"{member}.npy") or _unknown(member):
            raise ValueError(f"byte {position}: {name!r} is not the name of a member")
        if member in members.get(key, ()):
            raise ValueError(f"byte {position}: {name!r} is there twice")
        if key in members and found[-1][0] != key:
            raise ValueError(f"byte {position}: the members of document {key!r} are not adjacent")
        members.setdefault(key, []).append(member)
        body = raw[position + BLOCK : position + BLOCK + size]
        try:
            found.append((key, member, _parse_meta(body) if member == META_MEMBER else parse_npy(body)))
        except ValueError as error:
            raise ValueError(f"byte {position}: {name!r}: {error}") from error
        position += BLOCK + size + padding(size)
    if last is not None and last != (position < len(raw)):
        raise ValueError(f"byte {position}: expected {'the' if last else 'no'} tar end marker after the last document")
    for key, held in members.items():
        _check_complete(key, held, kind)
    return found


def _check_complete(key: str, members: list[str], kind: Kind | None) -> None:
    kinds = list(ARRAYS_OF_KIND) if kind is None else [kind]
    arrays = members[:-1] if members[-1] == META_MEMBER else members
    if arrays not in [ARRAYS_OF_KIND[each] for each in kinds]:
        told = " or ".join(f"{ARRAYS_OF_KIND[each]} ({each})" for each in kinds)
        raise ValueError(f"document {key!r} has the members {members}; expected {told}, in this order")


def _parse_meta(body: bytes) -> NDArray[np.uint8]:
    try:
        msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"expected a JSON object, but {error}") from error
    return np.frombuffer(body, np.uint8)


def _unknown(member: str) -> bool:
    return member != META_MEMBER and member not in _NPY_MEMBERS


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
