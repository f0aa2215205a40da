"""Where each piece of a batch comes from and where it goes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Frames = Sequence[memoryview]


@dataclass(frozen=True)
class Segments:
    """Pieces that are to be laid into rows: arrays of length P, in the order of their sequences.

    Attributes:
        row: int64, the sequence that each lies in, ascending.
        frame: int64, position in the list of decoded frames.
        offset: int64, the piece's first token inside that frame, in tokens.
        length, slot: int64, tokens of the piece, and the room that it takes.
        goes_on: bool, whether the token after the piece is the target of its last one.
        source, epoch: int32; document: int64: whose document it is.
        trained: int64 [K, 3], sorted: a piece and the positions `[begin, end)` of it that are trained; None where all
            that have a target are.
        fim: uint64, what fill-in-the-middle does to each, as `plan.fim` drew it; None where no source has any.
        trained_count: int64, how many positions of each are trained, as planned; None likewise.
        fragments: int64 [K, 4], sorted: a piece, tokens `[begin, end)` of it that are transformed by themselves, and
            their choice, as `plan.fim` drew it; None where no source is split.
        copies: int64 [K, 5], sorted: a piece, a frame with the tokens `[begin, end)` of it, and the id that stands in
            place of the first of them, `NO_ID` for none; in their order they fill the slot, padding included. None
            where a piece is one slice: that at `offset`.
    """

    row: NDArray[np.int64]
    frame: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    slot: NDArray[np.int64]
    goes_on: NDArray[np.bool_]
    source: NDArray[np.int32]
    epoch: NDArray[np.int32]
    document: NDArray[np.int64]
    trained: NDArray[np.int64] | None = None
    fim: NDArray[np.uint64] | None = None
    trained_count: NDArray[np.int64] | None = None
    fragments: NDArray[np.int64] | None = None
    copies: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.row)


# In `copies`: no id stands in place of the first token of a slice.
NO_ID = -1
# Rows of a ground's table. The last two are there only where a source has fill-in-the-middle.
FRAME, OFFSET, LENGTH, ROOM, GOES_ON, SOURCE, EPOCH, DOCUMENT, FIM, TRAINED_COUNT = range(10)


@dataclass(frozen=True)
class Attached:
    """Lines of numbers that belong to S segments, any number to each.

    Attributes:
        first: int64 [S + 1], segment i has the lines `first[i]` up to `first[i + 1]`.
        lines: int64 [K, n].
    """

    first: NDArray[np.int64]
    lines: NDArray[np.int64]

    def take(self, segments: NDArray[np.int64]) -> "Attached":
        """Return those of some segments, in the order asked for."""
        first, taken = _taken(self.first, segments)
        return Attached(first, self.lines.take(taken, axis=0))

    def between(self, begin: int, end: int) -> "Attached":
        """Return those of the segments `[begin, end)`."""
        low, high = int(self.first[begin]), int(self.first[end])
        return Attached(self.first[begin : end + 1] - low, self.lines[low:high])

    def of(self) -> NDArray[np.int64]:
        """Return the segment that each line is of: int64 [K]."""
        return np.arange(len(self.first) - 1).repeat(np.diff(self.first))

    def numbered(self) -> NDArray[np.int64]:
        """Return each line behind the number of its segment: int64 [K, 1 + n]."""
        return np.column_stack([self.of(), self.lines])


def attached(numbered: NDArray[np.int64], segments: int) -> Attached:
    """Sort lines, each behind the number of its segment; those of a segment stay in their order."""
    order = np.argsort(numbered[:, 0], kind="stable")
    first = np.searchsorted(numbered[order, 0], np.arange(segments + 1))
    return Attached(first, numbered[:, 1:][order])


def _taken(first: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where what some rows have begins when they stand one after the other, and which it is."""
    begin = first[rows]
    counts = first[rows + 1] - begin
    after = np.zeros(len(rows) + 1, np.int64)
    counts.cumsum(out=after[1:])
    # Rows with 2 and 3 that begin at 10 and 40 give 10, 11, 40, 41, 42.
    taken = (begin - after[:-1]).repeat(counts)
    taken += np.arange(len(taken))
    return after, taken


