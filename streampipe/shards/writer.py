"""From documents to one shard and its index."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streampipe.shards.codec import codec_for
from streampipe.shards.document import AnyDocument, as_stored
from streampipe.shards.frame import EncodedFrame, encode_frame
from streampipe.shards.frame_index import FrameIndex, Origins, Ragged
from streampipe.shards.index import encode_index
from streampipe.shards.loss_spans import trained_tokens
from streampipe.shards.manifest import INDEX_SUFFIX, SHARD_SUFFIX, Compression, Kind, ShardEntry, TokenDtype

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
    documents: Iterable[AnyDocument],
    stem: str,
    *,
    token_dtype: TokenDtype,
    frame_tokens: int = FRAME_TOKENS,
    compression: Compression = "zstd",
    level: int = 3,
) -> EncodedShard:
    """Encode documents, in the order given, as one shard. The bytes depend on the arguments alone.

    Args:
        documents: at least one; keys unique; all of one kind.
        stem: the shard's name without suffix, e.g. `train-00000`.
        token_dtype: how ids are stored; every id must fit.
        frame_tokens: a frame is closed once it holds this many tokens.
        compression: `zstd` or `none`.
        level: zstd's.

    Raises:
        ValueError: if there is no document, or one does not fit the format (key, shape, an id too large, loss
            spans out of order, another kind); names it.
    """
    codec = codec_for(compression, level)
    frames: list[EncodedFrame] = []
    origins: list[tuple[int, int]] = []
    fragments: list[NDArray[np.int32]] = []
    for group, last in _groups(_alike(documents, stem, token_dtype), frame_tokens):
        origins += [(_or_unknown(document.origin_file), _or_unknown(document.origin_row)) for document in group]
        frames.append(encode_frame(group, codec, last=last))
        fragments += [document.fragments for document in group if document.fragments is not None]
    if not frames:
        raise ValueError(f"shard {stem}: there is no document for it; do not write empty shards")
    index = _index_of(frames)
    if fragments:
        index = replace(index, fragments=_ragged(fragments))
    shard_bytes = b"".join(frame.data for frame in frames)
    index_bytes = encode_index(index, _origins_of(origins))
    tokens = int(index.tokens.sum())
    entry = ShardEntry(
        path=stem + SHARD_SUFFIX[compression],
        bytes=len(shard_bytes),
        frames=len(frames),
        documents=int(index.first_document[-1]),
        tokens=tokens,
        loss_tokens=tokens if index.loss_tokens is None else int(index.loss_tokens.sum(dtype=np.int64)),
        longest=int(index.document_lengths.max()),
        hash=hashlib.sha256(shard_bytes).hexdigest(),
        index_path=stem + INDEX_SUFFIX,
        index_bytes=len(index_bytes),
        index_hash=hashlib.sha256(index_bytes).hexdigest(),
    )
    return EncodedShard(entry.path, shard_bytes, entry.index_path, index_bytes, entry, index)


def _alike(documents: Iterable[AnyDocument], stem: str, token_dtype: TokenDtype) -> Iterator[AnyDocument]:
    """Yield the documents as they are stored, once it is sure that they may stand in one shard."""
    keys: set[str] = set()
    kind: Kind | None = None
    split: bool | None = None
    for document in documents:
        kind = kind or document.kind
        split = document.fragments is not None if split is None else split
        if split != (document.fragments is not None):
            raise ValueError(
                f"shard {stem}: document {document.key!r} is {'not ' if split else ''}said to have fragments, unlike "
                "those before it; say it of all documents of a source, or of none"
            )
        if document.kind != kind:
            raise ValueError(
                f"shard {stem}: document {document.key!r} is of kind {document.kind}, but those before it are of kind "
                f"{kind}; write one source for each kind"
            )
        if document.key in keys:
            raise ValueError(f"shard {stem}: key {document.key!r} is there twice; keys must be unique in a shard")
        keys.add(document.key)
        yield as_stored(document, token_dtype)


def _groups(documents: Iterable[AnyDocument], frame_tokens: int) -> Iterator[tuple[list[AnyDocument], bool]]:
    """Yield the documents of each frame, and whether it is the last."""
    full: list[AnyDocument] = []
    group: list[AnyDocument] = []
    tokens = 0
    for document in documents:
        if full:
            yield full, False
            full = []
        group.append(document)
        tokens += document.length
        if tokens >= frame_tokens:
            full, group, tokens = group, [], 0
    if full or group:
        yield full or group, True


def _or_unknown(number: int | None) -> int:
    return -1 if number is None else number


def _origins_of(origins: list[tuple[int, int]]) -> Origins | None:
    numbers = np.array(origins, np.int64).reshape(-1, 2)
    if (numbers < 0).all():
        return None
    return Origins(numbers[:, 0].astype(np.int32), np.ascontiguousarray(numbers[:, 1]))


def _index_of(frames: list[EncodedFrame]) -> FrameIndex:
    stored = np.array([len(frame.data) for frame in frames], np.int64)
    documents = np.array([frame.documents for frame in frames], np.int64)
    lengths = np.concatenate([frame.lengths for frame in frames]).astype(np.int32)
    spans = _ragged([loss for frame in frames for loss in frame.loss])
    return FrameIndex(
        offset=np.cumsum(stored) - stored,
        compressed_bytes=stored,
        raw_bytes=np.array([frame.raw_bytes for frame in frames], np.int64),
        checksum=np.array([frame.checksum for frame in frames], np.uint64),
        documents=documents,
        tokens=np.array([frame.lengths.sum() for frame in frames], np.int64),
        first_document=np.concatenate(([0], np.cumsum(documents))),
        lengths=lengths,
        payload_offsets=np.concatenate([frame.payload_offsets for frame in frames]),
        loss_tokens=None if spans is None else trained_tokens(spans, lengths).astype(np.int32),
        loss_spans=spans,
    )


def _ragged(loss: list[NDArray[np.int32]]) -> Ragged | None:
    if not loss:
        return None
    return Ragged(np.cumsum([0, *(spans.size for spans in loss)]), np.concatenate(loss).ravel())
