"""From documents to one shard and its index."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.shards.codec import codec_for
from streampipe.shards.frame import Document, EncodedFrame, encode_frame
from streampipe.shards.frame_index import FrameIndex, Origins
from streampipe.shards.index import encode_index
from streampipe.shards.manifest import INDEX_SUFFIX, SHARD_SUFFIX, Compression, ShardEntry, TokenDtype

FRAME_TOKENS = 65_536


@dataclass(frozen=True, eq=False)
class EncodedShard:
    """A shard and its index, ready to be written, and the entry that the manifest will have for them."""

    shard_name: str
    shard_bytes: bytes
    index_name: str
    index_bytes: bytes
    entry: ShardEntry
    index: FrameIndex


def encode_shard(
    documents: Iterable[Document],
    stem: str,
    *,
    token_dtype: TokenDtype,
    frame_tokens: int = FRAME_TOKENS,
    compression: Compression = "zstd",
    level: int = 3,
) -> EncodedShard:
    """Encode documents, in the order given, as one shard. The bytes depend on the arguments alone.

    Args:
        documents: at least one; keys unique.
        stem: the shard's name without suffix, e.g. `train-00000`.
        token_dtype: how ids are stored; every id must fit.
        frame_tokens: a frame is closed once it holds this many tokens.
        compression: `zstd` or `none`.
        level: zstd's.

    Raises:
        ValueError: if there is no document, or one does not fit the format (key, shape, an id too large); names it.
    """
    codec = codec_for(compression, level)
    frames: list[EncodedFrame] = []
    origins: list[tuple[int, int]] = []
    keys: set[str] = set()
    for group, last in _groups((_stored(document, token_dtype) for document in documents), frame_tokens):
        for document in group:
            if document.key in keys:
                raise ValueError(f"shard {stem}: key {document.key!r} is there twice; keys must be unique in a shard")
            keys.add(document.key)
            origins.append((_or_unknown(document.origin_file), _or_unknown(document.origin_row)))
        frames.append(encode_frame(group, codec, last=last))
    if not frames:
        raise ValueError(f"shard {stem}: there is no document for it; do not write empty shards")
    index = _index_of(frames)
    shard_bytes = b"".join(frame.data for frame in frames)
    index_bytes = encode_index(index, _origins_of(origins))
    tokens = int(index.tokens.sum())
    entry = ShardEntry(
        path=stem + SHARD_SUFFIX[compression],
        bytes=len(shard_bytes),
        frames=len(frames),
        documents=len(keys),
        tokens=tokens,
        loss_tokens=tokens,
        longest=int(index.document_lengths.max()),
        hash=hashlib.sha256(shard_bytes).hexdigest(),
        index_path=stem + INDEX_SUFFIX,
        index_bytes=len(index_bytes),
        index_hash=hashlib.sha256(index_bytes).hexdigest(),
    )
    return EncodedShard(entry.path, shard_bytes, entry.index_path, index_bytes, entry, index)


def _groups(documents: Iterable[Document], frame_tokens: int) -> Iterator[tuple[list[Document], bool]]:
    """Yield the documents of each frame, and whether it is the last."""
    full: list[Document] = []
    group: list[Document] = []
    tokens = 0
    for document in documents:
        if full:
            yield full, False
            full = []
        group.append(document)
        tokens += len(document.tokens)
        if tokens >= frame_tokens:
            full, group, tokens = group, [], 0
    if full or group:
        yield full or group, True


def _stored(document: Document, token_dtype: TokenDtype) -> Document:
    """Return the document with its ids in the source's dtype; an id that does not fit is an error, never wrapped."""
    tokens: NDArray[Any] = np.asarray(document.tokens)
    if tokens.dtype.kind not in "ui" or tokens.ndim != 1 or not len(tokens):
        raise ValueError(
            f"document {document.key!r}: tokens must be integers [1 or more], but got {tokens.dtype} "
            f"{list(tokens.shape)}"
        )
    limit = int(np.iinfo(token_dtype).max)
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high > limit:
        raise ValueError(
            f"document {document.key!r}: token ids must be within 0 and {limit} to be stored as {token_dtype}, but got "
            f"{low} to {high}; choose the dtype by the tokenizer's largest id, added tokens included"
        )
    return replace(document, tokens=tokens.astype(np.dtype(token_dtype).newbyteorder("<"), copy=False))


def _or_unknown(number: int | None) -> int:
    return -1 if number is None else number


def _origins_of(origins: list[tuple[int, int]]) -> Origins | None:
    numbers = np.array(origins, np.int64).reshape(-1, 2)
    if (numbers < 0).all():
        return None
    return Origins(numbers[:, 0].astype(np.int32), np.ascontiguousarray(numbers[:, 1]))


def _index_of(frames: list[EncodedFrame]) -> FrameIndex:
    stored = np.array([len(frame.data) for frame in frames], np.int64)
    documents = np.array([len(frame.lengths) for frame in frames], np.int64)
    return FrameIndex(
        offset=np.cumsum(stored) - stored,
        compressed_bytes=stored,
        raw_bytes=np.array([frame.raw_bytes for frame in frames], np.int64),
        checksum=np.array([frame.checksum for frame in frames], np.uint64),
        documents=documents,
        tokens=np.array([frame.lengths.sum() for frame in frames], np.int64),
        first_document=np.concatenate(([0], np.cumsum(documents))),
        lengths=np.concatenate([frame.lengths for frame in frames]).astype(np.int32),
        payload_offsets=np.concatenate([frame.payload_offsets for frame in frames]),
    )