@dataclass(frozen=True)
class Ground:
    """Rows of positions cut into segments, in memory order: S pieces and dummy documents, which cover all rows.

    One table, so that the segments of a batch are gathered from those of a round at once.

    Attributes:
        table: int64 [8 or 10, S]: the columns of `Segments`, by the numbers above. A dummy document is of source, epoch
            and document -1; its tokens fill its room, and are the beginning of a frame of padding.
        first: int64 [rows + 1], the segments of row i are `first[i]` up to `first[i + 1]`.
        trained, fragments: as `Segments` has them, but of segments.
        copies: likewise, with those of dummy documents.
    """

    table: NDArray[np.int64]
    first: NDArray[np.int64]
    trained: Attached | None = None
    fragments: Attached | None = None
    copies: Attached | None = None

    def take(self, rows: NDArray[np.int64]) -> "Ground":
        """Return some rows, in the order asked for."""
        first, taken = _taken(self.first, rows)
        lists = (None if own is None else own.take(taken) for own in self._lists())
        return Ground(self.table.take(taken, axis=1), first, *lists)

    def between(self, begin: int, end: int) -> "Ground":
        """Return the rows `[begin, end)`."""
        low, high = int(self.first[begin]), int(self.first[end])
        lists = (None if own is None else own.between(low, high) for own in self._lists())
        return Ground(self.table[:, low:high], self.first[begin : end + 1] - low, *lists)

    def pieces(self) -> Segments:
        """Return the pieces alone, for changing them and laying them out again."""
        real = np.flatnonzero(self.table[SOURCE] >= 0)
        row = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))[real]
        frame, offset, length, slot, goes_on, source, epoch, document, *more = self.table.take(real, axis=1)
        narrow = goes_on.astype(bool), source.astype(np.int32), epoch.astype(np.int32)
        lists = (None if own is None else own.take(real).numbered() for own in self._lists())
        trained, *others = lists
        fim, count = (more[0].view(np.uint64), more[1]) if more else (None, None)
        return Segments(row, frame, offset, length, slot, *narrow, document, trained, fim, count, *others)

    def _lists(self) -> tuple[Attached | None, ...]:
        return self.trained, self.fragments, self.copies


def joined(grounds: Sequence[Ground], shifts: Sequence[int]) -> Ground:
    """Return the rows of several grounds as one; to the frames of each a shift is added."""
    tables = [ground.table.copy() for ground in grounds]
    lists: list[list[Attached]] = [[], [], []]
    for ground, table, shift in zip(grounds, tables, shifts, strict=True):
        table[FRAME] += shift
        copies = ground.copies
        if copies is not None:
            copies = Attached(copies.first, copies.lines + np.array([shift, 0, 0, 0]))
        for kind, own in zip(lists, (ground.trained, ground.fragments, copies), strict=True):
            kind.extend([] if own is None else [own])
    first = _one_after_another([ground.first for ground in grounds])
    both = (
        Attached(_one_after_another([own.first for own in of]), np.concatenate([own.lines for own in of]))
        if of
        else None
        for of in lists
    )
    return Ground(np.concatenate(tables, axis=1), first, *both)


def _one_after_another(firsts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    before = np.cumsum([0, *(first[-1] for first in firsts)])
    return np.concatenate([np.zeros(1, np.int64), *(f[1:] + past for f, past in zip(firsts, before, strict=False))])


def lay_out(segments: Segments, rows: int, seq_length: int, pad_frame: int, *, one_per_row: bool = False) -> Ground:
    """Give every piece its positions; what a row has left over becomes a dummy document.

    So rows end where sequences end. Slots 8 and 4 in a row of 16 give segments that begin at 0, 8 and 12, the last of
    them a dummy document of 4.

    Args:
        segments: the pieces.
        rows: how many; those without a piece are dummy documents.
        seq_length: positions of a row.
        pad_frame: the frame that holds `seq_length` times what stands where no token is.
        one_per_row: let each piece, which is alone in its row, take all of it: a padded row is one segment.
    """
    pieces = len(segments)
    slot = np.full(pieces, seq_length) if one_per_row else segments.slot
    used = np.bincount(segments.row, weights=slot, minlength=rows).astype(np.int64)
    tailed = used < seq_length
    # A dummy document stands behind the pieces of its row: pieces move up by the dummies of the rows before theirs.
    dummies = np.cumsum(tailed)
    place = np.arange(pieces) + (dummies - tailed)[segments.row]
    fim, trained_count = segments.fim, segments.trained_count
    columns = [segments.frame, segments.offset, segments.length, slot, segments.goes_on]
    columns += [segments.source, segments.epoch, segments.document]
    if fim is not None and trained_count is not None:
        columns += [fim.view(np.int64), trained_count]
    table = np.zeros((len(columns), pieces + int(dummies[-1])), np.int64)
    table[FRAME], table[SOURCE], table[EPOCH], table[DOCUMENT] = pad_frame, -1, -1, -1
    tails = np.flatnonzero(tailed)
    first = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(segments.row, minlength=rows) + tailed, out=first[1:])
    table[LENGTH, first[tails + 1] - 1] = table[ROOM, first[tails + 1] - 1] = seq_length - used[tails]
    for number, column in enumerate(columns):
        table[number, place] = column
    numbered = (segments.trained, segments.fragments, segments.copies)
    trained, fragments, copies = (
        None if lines is None else np.column_stack([place[lines[:, 0]], lines[:, 1:]]) for lines in numbered
    )
    if copies is not None:
        empty = first[tails + 1] - 1
        rest = np.column_stack(
            [empty, table[FRAME, empty], np.zeros_like(empty), table[ROOM, empty], np.full_like(empty, NO_ID)]
        )
        copies = np.concatenate([copies, rest])
    lists = (None if lines is None else attached(lines, table.shape[1]) for lines in (trained, fragments, copies))
    return Ground(table, first, *lists)
