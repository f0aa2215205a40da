"""Decoded frames to the arrays of a micro batch, one copy."""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampipe.assemble.batch_config import BatchConfig
from streampipe.assemble.fim import Marks, horizon, label_gaps, part_ids
from streampipe.assemble.segments import Frames, Ground, Segments, lay_out
from streampipe.shards.buffers import FrameBuffers

IGNORED = -100
NO_MARKS = Marks()


class Paper(NamedTuple):
    """What a micro batch is written on: rows of positions, and the id that stands where no token is."""

    rows: int
    seq_length: int
    pad_id: int


def assemble(
    segments: Segments,
    frames: Frames,
    paper: Paper,
    config: BatchConfig,
    buffers: FrameBuffers,
    marks: Marks = NO_MARKS,
) -> dict[str, Any]:
    """Build one micro batch.

    Args:
        segments: its pieces.
        frames: each decoded frame as a memoryview of token ids, headers included, all of one format; `segments.offset`
            counts its elements.
        paper: rows and positions of a row, whose product is T, and the id that stands where no token is.
        config: layout, fields, labels and token_dtype are read.
        buffers: memory for the per-token arrays, used again when a batch has been given up.
        marks: of the pieces that fill-in-the-middle transformed.

    Returns:
        THD: `tokens, labels, position_ids` [T] of `token_dtype`, `loss_mask` float32 [T], `cu_seqlens,
            cu_seqlens_padded` int32 [S + 1]
        (the very same array when nothing is padded inside), `max_seqlen` int, `source_ids, epochs` int32 and
        `document_ids` int64 [S], -1 for padding.
        SBHD: the first four as [rows, positions], `lengths` int32 [rows], and the ids per row.
        Both: `loss_tokens`, the trained positions of this micro batch. Masks come from positions, never from token
            values.
    """
    shape, pad_id = (paper.rows, paper.seq_length), paper.pad_id
    if config.layout == "sbhd":
        segments = _one_per_row(segments, shape[1])
    ground = lay_out(segments, *shape)
    writer = _Writer(segments, frames, ground, (shape[1], buffers, marks), config)
    batch: dict[str, Any] = {"tokens": writer.tokens(pad_id)}
    makers = {
        "labels": lambda: writer.labels(batch["tokens"]),
        "position_ids": writer.position_ids,
        "loss_mask": writer.loss_mask,
        "padding_mask": writer.padding_mask,
        "fim_parts": writer.fim_parts,
        "horizon": writer.horizon,
    }
    batch |= {field: makers[field]() for field in config.fields if field != "tokens"}
    if config.layout == "sbhd":
        batch = {field: array.reshape(shape) for field, array in batch.items()}
        batch["lengths"] = np.zeros(shape[0], np.int32)
        batch["lengths"][segments.row] = segments.length
    else:
        batch |= _boundaries(ground)
    batch |= _identities(segments, ground)
    batch["loss_tokens"] = writer.loss_tokens()
    return batch


def _one_per_row(segments: Segments, seq_length: int) -> Segments:
    """Let each piece take its whole row: a padded row is one segment, right-padded."""
    whole = np.full(len(segments), seq_length, np.int64)
    return replace(segments, slot=whole)


def _boundaries(ground: Ground) -> dict[str, Any]:
    padded = np.zeros(len(ground.room) + 1, np.int32)
    np.cumsum(ground.room, out=padded[1:])
    real = padded
    if not np.array_equal(ground.real, ground.room):
        real = np.zeros(len(ground.real) + 1, np.int32)
        np.cumsum(ground.real, out=real[1:])
    return {"cu_seqlens": real, "cu_seqlens_padded": padded, "max_seqlen": int(ground.room.max())}


def _identities(segments: Segments, ground: Ground) -> dict[str, Any]:
    named: dict[str, NDArray[Any]] = {
        "source_ids": segments.source,
        "document_ids": segments.document,
        "epochs": segments.epoch,
    }
    found: dict[str, Any] = {}
    for name, values in named.items():
        found[name] = np.full(len(ground.room), -1, values.dtype)
        found[name][ground.place] = values
    return found


@lru_cache(maxsize=8)
def _ones(positions: int) -> memoryview:
    return np.ones(positions, np.float32).data


@lru_cache(maxsize=8)
def _counting(positions: int, dtype: str) -> memoryview:
    return np.arange(positions, dtype=dtype).data


