"""Decoded frames to the arrays of micro batches, one copy."""

from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampipe.assemble.batch_config import BatchConfig
from streampipe.assemble.countings import LONGEST_COUNTING, countings
from streampipe.assemble.fim import Marks, horizon, label_gaps, part_ids
from streampipe.assemble.segments import (
    DOCUMENT,
    EPOCH,
    FRAME,
    GOES_ON,
    LENGTH,
    NO_ID,
    OFFSET,
    ROOM,
    SOURCE,
    Attached,
    Frames,
    Ground,
)
from streampipe.errors import SourceError
from streampipe.shards.buffers import FrameBuffers

IGNORED = -100
NO_MARKS = Marks()
_SLICES_AT_ONCE = 128


class Paper(NamedTuple):
    """What micro batches are written on: sheets of rows of positions, and the id that stands where no token is."""

    sheets: int
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
) -> list[dict[str, Any]]:
    """Build micro batches, several at once: what each call of numpy costs is shared by all of them.

    Args:
        ground: their pieces, laid out; for SBHD one a row.
        frames: each decoded frame as a memoryview of token ids, headers included, all of one format; offsets count its
            elements.
        paper: micro batches, rows of each and positions of a row, and the id that stands where no token is.
        config: layout, fields, labels and token_dtype are read.
        buffers: memory for the per-token arrays, used again when all batches of a call have been given up.
        marks: of the pieces that fill-in-the-middle transformed, by their number among the pieces.

    Returns:
        for each micro batch, of T positions and S segments, a dict.
        THD: `tokens, labels, position_ids` [T] of `token_dtype`, `loss_mask` float32 [T], `cu_seqlens,
            cu_seqlens_padded` int32 [S + 1]
        (the very same array when nothing is padded inside), `max_seqlen` int, `source_ids, epochs` int32 and
        `document_ids` int64 [S], -1 for padding.
        SBHD: the first four as [rows, positions], `lengths` int32 [rows], and the ids per row.
        Both: `loss_tokens`, the trained positions of this micro batch. Masks come from positions, never from token
            values.
    """
    writer = _Writer(ground, frames, buffers, marks, config)
    tokens = writer.tokens(paper.pad_id)
    arrays = {"tokens": tokens}
    for field in config.fields:
        if field == "labels":
            arrays[field] = writer.labels(tokens)
        elif field != "tokens":
            arrays[field] = getattr(writer, field)()
    row = (paper.rows, paper.seq_length) if config.layout == "sbhd" else (paper.rows * paper.seq_length,)
    shape = (paper.sheets, *row)
    names, columns = [*arrays], [array.reshape(shape) for array in arrays.values()]
    batches: list[dict[str, Any]] = [dict(zip(names, own, strict=True)) for own in zip(*columns, strict=True)]
    # Where the segments of each micro batch begin, and those of the last one end.
    cuts = ground.first[:: paper.rows]
    table = ground.table
    per_segment: dict[str, NDArray[Any]] = {}
    if config.layout == "sbhd":
        per_segment["lengths"] = np.where(table[SOURCE] < 0, 0, table[LENGTH]).astype(np.int32)
    per_segment["source_ids"] = table[SOURCE].astype(np.int32)
    per_segment["document_ids"] = table[DOCUMENT].copy()
    per_segment["epochs"] = table[EPOCH].astype(np.int32)
    bounds = [{} for _ in batches] if config.layout == "sbhd" else writer.boundaries(cuts)
    limits = cuts.tolist()
    for batch, bound, first, last, loss_tokens in zip(
        batches, bounds, limits[:-1], limits[1:], writer.loss_tokens(cuts), strict=True
    ):
        batch.update(bound)
        for name, column in per_segment.items():
            batch[name] = column[first:last]
        batch["loss_tokens"] = loss_tokens
    return batches


