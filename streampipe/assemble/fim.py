"""Pieces turned into prefix, suffix and middle, before they are laid into a batch.

The transformed pieces of a micro batch become one more frame: whatever lies behind, labels, positions and boundaries
included, sees pieces like any other, and pieces without fill-in-the-middle take the way that they always took.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streampipe.assemble.fim_cuts import Counts, Cutter, Parts, Text
from streampipe.assemble.segments import Frames, Segments

# The bits of a choice, as `plan.fim` draws it; the two rooms meet in these numbers.
_ORDER_BITS, _TOO_LONG, _BEGINNING, _END = 3, 3, 4, 8
# Kinds of tokens in a transformed piece, as `fim_parts` shows them.
NONE, PREFIX, SUFFIX, MIDDLE, SENTINEL = 0, 1, 2, 3, 4


@dataclass(frozen=True)
class Order:
    """What stands one after the other: a part by its kind, or the ids that stand between."""

    items: tuple[int | memoryview, ...]

    @cached_property
    def added(self) -> int:
        """Tokens that are in no part."""
        return sum(len(item) for item in self.items if isinstance(item, memoryview))


@dataclass(frozen=True)
class SourceFim:
    """How a source's pieces are transformed.

    Attributes:
        orders: the first (PSM) and the second (SPM).
        cutter: chooses the cuts.
        start, end: tokens at the beginning and at the end of each document that stay outside: 0 or 1.
        middle_only: whether only the middle and the end token are trained.
    """

    orders: tuple[Order, Order]
    cutter: Cutter
    start: int
    end: int
    middle_only: bool


@dataclass
class Marks:
    """What a batch must know of its transformed pieces.

    Attributes:
        piece: which of the segments they are.
        runs: of each, kinds of tokens and where each run of them ends, in tokens of the piece.
        untrained: by piece, the tokens `[begin, end)` that are no target although a token stands before them.
        counts: what was done, by source number.
    """

    piece: list[int] = field(default_factory=list)
    runs: list[list[tuple[int, int]]] = field(default_factory=list)
    untrained: dict[int, tuple[int, int]] = field(default_factory=dict)
    counts: dict[int, Counts] = field(default_factory=dict)


def transform(
    segments: Segments, frames: Frames, sources: Mapping[int, SourceFim], multiple: int, *, aligned: bool
) -> tuple[Segments, Frames, Marks]:
    """Transform the pieces that the plan chose.

    Args:
        segments: of a micro batch.
        frames: the decoded frames.
        sources: by source number.
        multiple: slots shrink to a multiple of it, so that room which a piece does not need lies at the end of its row.
        aligned: how labels stand.

    Returns:
        the segments as they now are; the frames, with one more that holds what was made; what else is to be known.
    """
    marks = Marks()
    if segments.fim is None or segments.trained_count is None:
        return segments, frames, marks
    rows = _chosen(segments, sources, marks)
    if not rows:
        return segments, frames, marks
    chosen = np.array(rows)
    room = segments.slot[chosen]
    begins = np.cumsum(room) - room
    made = np.empty(int(room.sum()), frames[int(segments.frame[rows[0]])].format)
    places = zip(rows, begins.tolist(), room.tolist(), segments.trained_count[chosen].tolist(), strict=True)
    writer = _Writer(segments, frames, sources, made.data, marks)
    ends = np.array([writer.write(*place) for place in places], np.int64)
    offset, length, frame = segments.offset.copy(), segments.length.copy(), segments.frame.copy()
    goes_on, slot = segments.goes_on.copy(), segments.slot.copy()
    done = chosen if len(marks.piece) == len(rows) else np.array(marks.piece, np.int64)
    offset[done], frame[done] = begins[ends >= 0], len(frames)
    length[done] = (ends - begins)[ends >= 0]
    goes_on[done] = False
    slot[chosen] = length[chosen] if multiple == 1 else np.minimum(room, -(-length[chosen] // multiple) * multiple)
    trained = segments.trained
    if trained is not None:
        trained = _trained(trained, length, marks, aligned=aligned)
    s = segments
    moved = Segments(s.row, frame, offset, length, slot, goes_on, s.source, s.epoch, s.document, trained)
    return moved, [*frames, made.data], marks


def _chosen(segments: Segments, sources: Mapping[int, SourceFim], marks: Marks) -> list[int]:
    """Return the pieces that are to be transformed, and count all of each source."""
    marks.counts |= {number: Counts() for number in sources}
    rows: list[int] = []
    words = segments.fim.tolist() if segments.fim is not None else []
    for piece, (number, word) in enumerate(zip(segments.source.tolist(), words, strict=True)):
        if number in sources:
            counts = marks.counts[number]
            counts.pieces += 1
            if word & _ORDER_BITS == _TOO_LONG:
                counts.too_long += 1
            elif word:
                rows.append(piece)
    return rows


class _Writer:
    """Writes transformed pieces, each at its place."""

    def __init__(
        self, segments: Segments, frames: Frames, sources: Mapping[int, SourceFim], out: memoryview, marks: Marks
    ) -> None:
        self._frames = frames
        self._sources = sources
        self._out = out
        self._marks = marks
        names = ("fim", "source", "frame", "offset", "length")
        self._words, self._source, self._frame, self._offset, self._length = (
            getattr(segments, name).tolist() for name in names
        )

    def write(self, piece: int, begin: int, room: int, due: int) -> int:
        """Write a piece at `begin`, in `room`, with `due` trained tokens; return where it ends, -1 if left alone."""
        word, number, offset, length = (
            self._words[piece],
            self._source[piece],
            self._offset[piece],
            self._length[piece],
        )
        own, counts, view = self._sources[number], self._marks.counts[number], self._frames[self._frame[piece]]
        order = own.orders[(word & _ORDER_BITS) - 1]
        first = offset + (own.start if word & _BEGINNING else 0)
        last = offset + length - (own.end if word & _END else 0)
        text = Text(view[first:last], bool(word & _BEGINNING), word)
        parts = own.cutter.parts(text, room - order.added - (length - (last - first)), counts)
        if parts is None:
            return -1
        end, middle, runs = _write(
            self._out, begin, (view[offset:first], view[last : offset + length]), order.items, parts
        )
        surplus = middle - 1 if own.middle_only else end - begin - 1 - due
        if surplus:
            unseen = max(1, middle - surplus)
            self._marks.untrained[piece] = (unseen, unseen + surplus)
        counts.transformed += 1
        counts.spm += (word & _ORDER_BITS) - 1
        self._marks.piece.append(piece)
        self._marks.runs.append(runs)
        return end


def _write(
    out: memoryview,
    begin: int,
    outside: tuple[memoryview, memoryview],
    items: tuple[int | memoryview, ...],
    parts: Parts,
) -> tuple[int, int, list[tuple[int, int]]]:
    """Write one piece; return where it ends, tokens before its middle, and the runs of kinds in it."""
    at = stop = begin
    runs: list[tuple[int, int]] = []
    if len(outside[0]):
        out[at : at + 1] = outside[0]
        at += 1
        runs.append((NONE, 1))
    middle = 0
    for item in items:
        if isinstance(item, int):
            middle = at - begin  # the middle comes last
            for chunk in parts[item - 1]:
                stop = at + len(chunk)
                out[at:stop] = chunk
                at = stop
            runs.append((item, at - begin))
        else:
            stop = at + len(item)
            out[at:stop] = item
            at = stop
            runs.append((SENTINEL, at - begin))
    if len(outside[1]):
        out[at : at + 1] = outside[1]
        at += 1
        runs.append((NONE, at - begin))
    return at, middle, runs


def label_gaps(marks: Marks, *, aligned: bool) -> list[tuple[int, int, int]]:
    """Return the positions `[begin, end)` of transformed pieces that have no trained label: piece, begin, end."""
    lead = 1 if aligned else 0
    return [(piece, begin - lead, end - lead) for piece, (begin, end) in marks.untrained.items()]


def _trained(spans: NDArray[np.int64], length: NDArray[np.int64], marks: Marks, *, aligned: bool) -> NDArray[np.int64]:
    """Replace the trained positions of the transformed pieces among those of all: int64 [K, 3]."""
    lead = 1 if aligned else 0
    own = [
        (piece, begin, end)
        for piece in marks.piece
        for first, last in (marks.untrained.get(piece, (1, 1)),)
        for begin, end in ((1 - lead, first - lead), (last - lead, int(length[piece]) - lead))
        if begin < end
    ]
    kept = spans[~np.isin(spans[:, 0], marks.piece)]
    both = np.concatenate([kept, np.array(own, np.int64).reshape(-1, 3)])
    return both[np.argsort(both[:, 0], kind="stable")]


def part_ids(marks: Marks, starts: NDArray[np.int64], positions: int) -> NDArray[np.int8]:
    """Return the kind of each token of a batch: int8 [positions].

    0 where there is no part: no fill-in-the-middle, padding, start and end tokens; 1 prefix, 2 suffix, 3 middle, 4
    sentinel.

    Args:
        marks: of the transformed pieces.
        starts: int64 [P], where each piece begins.
        positions: of the batch.
    """
    kinds = np.zeros(positions, np.int8)
    for piece, runs in zip(marks.piece, marks.runs, strict=True):
        begin = at = int(starts[piece])
        for kind, end in runs:
            kinds[at : begin + end] = kind
            at = begin + end
    return kinds


def horizon(marks: Marks, starts: NDArray[np.int64], positions: int) -> NDArray[np.int32]:
    """Return how many tokens of the middle come after each position: int32 [positions], -1 outside.

    It begins at the token before the middle, with the length of the middle, and ends with 0 at its last token.
    """
    left = np.full(positions, -1, np.int32)
    for piece, runs in zip(marks.piece, marks.runs, strict=True):
        last = next(number for number in range(len(runs) - 1, -1, -1) if runs[number][0] == MIDDLE)
        begin, end = (int(starts[piece]) + runs[number][1] for number in (last - 1, last))
        left[begin - 1 : end] = np.arange(end - begin, -1, -1)
    return left
