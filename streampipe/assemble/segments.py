"""Where each piece of a batch comes from and where it goes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Frames = Sequence[memoryview]
# Lists of what some segments have: int64 [K, 1 + n], sorted; the first number of a line is that of its segment.
Lines = NDArray[np.int64] | None


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
        copies: int64 [K, 4], sorted: a piece, and a frame with the tokens `[begin, end)` of it; in their order they
            fill the slot, padding included. None where a piece is one slice: that at `offset`.
        patches: int64 [M, 3], sorted: a piece, a position of it, and the id that stands there in place of what was
            copied; None likewise.
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
    trained: Lines = None
    fim: NDArray[np.uint64] | None = None
    trained_count: NDArray[np.int64] | None = None
    fragments: Lines = None
    copies: Lines = None
    patches: Lines = None

    def __len__(self) -> int:
        return len(self.row)


# Rows of a ground's table. The last two are there only where a source has fill-in-the-middle.
FRAME, OFFSET, LENGTH, ROOM, GOES_ON, SOURCE, EPOCH, DOCUMENT, FIM, TRAINED_COUNT = range(10)


@dataclass(frozen=True)
class Ground:
    """Rows of positions cut into segments, in memory order: S pieces and dummy documents, which cover all rows.

    One table, so that the segments of a batch are gathered from those of a round at once.

    Attributes:
        table: int64 [8 or 10, S]: the columns of `Segments`, by the numbers above. A dummy document is of source, epoch
            and document -1; its tokens fill its room, and are the beginning of a frame of padding.
        first: int64 [rows + 1], the segments of row i are `first[i]` up to `first[i + 1]`.
        trained, fragments, patches: as `Segments` has them, but of segments.
        copies: likewise, with those of dummy documents.
    """

    table: NDArray[np.int64]
    first: NDArray[np.int64]
    trained: Lines = None
    fragments: Lines = None
    copies: Lines = None
    patches: Lines = None

    def take(self, rows: NDArray[np.int64]) -> "Ground":
        """Return some rows, in the order asked for."""
        begin = self.first[rows]
        counts = self.first[rows + 1] - begin
        first = np.zeros(len(rows) + 1, np.int64)
        counts.cumsum(out=first[1:])
        # Rows with 2 and 3 segments that begin at 10 and 40 give 10, 11, 40, 41, 42.
        taken = (begin - first[:-1]).repeat(counts)
        taken += np.arange(len(taken))
        return Ground(self.table.take(taken, axis=1), first, *(_taken(lines, taken) for lines in self._lists()))

    def between(self, begin: int, end: int) -> "Ground":
        """Return the rows `[begin, end)`."""
        low, high = int(self.first[begin]), int(self.first[end])
        lists = (_between(lines, low, high) for lines in self._lists())
        return Ground(self.table[:, low:high], self.first[begin : end + 1] - low, *lists)

    def pieces(self) -> Segments:
        """Return the pieces alone, for changing them and laying them out again."""
        real = np.flatnonzero(self.table[SOURCE] >= 0)
        row = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))[real]
        frame, offset, length, slot, goes_on, source, epoch, document, *more = self.table.take(real, axis=1)
        narrow = goes_on.astype(bool), source.astype(np.int32), epoch.astype(np.int32)
        number = np.zeros(self.table.shape[1], np.int64)
        number[real] = np.arange(len(real))
        copies = self.copies
        if copies is not None:
            copies = copies[self.table[SOURCE, copies[:, 0]] >= 0]
        lists = (_renumbered(lines, number) for lines in (self.trained, self.fragments, copies, self.patches))
        trained, *others = lists
        fim, count = (more[0].view(np.uint64), more[1]) if more else (None, None)
        return Segments(row, frame, offset, length, slot, *narrow, document, trained, fim, count, *others)

    def _lists(self) -> tuple[Lines, ...]:
        return self.trained, self.fragments, self.copies, self.patches


def joined(grounds: Sequence[Ground], shifts: Sequence[int]) -> Ground:
    """Return the rows of several grounds as one; to the frames of each a shift is added."""
    before = np.cumsum([0, *(ground.table.shape[1] for ground in grounds)]).tolist()
    tables = [ground.table.copy() for ground in grounds]
    for table, shift in zip(tables, shifts, strict=True):
        table[FRAME] += shift
    firsts = [ground.first[1:] + past for ground, past in zip(grounds, before, strict=False)]
    lists: list[NDArray[np.int64] | None] = []
    for name in ("trained", "fragments", "copies", "patches"):
        found = [getattr(ground, name) for ground in grounds]
        moved = [_moved(lines, past) for lines, past in zip(found, before, strict=False) if lines is not None]
        if name == "copies":
            for lines, shift in zip(moved, shifts, strict=False):
                lines[:, 1] += shift
        lists.append(np.concatenate(moved) if moved else None)
    return Ground(np.concatenate(tables, axis=1), np.concatenate([np.zeros(1, np.int64), *firsts]), *lists)


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
    old = (segments.trained, segments.fragments, segments.copies, segments.patches)
    trained, fragments, copies, patches = (_renumbered(lines, place) for lines in old)
    if copies is not None:
        empty = first[tails + 1] - 1
        rest = np.column_stack([empty, table[FRAME, empty], np.zeros_like(empty), table[ROOM, empty]])
        copies = np.concatenate([copies, rest])
        copies = copies[np.argsort(copies[:, 0], kind="stable")]
    return Ground(table, first, trained, fragments, copies, patches)


def _taken(lines: Lines, segments: NDArray[np.int64]) -> Lines:
    """Return the lines of some segments, numbered anew, in the order asked for."""
    if lines is None:
        return None
    low, high = (np.searchsorted(lines[:, 0], segments, side) for side in ("left", "right"))
    counts = high - low
    number = np.repeat(np.arange(len(segments)), counts)
    line = np.arange(len(number)) + np.repeat(low - (np.cumsum(counts) - counts), counts)
    taken: NDArray[np.int64] = lines.take(line, axis=0)
    taken[:, 0] = number
    return taken


def _between(lines: Lines, low: int, high: int) -> Lines:
    """Return the lines of the segments `[low, high)`, numbered from 0."""
    if lines is None:
        return None
    return _moved(lines[slice(*np.searchsorted(lines[:, 0], (low, high)))], -low)


def _moved(lines: NDArray[np.int64], shift: int) -> NDArray[np.int64]:
    moved = lines.copy()
    moved[:, 0] += shift
    return moved


def _renumbered(lines: Lines, number: NDArray[np.int64]) -> Lines:
    """Return the lines with new numbers of their segments, in the same order."""
    return None if lines is None else np.column_stack([number[lines[:, 0]], lines[:, 1:]])
