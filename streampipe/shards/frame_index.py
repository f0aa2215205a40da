"""The index of a shard in memory."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Ragged:
    """A list of numbers for each of N things: list `i` is `values[offsets[i]:offsets[i + 1]]`; offsets int64 [N+1]."""

    offsets: Int64
    values: Int32


@dataclass(frozen=True, eq=False)
class FrameIndex:
    """The index of one shard with F frames, D documents, M token members a document.

    Attributes:
        offset, compressed_bytes, raw_bytes: int64 [F], where a frame is stored, and its bytes before compression.
        checksum: uint64 [F], XXH3 of the stored bytes.
        documents, tokens: int64 [F], counts.
        first_document: int64 [F+1], prefix sums of documents: frame f holds rows first_document[f]:first_document[f+1].
        lengths: int32 [D*M], document-major, tokens of each member.
        payload_offsets: int64 [D*M], where a member's token bytes start inside the raw frame.
        loss_tokens: int32 [D*M], trained tokens of each member, or None (a text: all are).
        loss_spans: D*M lists of start, end, start, end, ... of the trained tokens within the member, or None.
        fragments: D lists of separator positions, or None.
    """

    offset: Int64
    compressed_bytes: Int64
    raw_bytes: Int64
    checksum: NDArray[np.uint64]
    documents: Int64
    tokens: Int64
    first_document: Int64
    lengths: Int32
    payload_offsets: Int64
    loss_tokens: Int32 | None = None
    loss_spans: Ragged | None = None
    fragments: Ragged | None = None

    @property
    def members(self) -> int:
        """Token members a document: M."""
        return len(self.lengths) // int(self.first_document[-1])

    @property
    def document_lengths(self) -> Int64:
        """Tokens of each document, all its members together: int64 [D]."""
        lengths: Int64 = self.lengths.reshape(-1, self.members).sum(axis=1, dtype=np.int64)
        return lengths

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the arrays take."""
        return _nbytes(self)


@dataclass(frozen=True, eq=False)
class Origins:
    """Where documents came from: `file` int32 [D], a place in the manifest's inputs; `row` int64 [D]. -1: not known."""

    file: Int32
    row: Int64


def _nbytes(thing: FrameIndex | Ragged) -> int:
    parts = (getattr(thing, field.name) for field in fields(thing))
    return sum(_nbytes(part) if isinstance(part, Ragged) else part.nbytes for part in parts if part is not None)
