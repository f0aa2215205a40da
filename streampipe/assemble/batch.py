"""Decoded frames to the arrays of a micro batch, one copy."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampipe.assemble.batch_config import BatchConfig
from streampipe.assemble.fim import Marks, horizon, label_gaps, part_ids
from streampipe.assemble.segments import DOCUMENT, EPOCH, FRAME, GOES_ON, LENGTH, OFFSET, ROOM, SOURCE, Frames, Ground
from streampipe.shards.buffers import FrameBuffers

IGNORED = -100
NO_MARKS = Marks()


class Paper(NamedTuple):
    """What a micro batch is written on: rows of positions, and the id that stands where no token is."""

    rows: int
    seq_length: int
    pad_id: int


def assemble(
    ground: Ground,
    frames: Frames,
    paper: Paper,
    config: BatchConfig,
    buffers: FrameBuffers,
    marks: Marks = NO_MARKS,
) -> dict[str, Any]:
    """Build one micro batch.

    Args:
        ground: its pieces, laid out; for SBHD one a row.
        frames: each decoded frame as a memoryview of token ids, headers included, all of one format; offsets count its
            elements.
        paper: rows and positions of a row, whose product is T, and the id that stands where no token is.
        config: layout, fields, labels and token_dtype are read.
        buffers: memory for the per-token arrays, used again when a batch has been given up.
        marks: of the pieces that fill-in-the-middle transformed, by their number among the pieces.

    Returns:
        THD: `tokens, labels, position_ids` [T] of `token_dtype`, `loss_mask` float32 [T], `cu_seqlens,
            cu_seqlens_padded` int32 [S + 1]
        (the very same array when nothing is padded inside), `max_seqlen` int, `source_ids, epochs` int32 and
        `document_ids` int64 [S], -1 for padding.
        SBHD: the first four as [rows, positions], `lengths` int32 [rows], and the ids per row.
        Both: `loss_tokens`, the trained positions of this micro batch. Masks come from positions, never from token
            values.
    """
    writer = _Writer(ground, frames, (paper.seq_length, buffers, marks), config)
    batch: dict[str, Any] = {"tokens": writer.tokens(paper.pad_id)}
    makers = {
        "labels": lambda: writer.labels(batch["tokens"]),
        "position_ids": writer.position_ids,
        "loss_mask": writer.loss_mask,
        "padding_mask": writer.padding_mask,
        "fim_parts": writer.fim_parts,
        "horizon": writer.horizon,
    }
    for field in config.fields:
        if field != "tokens":
            batch[field] = makers[field]()
    table = ground.table
    if config.layout == "sbhd":
        batch = {field: array.reshape(paper.rows, paper.seq_length) for field, array in batch.items()}
        batch["lengths"] = np.where(table[SOURCE] < 0, 0, table[LENGTH]).astype(np.int32)
    else:
        batch |= writer.boundaries()
    batch["source_ids"] = table[SOURCE].astype(np.int32)
    batch["document_ids"] = table[DOCUMENT].copy()
    batch["epochs"] = table[EPOCH].astype(np.int32)
    batch["loss_tokens"] = writer.loss_tokens()
    return batch


@lru_cache(maxsize=8)
def _ones(positions: int) -> memoryview:
    return np.ones(positions, np.float32).data


@lru_cache(maxsize=8)
def _counting(positions: int, dtype: str) -> memoryview:
    return np.arange(positions, dtype=dtype).data


class _Writer:
    """Makes each per-token array of one micro batch."""

    def __init__(
        self, ground: Ground, frames: Frames, room: tuple[int, FrameBuffers, Marks], config: BatchConfig
    ) -> None:
        self._seq_length, self._buffers, self._marks = room
        self._frames = frames
        self._dtype = np.dtype(config.token_dtype)
        self._aligned = config.labels == "aligned"
        self._table = table = ground.table
        self._room, length = table[ROOM], table[LENGTH]
        self._borders = np.zeros(len(length) + 1, np.int32)
        self._room.cumsum(out=self._borders[1:])
        self._positions = int(self._borders[-1])
        self._begins = self._borders[:-1]
        self._ends = self._begins + length
        pieces = np.flatnonzero(table[SOURCE] >= 0)
        self._pieces = pieces
        # Where no token is: behind the real tokens of a padded piece, and the whole of a dummy document.
        self._padded = self._between(np.flatnonzero(length < self._room), self._ends)
        dummies = np.flatnonzero(table[SOURCE] < 0)
        self._empty = self._padded + self._between(dummies, self._begins)
        self._tokens = int(length.sum()) - int(length[dummies].sum())
        self._trained = None if ground.trained is None else self._mark(ground.trained)
        # Where a token is that is not to be learnt, although the text goes on: in transformed pieces only.
        self._untrained: list[slice] = []
        if self._marks.piece:
            starts = self._begins_of_pieces().tolist()
            self._untrained = [
                slice(starts[piece] + begin, starts[piece] + end)
                for piece, begin, end in label_gaps(self._marks, aligned=self._aligned)
            ]

    def _begins_of_pieces(self) -> NDArray[np.int64]:
        return self._begins[self._pieces].astype(np.int64)

    def _between(self, segments: NDArray[np.intp], begins: NDArray[Any]) -> list[slice]:
        """Return the positions from `begins` to the ends of the rooms of some segments."""
        if not len(segments):
            return []
        return list(map(slice, begins[segments].tolist(), self._borders[segments + 1].tolist()))

    def _array(self, dtype: "np.dtype[Any]") -> NDArray[Any]:
        return np.frombuffer(self._buffers.take(self._positions * dtype.itemsize), dtype)

    def _mark(self, trained: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which positions are trained: +1 where a span begins, -1 where it ends, summed up."""
        edges = np.zeros(self._positions + 1, np.int8)
        begins = self._begins[trained[:, 0]]
        np.add.at(edges, begins + trained[:, 1], 1)
        np.add.at(edges, begins + trained[:, 2], -1)
        return np.cumsum(edges[:-1], dtype=np.int8).astype(bool)

    def boundaries(self) -> dict[str, Any]:
        """Return where sequences begin and end, with and without what is padded inside."""
        real = self._borders
        if self._padded:
            real = np.zeros(len(self._borders), np.int32)
            self._table[LENGTH].cumsum(out=real[1:])
        return {"cu_seqlens": real, "cu_seqlens_padded": self._borders, "max_seqlen": int(self._room.max())}

    def tokens(self, pad_id: int) -> NDArray[Any]:
        """Copy the segments end to end as they are stored, then widen them all at once.

        Memoryviews copy a slice in 0.2 µs and keep the interpreter lock; a numpy copy of a piece would let it go, and
        wait for it again, each time.
        """
        table, frames = self._table, self._frames
        stored = self._array(np.dtype(frames[-1].format))
        room = stored.data
        begins, ends = self._begins.tolist(), self._ends.tolist()
        offset = table[OFFSET]
        behind = (offset + table[LENGTH]).tolist()
        for frame, first, last, begin, end in zip(
            table[FRAME].tolist(), offset.tolist(), behind, begins, ends, strict=True
        ):
            room[begin:end] = frames[frame][first:last]
        tokens = self._array(self._dtype)
        tokens[:] = stored
        for empty in self._padded:
            tokens[empty] = pad_id
        return tokens

    def labels(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Aligned: the next token inside the piece.

        Its last position has a target only if the piece goes on. Unshifted: the token itself.
        """
        labels = self._array(self._dtype)
        if self._aligned:
            labels.data[:-1] = tokens.data[1:]
            labels[self._ends - 1] = IGNORED
            for piece in np.flatnonzero(self._table[GOES_ON]).tolist():
                frame, offset, length = self._table[FRAME : LENGTH + 1, piece].tolist()
                labels[self._ends[piece] - 1] = self._frames[frame][offset + length]
        else:
            labels[:] = tokens
            labels[self._begins] = IGNORED
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
        borders = self._borders.tolist()
        for begin, end, room in zip(borders, borders[1:], self._room.tolist(), strict=False):
            positions[begin:end] = counting[:room]
        return position_ids

    def loss_mask(self) -> NDArray[np.float32]:
        if self._trained is not None:
            return self._trained.astype(np.float32)
        mask = self._array(np.dtype(np.float32))
        mask.data[:] = _ones(self._positions)
        mask[self._ends[self._table[GOES_ON] == 0] - 1 if self._aligned else self._begins] = 0.0
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
        return part_ids(self._marks, self._begins_of_pieces(), self._positions)

    def horizon(self) -> NDArray[np.int32]:
        return horizon(self._marks, self._begins_of_pieces(), self._positions)

    def loss_tokens(self) -> int:
        if self._trained is not None:
            return int(self._trained.sum())
        untrained = sum(gap.stop - gap.start for gap in self._untrained)
        going_on = int(self._table[GOES_ON].sum()) if self._aligned else 0
        trained: int = self._tokens - len(self._pieces) - untrained + going_on
        return trained