class _Writer:
    """Makes each per-token array of all micro batches; the methods have the names of fields."""

    def __init__(
        self, ground: Ground, frames: Frames, buffers: FrameBuffers, marks: Marks, config: BatchConfig
    ) -> None:
        self._buffers, self._marks, self._frames = buffers, marks, frames
        self._dtype = np.dtype(config.token_dtype)
        self._aligned = config.labels == "aligned"
        self._copies = None if ground.copies is None else ground.copies.lines.T
        self._table = table = ground.table
        self._room, length, source = table[ROOM], table[LENGTH], table[SOURCE]
        self._borders = np.zeros(len(length) + 1, np.int32)
        self._room.cumsum(out=self._borders[1:])
        self._positions = int(self._borders[-1])
        self._begins = self._borders[:-1]
        self._ends = self._begins + length
        # Where no token is: behind the real tokens of a padded piece, and the whole of a dummy document.
        self._padded = self._between((length < self._room).nonzero()[0], self._ends)
        self._empty = self._padded + self._between((source < 0).nonzero()[0], self._begins)
        # The pieces whose last token has a target, which lies in another piece.
        self._going_on = table[GOES_ON].nonzero()[0]
        self._trained = None if ground.trained is None else self._mark(ground.trained)
        # Where a token is that is not to be learnt, although the text goes on: in transformed pieces only.
        self._untrained: list[slice] = []
        if marks.piece:
            starts = self._begins_of_pieces().tolist()
            self._untrained = [
                slice(starts[piece] + begin, starts[piece] + end)
                for piece, begin, end in label_gaps(marks, aligned=self._aligned)
            ]

    def _begins_of_pieces(self) -> NDArray[np.int64]:
        begins: NDArray[np.int64] = self._begins[self._table[SOURCE] >= 0].astype(np.int64)
        return begins

    def _between(self, segments: NDArray[np.intp], begins: NDArray[Any]) -> list[slice]:
        """Return the positions from `begins` to the ends of the rooms of some segments."""
        if not len(segments):
            return []
        return list(map(slice, begins[segments].tolist(), self._borders[segments + 1].tolist()))

    def _array(self, dtype: "np.dtype[Any]") -> NDArray[Any]:
        return np.frombuffer(self._buffers.take(self._positions * dtype.itemsize), dtype)

    def _mark(self, trained: Attached) -> NDArray[np.bool_]:
        """Return which positions are trained: +1 where a span begins, -1 where it ends, summed up."""
        edges = np.zeros(self._positions + 1, np.int8)
        spans = trained.lines + self._begins[trained.of()][:, None]
        np.add.at(edges, spans[:, 0], 1)
        np.add.at(edges, spans[:, 1], -1)
        return np.cumsum(edges[:-1], dtype=np.int8).astype(bool)

    def boundaries(self, cuts: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return for each micro batch where sequences begin and end, with and without what is padded inside.

        Args:
            cuts: int64 [sheets + 1], the segments of micro batch i are `cuts[i]` up to `cuts[i + 1]`.
        """
        longest = np.maximum.reduceat(self._room, cuts[:-1]).tolist()
        spare = np.add.reduceat(self._room - self._table[LENGTH], cuts[:-1]).tolist()
        limits = cuts.tolist()
        found: list[dict[str, Any]] = []
        for first, last, most, padded in zip(limits[:-1], limits[1:], longest, spare, strict=True):
            borders = self._borders[first : last + 1] - self._borders[first]
            real = borders
            if padded:
                real = np.zeros(last - first + 1, np.int32)
                self._table[LENGTH, first:last].cumsum(out=real[1:])
            found.append({"cu_seqlens": real, "cu_seqlens_padded": borders, "max_seqlen": most})
        return found

    def tokens(self, pad_id: int) -> NDArray[Any]:
        """String the segments together as they are stored, and widen them.

        Slices of memoryviews are joined in 0.3 µs each and keep the interpreter lock; a numpy copy of a piece would let
        it go, and wait for it again, each time. Some at a time: the garbage collector looks at all that is alive when
        700 more objects than before are, which a slice is too.
        """
        table, frames, form = self._table, self._frames, self._frames[-1].format
        if self._copies is not None:  # with what is padded
            slices = zip(*self._copies[:3].tolist(), strict=True)
        else:
            offset = table[OFFSET]
            slices = zip(table[FRAME].tolist(), offset.tolist(), (offset + table[LENGTH]).tolist(), strict=True)
        parts = (frames[frame][first:last] for frame, first, last in slices)
        if self._padded and self._copies is None:
            spare = (self._room - table[LENGTH]).tolist()
            padding = np.full(max(spare), pad_id, form).data
            parts = (part for pair in zip(parts, (padding[:room] for room in spare), strict=True) for part in pair)
        tokens, begin = self._array(self._dtype), 0
        while some := tuple(islice(parts, _SLICES_AT_ONCE)):
            stored = np.frombuffer(b"".join(some), form)
            tokens[begin : begin + len(stored)] = stored
            begin += len(stored)
        if begin != self._positions:
            raise SourceError(
                f"{self._positions} positions of micro batches got {begin} tokens: a frame is shorter than its index "
                "says; check the sources with `shardtools verify`"
            )
        if self._copies is not None:
            _, first, last, ids = self._copies
            length = last - first
            written = (ids != NO_ID).nonzero()[0]
            tokens[(length.cumsum() - length)[written]] = ids[written]
        return tokens

    def labels(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Aligned: the next token inside the piece.

        Its last position has a target only if the piece goes on. Unshifted: the token itself.
        """
        labels = self._array(self._dtype)
        if self._aligned:
            labels.data[:-1] = tokens.data[1:]
            labels[self._ends - 1] = IGNORED
            frame, offset, length = self._table[FRAME : LENGTH + 1, self._going_on]
            targets = zip(frame.tolist(), (offset + length).tolist(), strict=True)
            labels[self._ends[self._going_on] - 1] = [self._frames[number][at] for number, at in targets]
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
        if int(self._room.max()) <= LONGEST_COUNTING:
            counted = b"".join(map(countings.__getitem__, self._room.tolist()))
            position_ids[:] = np.frombuffer(counted, np.uint16)
        else:
            for begin, room in zip(self._begins.tolist(), self._room.tolist(), strict=True):
                position_ids[begin : begin + room] = np.arange(room)
        return position_ids

    def loss_mask(self) -> NDArray[np.float32]:
        if self._trained is not None:
            return self._trained.astype(np.float32)
        mask = self._array(np.dtype(np.float32))
        mask.fill(1.0)
        if self._aligned:
            mask[self._ends - 1] = 0.0
            mask[self._ends[self._going_on] - 1] = 1.0
        else:
            mask[self._begins] = 0.0
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

    def loss_tokens(self, cuts: NDArray[np.int64]) -> list[int]:
        """Return how many positions of each micro batch are trained; `cuts` as `boundaries` has them."""
        first = cuts[:-1]
        if self._trained is not None:
            trained = np.add.reduceat(self._trained, self._begins[first], dtype=np.int64)
        else:
            table = self._table
            targets = np.where(table[SOURCE] < 0, 0, table[LENGTH] - 1)
            if self._aligned:
                targets += table[GOES_ON]
            trained = np.add.reduceat(targets, first)
            for gap in self._untrained:
                trained[np.searchsorted(self._begins[first], gap.start, "right") - 1] -= gap.stop - gap.start
        counts: list[int] = trained.tolist()
        return counts
