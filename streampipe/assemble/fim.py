"""Pieces turned into prefix, suffix and middle, before they are laid into a batch.

The transformed pieces of a micro batch become one more frame: whatever lies behind, labels, positions and boundaries
included, sees pieces like any other, and pieces without fill-in-the-middle take the way that they always took.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from streampipe.assemble.fim_cuts import DRAWS, Counts, Cutter, Parts, Text
from streampipe.assemble.segments import Frames, Segments
from streampipe.rng import drawn_pairs

# The bits of a choice, as `plan.fim` draws it; the two rooms meet in these numbers.
_ORDER_BITS, _TOO_LONG, _BEGINNING, _END = 3, 3, 4, 8
# Kinds of tokens in a transformed piece, as `fim_parts` shows them.
NONE, PREFIX, SUFFIX, MIDDLE, SENTINEL = 0, 1, 2, 3, 4


@dataclass(frozen=True)
class Order:
    """What stands one after the other: a part by its kind, or the ids that stand between."""

    items: tuple[int | memoryview, ...]

    @property
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
    """What a batch must know of its transformed pieces: one entry for each of them.

    Attributes:
        piece: which of the segments it is.
        runs: kinds of tokens and where each run of them ends, in tokens of the piece.
        untrained: the tokens `[begin, end)` that are no target although a token stands before them.
        counts: what was done, by source number.
    """

    piece: list[int] = field(default_factory=list)
    runs: list[list[tuple[int, int]]] = field(default_factory=list)
    untrained: list[tuple[int, int]] = field(default_factory=list)
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
    _count_all(segments, sources, marks)
    order = (segments.fim & np.uint64(_ORDER_BITS)).astype(np.int64)
    chosen = np.flatnonzero((order > 0) & (order < _TOO_LONG))
    if not len(chosen):
        return segments, frames, marks
    room = segments.slot[chosen]
    begins = np.cumsum(room) - room
    made = np.empty(int(room.sum()), frames[int(segments.frame[chosen[0]])].format)
    ends = _write_all(segments, frames, sources, made.data, (chosen, begins, room), marks)
    done = ends >= 0
    offset, length, frame = segments.offset.copy(), segments.length.copy(), segments.frame.copy()
    goes_on, slot = segments.goes_on.copy(), segments.slot.copy()
    offset[chosen[done]], frame[chosen[done]] = begins[done], len(frames)
    length[chosen[done]] = (ends - begins)[done]
    goes_on[chosen[done]] = False
    slot[chosen] = -(-length[chosen] // multiple) * multiple
    moved = replace(segments, offset=offset, length=length, frame=frame, goes_on=goes_on, slot=slot)
    if segments.trained is not None:
        moved = replace(moved, trained=_trained(segments.trained, length, marks, aligned=aligned))
    return moved, [*frames, made.data], marks


def _count_all(segments: Segments, sources: Mapping[int, SourceFim], marks: Marks) -> None:
    order = segments.fim & np.uint64(_ORDER_BITS) if segments.fim is not None else np.empty(0, np.uint64)
    for number in sources:
        own = segments.source == number
        too_long = int((order[own] == np.uint64(_TOO_LONG)).sum())
        marks.counts[number] = Counts(pieces=int(own.sum()), too_long=too_long)


def _write_all(
    segments: Segments,
    frames: Frames,
    sources: Mapping[int, SourceFim],
    out: memoryview,
    chosen: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    marks: Marks,
) -> NDArray[np.int64]:
    """Write the transformed pieces, each at its place; return where each ends, -1 for one that was left alone."""
    pieces, begins, rooms = chosen
    words = segments.fim[pieces] if segments.fim is not None else np.empty(0, np.uint64)
    planned = segments.trained_count[pieces] if segments.trained_count is not None else begins
    draws = drawn_pairs(words, DRAWS).tolist()
    columns = (getattr(segments, name)[pieces].tolist() for name in ("source", "frame", "offset", "length"))
    ends: list[int] = []
    for number, (piece, begin, room, word, due, source, frame, offset, length) in enumerate(
        zip(*(array.tolist() for array in (pieces, begins, rooms, words, planned)), *columns, strict=True)
    ):
        own, counts, view = sources[source], marks.counts[source], frames[frame]
        order = own.orders[(word & _ORDER_BITS) - 1]
        first = offset + (own.start if word & _BEGINNING else 0)
        last = offset + length - (own.end if word & _END else 0)
        text = Text(view[first:last], bool(word & _BEGINNING), draws[number])
        parts = own.cutter.parts(text, room - order.added - (length - (last - first)), counts)
        if parts is None:
            ends.append(-1)
            continue
        head, tail = view[offset:first], view[last : offset + length]
        end, runs = _write(out, begin, (head, tail), order, parts)
        middle = next((stop for kind, stop in reversed(runs) if kind not in (MIDDLE, NONE)), 1)
        surplus = middle - 1 if own.middle_only else end - begin - 1 - due
        unseen = max(1, middle - surplus)
        counts.transformed += 1
        counts.spm += (word & _ORDER_BITS) - 1
        marks.piece.append(piece)
        marks.runs.append(runs)
        marks.untrained.append((unseen, unseen + surplus))
        ends.append(end)
    return np.array(ends, np.int64)


def _write(
    out: memoryview, begin: int, outside: tuple[memoryview, memoryview], order: Order, parts: Parts
) -> tuple[int, list[tuple[int, int]]]:
    """Write one piece; return where it ends, and the runs of kinds in it."""
    at = begin
    runs: list[tuple[int, int]] = []
    if len(outside[0]):
        out[at : at + 1] = outside[0]
        at += 1
        runs.append((NONE, 1))
    for item in order.items:
        if isinstance(item, int):
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
    return at, runs


def label_gaps(marks: Marks, *, aligned: bool) -> list[tuple[int, int, int]]:
    """Return, for each transformed piece with some, the positions `[begin, end)` of it that have no trained label."""
    lead = 1 if aligned else 0
    return [
        (piece, begin - lead, end - lead)
        for piece, (begin, end) in zip(marks.piece, marks.untrained, strict=True)
        if begin < end
    ]


def _trained(spans: NDArray[np.int64], length: NDArray[np.int64], marks: Marks, *, aligned: bool) -> NDArray[np.int64]:
    """Replace the trained positions of the transformed pieces among those of all: int64 [K, 3]."""
    lead = 1 if aligned else 0
    own = [
        (piece, begin, end)
        for piece, (first, last) in zip(marks.piece, marks.untrained, strict=True)
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
