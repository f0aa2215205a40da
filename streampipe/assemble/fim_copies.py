"""Cuts at token borders, planned for a whole round: no token decides anything of them, so a micro batch only copies.

Where a piece is cut hangs on its choice and its length alone. So the slices of frames that it is made of are listed
before any frame is read. The id that stands before a part is written over what was copied: the slice of the part begins
one token earlier. Further ids are slices of padding, of one token each.
`assemble.fim.transform` makes the same of the tokens, piece by piece, and serves where more must be known of parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampipe.assemble.fim import BEGINNING, END, ORDER_BITS, Order, SourceFim
from streampipe.assemble.fim_cuts import FIM_COUNTS, INSERTED
from streampipe.assemble.segments import (
    FIM,
    FRAME,
    GOES_ON,
    LENGTH,
    NO_ID,
    OFFSET,
    ROOM,
    SOURCE,
    Attached,
    Ground,
    attached,
)
from streampipe.rng import sorted_cuts

_NOTHING, _PREFIX, _SUFFIX, _MIDDLE = 0, 1, 2, 3
# What a piece counts as by its choice: left alone, in the first order, in the second, too long with its sentinels.
_COUNTED_AS = np.array(
    [
        [name in told for name in FIM_COUNTS]
        for told in (["pieces"], ["pieces", "transformed"], ["pieces", "transformed", "spm"], ["pieces", "too_long"])
    ],
    np.int64,
)
_Column = NDArray[np.int64] | int
_Slice = tuple[_Column, _Column, _Column, _Column]  # frame, begin, end, id that stands in place of the first token
_Copies = tuple[NDArray[np.intp], list[_Slice]]  # segments, and slices of each of them


class _Run(NamedTuple):
    """What is copied at once: the ids before it, then from the beginning of one part to the end of another."""

    ids: list[int]
    first: int
    last: int


@dataclass(frozen=True)
class PlannedFim:
    """How pieces are transformed whose cuts are planned.

    Attributes:
        sources: by source number.
        orders: by source number and choice, what stands one after the other.
    """

    sources: Mapping[int, SourceFim]
    orders: Mapping[tuple[int, int], list[_Run]]


def planned_fim(sources: Mapping[int, SourceFim]) -> PlannedFim:
    """List what is copied at once in each order of each source."""
    orders = {
        (number, choice): _runs(order) for number, own in sources.items() for choice, order in enumerate(own.orders, 1)
    }
    return PlannedFim(sources, orders)


def _runs(order: Order) -> list[_Run]:
    runs: list[_Run] = []
    ids: list[int] = []
    for _, group in groupby(order.items, key=type):
        kinds: list[int] = []
        for item in group:
            if isinstance(item, memoryview):
                ids += item.tolist()
            else:
                kinds.append(item)
        if kinds:
            (first, last), *more = _at_once(kinds)
            runs += [_Run(ids, first, last), *(_Run([], *pair) for pair in more)]
            ids = []
    return [*runs, _Run(ids, _NOTHING, _NOTHING)] if ids else runs


def _at_once(kinds: list[int]) -> list[tuple[int, int]]:
    """Return the parts as they are copied: a middle behind its prefix is one slice of the document with it."""
    if kinds[-2:] == [_PREFIX, _MIDDLE]:
        return [*((kind, kind) for kind in kinds[:-2]), (_PREFIX, _MIDDLE)]
    return [(kind, kind) for kind in kinds]


def with_copies(ground: Ground, fim: PlannedFim, pad_frame: int, *, aligned: bool) -> Ground:
    """Transform the pieces of a round that the plan chose.

    Args:
        ground: of the round, with what the plan drew; rooms hold the pieces as they will be.
        fim: how.
        pad_frame: the frame of padding.
        aligned: how labels stand.

    Returns:
        the ground with the lengths that pieces then have, and with `copies`; FRAME and OFFSET still tell where the
        tokens of a piece lie. A piece that goes on fills a sequence, so none was chosen that does.
    """
    table = ground.table.copy()
    order, early = table[FIM] & ORDER_BITS, table[OFFSET] == 0
    left = np.ones(table.shape[1], np.bool_)
    masked = ground.trained is not None or any(own.middle_only for own in fim.sources.values())
    copies: list[_Copies] = []
    spans: list[NDArray[np.int64]] = []
    for (number, choice), runs in fim.orders.items():
        own = fim.sources[number]
        chosen = (table[SOURCE] == number) & (order == choice)
        for rows in (np.flatnonzero(chosen & ~early), np.flatnonzero(chosen & early)):
            if not len(rows):
                continue
            pieces = [table[column, rows] for column in (FIM, FRAME, OFFSET, LENGTH)]
            slices, last_part = _cut(pieces, own, runs, pad_frame)
            copies.append((rows, slices))
            left[rows] = False
            table[LENGTH, rows] += own.orders[choice - 1].added
            if masked:
                need = table[LENGTH, rows]
                spans.append(np.column_stack([rows, need - last_part if own.middle_only else np.ones_like(need), need]))
    rows = np.flatnonzero(left)
    frame, begin = table[FRAME, rows], table[OFFSET, rows]
    copies.append((rows, [(frame, begin, begin + table[LENGTH, rows], NO_ID)]))
    rows = np.flatnonzero(table[LENGTH] < table[ROOM])
    copies.append((rows, [(pad_frame, 0, table[ROOM, rows] - table[LENGTH, rows], NO_ID)]))
    trained = None
    if masked:
        before = _all_targets(table, aligned=aligned) if ground.trained is None else ground.trained.numbered()
        made = np.concatenate([*spans, np.empty((0, 3), np.int64)])
        made[:, 1:] -= aligned
        spans = [before[left[before[:, 0]]], made[made[:, 1] < made[:, 2]]]
        trained = attached(np.concatenate(spans), table.shape[1])
    return Ground(table, ground.first, trained, ground.fragments, _laid_out(copies, table.shape[1]))


def _cut(
    pieces: Sequence[NDArray[np.int64]], own: SourceFim, runs: list[_Run], pad_frame: int
) -> tuple[list[_Slice], NDArray[np.int64]]:
    """Return what pieces of one source and order are made of: slices, and tokens of each middle with its end.

    Args:
        pieces: the choice, frame, offset and length of each; either all at the beginning of their frame, or none.
        own: of the source.
        runs: of the order.
        pad_frame: the frame of padding.
    """
    word, frame, begin, length = pieces
    end = begin + length
    low = begin + own.start * ((word & BEGINNING) > 0)
    high = end - own.end * ((word & END) > 0)
    one, two = sorted_cuts(word.view(np.uint64), high - low).T + low
    parts = {_NOTHING: (high, high), _PREFIX: (low, one), _SUFFIX: (two, high), _MIDDLE: (one, two)}
    slices: list[_Slice] = [(frame, begin, low, NO_ID)] if own.start else []
    leads = begin[0] > 0  # else no token may stand before a part, which its id could take the place of
    for run in runs:
        first, last = parts[run.first][0], parts[run.last][1]
        alone, leading = (run.ids[:-1], run.ids[-1]) if run.ids and leads else (run.ids, NO_ID)
        slices += [(pad_frame, 0, 1, id_) for id_ in alone]
        if run.first != _NOTHING or leading != NO_ID:
            slices.append((frame, first - (leading != NO_ID), last, leading))
    if own.end:
        slices.append((frame, high, end, NO_ID))
    return slices, two - one + end - high


def _laid_out(copies: list[_Copies], segments: int) -> Attached:
    """Lay out the slices of segments; those of a segment stay in the order of `copies`."""
    counts = np.zeros(segments, np.int64)
    for rows, slices in copies:
        counts[rows] += len(slices)
    first = np.zeros(segments + 1, np.int64)
    counts.cumsum(out=first[1:])
    lines = np.empty((first[-1], 4), np.int64)
    behind = first[:-1].copy()
    for rows, slices in copies:
        place = behind[rows]
        for number, columns in enumerate(slices):
            for column, values in enumerate(columns):
                lines[place + number, column] = values
        behind[rows] = place + len(slices)
    return Attached(first, lines)


def _all_targets(table: NDArray[np.int64], *, aligned: bool) -> NDArray[np.int64]:
    """Return the positions of pieces that have a target: int64 [K, 3], each span behind its piece."""
    pieces = np.flatnonzero(table[SOURCE] >= 0)
    lead = 1 - aligned
    end = table[LENGTH, pieces] - aligned + aligned * table[GOES_ON, pieces]
    spans: NDArray[np.int64] = np.column_stack([pieces, np.full_like(end, lead), end])[lead < end]
    return spans


def counted(table: NDArray[np.int64], cuts: NDArray[np.int64], sources: Mapping[int, SourceFim]) -> NDArray[np.int64]:
    """Count what was done to the pieces of micro batches: int64 [micro batches, sources, counts of `FIM_COUNTS`].

    Args:
        table: of a ground.
        cuts: int64 [micro batches + 1], the segments of micro batch i are `cuts[i]` up to `cuts[i + 1]`.
        sources: by number, those that have fill-in-the-middle; rows stand in the order of their numbers.
    """
    others = max(sources) + 1  # sources behind those counted; dummy documents are of source -1
    width = 4 * (others + 2)
    choice = 4 * (np.minimum(table[SOURCE], others) + 1) + (table[FIM] & ORDER_BITS)
    sheets = len(cuts) - 1
    choice += (np.arange(sheets) * width).repeat(np.diff(cuts))
    done = np.bincount(choice, minlength=sheets * width).reshape(sheets, others + 2, 4)
    numbers = sorted(sources)
    counted_as = np.stack([_COUNTED_AS] * len(numbers))
    for own, number in zip(counted_as, numbers, strict=True):
        own[1:3, INSERTED] = [order.added for order in sources[number].orders]
    amounts = done.take(np.array(numbers) + 1, axis=1)
    counts: NDArray[np.int64] = np.matmul(amounts[:, :, None], counted_as)[:, :, 0]
    return counts