class _Writer:
    """Makes each per-token array of one micro batch."""

    def __init__(
        self,
        segments: Segments,
        frames: Frames,
        ground: Ground,
        room: tuple[int, FrameBuffers, Marks],
        config: BatchConfig,
    ) -> None:
        self._segments = segments
        self._seq_length, self._buffers, marks = room
        self._frames = frames
        self._ground = ground
        self._dtype = np.dtype(config.token_dtype)
        self._aligned = config.labels == "aligned"
        self._positions = int(ground.room.sum())
        self._starts = ground.begin[ground.place]
        self._ends = self._starts + segments.length
        self._trained = None if segments.trained is None else self._mark(segments.trained)
        self._marks = marks
        # Where a token is that is not to be learnt, although the text goes on: in transformed pieces only.
        self._untrained = [
            slice(int(self._starts[piece]) + begin, int(self._starts[piece]) + end)
            for piece, begin, end in label_gaps(marks, aligned=self._aligned)
        ]
        # Where no token is: behind the real tokens of a padded piece, and the whole of a dummy document.
        real = np.where(ground.piece < 0, 0, ground.real)
        short = np.flatnonzero(real < ground.room)
        self._empty = [
            slice(begin, end)
            for begin, end in zip(
                (ground.begin[short] + real[short]).tolist(),
                (ground.begin[short] + ground.room[short]).tolist(),
                strict=True,
            )
        ]

    def _array(self, dtype: "np.dtype[Any]") -> NDArray[Any]:
        return np.frombuffer(self._buffers.take(self._positions * dtype.itemsize), dtype)

    def _mark(self, trained: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which positions are trained: +1 where a span begins, -1 where it ends, summed up."""
        edges = np.zeros(self._positions + 1, np.int8)
        np.add.at(edges, self._starts[trained[:, 0]] + trained[:, 1], 1)
        np.add.at(edges, self._starts[trained[:, 0]] + trained[:, 2], -1)
        return np.cumsum(edges[:-1], dtype=np.int8).astype(bool)

    def tokens(self, pad_id: int) -> NDArray[Any]:
        """Copy the pieces end to end as they are stored, then widen them all at once.

        Memoryviews copy a slice in 0.2 µs and keep the interpreter lock; a numpy copy of a piece would let it go, and
        wait for it again, each time.
        """
        segments, frames = self._segments, self._frames
        stored = self._array(np.dtype(frames[int(segments.frame[0])].format if len(segments) else "H"))
        room = stored.data
        for frame, offset, start, end in zip(
            segments.frame.tolist(), segments.offset.tolist(), self._starts.tolist(), self._ends.tolist(), strict=True
        ):
            room[start:end] = frames[frame][offset : offset + end - start]
        tokens = self._array(self._dtype)
        tokens[:] = stored
        for empty in self._empty:
            tokens[empty] = pad_id
        return tokens

    def labels(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Aligned: the next token inside the piece.

        Its last position has a target only if the piece goes on. Unshifted: the token itself.
        """
        segments = self._segments
        labels = self._array(self._dtype)
        if self._aligned:
            labels.data[:-1] = tokens.data[1:]
            labels[self._ends - 1] = IGNORED
            for piece in np.flatnonzero(segments.goes_on).tolist():
                after = int(segments.offset[piece] + segments.length[piece])
                labels[self._ends[piece] - 1] = self._frames[int(segments.frame[piece])][after]
        else:
            labels[:] = tokens
            labels[self._starts] = IGNORED
        for empty in self._empty:
            labels[empty] = IGNORED
        for gap in self._untrained:
            labels[gap] = IGNORED
        if self._trained is not None:
            labels[~self._trained] = IGNORED
        return labels

    def position_ids(self) -> NDArray[Any]:
        position_ids = self._array(self._dtype)
        counting = _counting(self._seq_length, self._dtype.name)
        positions = position_ids.data
        for begin, room in zip(self._ground.begin.tolist(), self._ground.room.tolist(), strict=True):
            positions[begin : begin + room] = counting[:room]
        return position_ids

    def loss_mask(self) -> NDArray[np.float32]:
        if self._trained is not None:
            return self._trained.astype(np.float32)
        mask = self._array(np.dtype(np.float32))
        mask.data[:] = _ones(self._positions)
        mask[self._ends[~self._segments.goes_on] - 1 if self._aligned else self._starts] = 0.0
        for empty in self._empty:
            mask[empty] = 0.0
        for gap in self._untrained:
            mask[gap] = 0.0
        return mask

    def padding_mask(self) -> NDArray[np.bool_]:
        mask = np.zeros(self._positions, np.bool_)
        for empty in self._empty:
            mask[empty] = True
        return mask

    def fim_parts(self) -> NDArray[np.int8]:
        return part_ids(self._marks, self._starts, self._positions)

    def horizon(self) -> NDArray[np.int32]:
        return horizon(self._marks, self._starts, self._positions)

    def loss_tokens(self) -> int:
        if self._trained is not None:
            return int(self._trained.sum())
        untrained = sum(gap.stop - gap.start for gap in self._untrained)
        trained = int(self._segments.length.sum()) - len(self._segments) - untrained
        return trained + int(self._segments.goes_on.sum()) if self._aligned else trained
