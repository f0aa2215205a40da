"""Pieces turned into prefix, suffix and middle, before they are laid into a batch.

The transformed pieces of a micro batch become one more frame: whatever lies behind, labels, positions and boundaries
included, sees pieces like any other, and pieces without fill-in-the-middle take the way that they always took.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from streampipe.assemble.fim_cuts import Counts, Cutter, Parts, Text
from streampipe.assemble.segments import Frames, Segments

# The bits of a choice, as `plan.fim` draws it; the two rooms meet in these numbers.
ORDER_BITS, TOO_LONG, BEGINNING, END = 3, 3, 4, 8
# The kind of tokens between parts, as `fim_parts` shows them; the parts are 1 prefix, 2 suffix, 3 middle.
SENTINEL = 4
# What of a piece is needed to write it.
_COLUMNS = ("fim", "source", "frame", "offset", "length", "slot", "trained_count")


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
        slack: tokens that a fragment may have more than its own and the sentinels.
    """

    orders: tuple[Order, Order]
    cutter: Cutter
    start: int
    end: int
    middle_only: bool
    slack: int = 0


@dataclass
class Marks:
    """What a batch must know of its transformed pieces.

    Attributes:
        piece: which of the segments they are.
        parts: the piece, its order, tokens before it, and tokens of prefix, suffix and middle; several of a piece that
            was split, in their order.
        untrained: a piece, and tokens `[begin, end)` of it that are no target although a token stands before them.
        counts: what was done, by source number.
    """

    piece: list[int] = field(default_factory=list)
    parts: list[tuple[int, Order, int, tuple[int, int, int]]] = field(default_factory=list)
    untrained: list[tuple[int, int, int]] = field(default_factory=list)
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
    marks = Marks(counts={number: Counts() for number in sources})
    if segments.fim is None or segments.trained_count is None:
        return segments, frames, marks
    writer = _Writer(frames, sources, marks)
    chosen: list[int] = []
    sizes: list[int] = []
    rows = list(zip(*(getattr(segments, name).tolist() for name in _COLUMNS), strict=True))
    for piece, row in enumerate(rows):
        if row[0] and row[1] in sources:
            if row[0] & ORDER_BITS == TOO_LONG:
                marks.counts[row[1]].too_long += 1
                continue
            chosen.append(piece)
            if size := writer.write(piece, row):
                sizes.append(size)
    if segments.fragments is not None:
        for piece, fragments in _by_piece(segments.fragments):
            if size := writer.split(piece, rows[piece], fragments):
                sizes.append(size)
            chosen.append(piece)
    for number in segments.source.tolist():
        if number in sources:
            marks.counts[number].pieces += 1
    if not chosen:
        return segments, frames, marks
    done, ends = np.array(marks.piece, np.int64), np.cumsum(sizes, dtype=np.int64)
    made = memoryview(b"".join(writer.chunks)).cast(frames[int(segments.frame[chosen[0]])].format)  # type: ignore[call-overload]
    offset, length, frame = segments.offset.copy(), segments.length.copy(), segments.frame.copy()
    goes_on, slot = segments.goes_on.copy(), segments.slot.copy()
    offset[done], frame[done], length[done], goes_on[done] = ends - sizes, len(frames), sizes, False
    needed = length[chosen]
    slot[chosen] = needed if multiple == 1 else np.minimum(slot[chosen], -(-needed // multiple) * multiple)
    trained = segments.trained
    if trained is not None:
        trained = _trained(trained, length, marks, aligned=aligned)
    moved = replace(segments, frame=frame, offset=offset, length=length, slot=slot, goes_on=goes_on, trained=trained)
    return moved, [*frames, made], marks


class _Writer:
    """Strings transformed pieces together: `chunks` are what they consist of, one after the other."""

    def __init__(self, frames: Frames, sources: Mapping[int, SourceFim], marks: Marks) -> None:
        self.chunks: list[memoryview] = []
        self._frames = frames
        self._sources = sources
        self._marks = marks

    def write(self, piece: int, row: tuple[int, ...]) -> int:
        """Transform a piece, given as its `_COLUMNS`; return its tokens, 0 if it was left alone."""
        word, number, frame, offset, length, room, due = row
        own, marks, view, chunks = self._sources[number], self._marks, self._frames[frame], self.chunks
        counts = marks.counts[number]
        second = (word & ORDER_BITS) - 1
        order, added = own.orders[second], own.orders[second].added
        begin, end = offset, offset + length
        before = own.start if word & BEGINNING else 0
        after = own.end if word & END else 0
        text = Text(view[begin + before : end - after], bool(word & BEGINNING), word)
        parts = own.cutter.parts(text, room - added - before - after, counts)
        if parts is None:
            return 0
        if before:
            chunks.append(view[begin : begin + 1])
        sizes = self._lay(order, parts)
        if after:
            chunks.append(view[end - 1 : end])
        size = before + added + sum(sizes) + after
        ahead = size - after - sizes[2]  # the middle comes last
        surplus = ahead - 1 if own.middle_only else size - 1 - due
        if surplus:
            unseen = max(1, ahead - surplus)
            marks.untrained.append((piece, unseen, unseen + surplus))
        counts.transformed += 1
        counts.spm += second
        counts.inserted += size - length
        marks.piece.append(piece)
        marks.parts.append((piece, order, before, sizes))
        return size

    def _lay(self, order: Order, parts: Parts) -> tuple[int, int, int]:
        """String the parts together in an order; return the tokens of prefix, suffix and middle."""
        chunks = self.chunks
        for item in order.items:
            if item.__class__ is int:
                chunks += parts[item - 1]
            else:
                chunks.append(item)  # type: ignore[arg-type]
        prefix, suffix, middle = parts
        return _size(prefix), _size(suffix), _size(middle)

    def split(self, piece: int, row: tuple[int, ...], fragments: list[list[int]]) -> int:
        """Transform some fragments of a piece, each given as begin, end and choice; what is between stays.

        Returns:
            its tokens, 0 if none was transformed.
        """
        _, number, frame, offset, length, room, due = row
        own, marks, view = self._sources[number], self._marks, self._frames[frame]
        counts = marks.counts[number]
        fitting = [fragment for fragment in fragments if fragment[2] & ORDER_BITS != TOO_LONG]
        counts.too_long += len(fragments) - len(fitting)
        spare = room - length - sum(own.orders[(choice & ORDER_BITS) - 1].added for _, _, choice in fitting)
        size = at = surplus = 0  # tokens of the piece that are written, and that were read
        made: list[tuple[int, int, int, int]] = []
        for begin, end, choice in fitting:
            second = (choice & ORDER_BITS) - 1
            order, slack = own.orders[second], min(own.slack, spare)
            spare -= slack
            text = Text(view[offset + begin : offset + end], bool(choice & BEGINNING), choice)
            parts = own.cutter.parts(text, end - begin + slack, counts)
            if parts is None:
                continue
            self.chunks.append(view[offset + at : offset + begin])
            size, at = size + begin - at, end
            sizes = self._lay(order, parts)
            marks.parts.append((piece, order, size, sizes))
            more = sum(sizes) - (end - begin)
            made.append((size, order.added, order.added + sizes[0] + sizes[1], more))
            size, surplus = size + order.added + sum(sizes), surplus + more
            counts.fragments += 1
            counts.spm += second
        if not made:
            return 0
        self.chunks.append(view[offset + at : offset + length])
        size += length - at
        # Beyond what cutting added, the plan may not have counted sentinels either.
        uncounted = size - 1 - due - surplus
        for begin, added, ahead, more in made:
            first = last = begin + ahead  # where the middle begins
            if own.middle_only:
                first = max(1, begin)
            else:
                hidden = min(added, uncounted)
                uncounted -= hidden
                first = max(1, begin, last - more - hidden)
                last = first + more + hidden
            if first < last:
                marks.untrained.append((piece, first, last))
        counts.transformed += 1
        counts.split += 1
        counts.inserted += size - length
        marks.piece.append(piece)
        return size


def _by_piece(fragments: NDArray[np.int64]) -> Iterator[tuple[int, list[list[int]]]]:
    for piece, rows in groupby(fragments.tolist(), key=itemgetter(0)):
        yield piece, [row[1:] for row in rows]


def _size(part: tuple[memoryview, ...]) -> int:
    return len(part[0]) if len(part) == 1 else sum(map(len, part))


def label_gaps(marks: Marks, *, aligned: bool) -> list[tuple[int, int, int]]:
    """Return the positions `[begin, end)` of transformed pieces that have no trained label: piece, begin, end."""
    lead = 1 if aligned else 0
    return [(piece, begin - lead, end - lead) for piece, begin, end in marks.untrained]


def _trained(spans: NDArray[np.int64], length: NDArray[np.int64], marks: Marks, *, aligned: bool) -> NDArray[np.int64]:
    """Replace the trained positions of the transformed pieces among those of all: int64 [K, 3]."""
    lead = 1 if aligned else 0
    borders: dict[int, list[int]] = {piece: [1] for piece in marks.piece}
    for piece, begin, end in marks.untrained:
        borders[piece] += [begin, end]
    own = [
        (piece, begin - lead, end - lead)
        for piece, found in borders.items()
        for begin, end in zip(found[::2], [*found[1::2], int(length[piece])], strict=True)
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
    for piece, order, before, sizes in marks.parts:
        at = int(starts[piece]) + before
        for item in order.items:
            kind, size = (item, sizes[item - 1]) if isinstance(item, int) else (SENTINEL, len(item))
            kinds[at : at + size] = kind
            at += size
    return kinds


def horizon(marks: Marks, starts: NDArray[np.int64], positions: int) -> NDArray[np.int32]:
    """Return how many tokens of the middle come after each position: int32 [positions], -1 outside.

    It begins at the token before the middle, with the length of the middle, and ends with 0 at its last token.
    """
    left = np.full(positions, -1, np.int32)
    for piece, order, before, sizes in marks.parts:
        begin = int(starts[piece]) + before + order.added + sizes[0] + sizes[1]
        left[begin - 1 : begin + sizes[2]] = np.arange(sizes[2], -1, -1)
    return left
