"""Which pieces fill-in-the-middle takes, and the room they then need: known without their tokens.

The choice of a document is one word, keyed by (seed, "fim", source, epoch, shard, frame) and counted by its row in the
frame; each further choice of it is mixed from that word. So it depends on no order of reading, and every epoch has
choices of its own.

A piece with separators in it is split: each fragment between them has a choice of its own, mixed from the piece's word
and the fragment's number within the document.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampipe.plan.fragments import Fragments
from streampipe.plan.pieces import PackingConfig, Pieces, rounded_up
from streampipe.plan.round_plan import FrameTable
from streampipe.plan.separators import Separators
from streampipe.rng import coins, mixed_words, raw_words_of_each, sorted_cuts

# A choice is one uint64: its two lowest bits say what happens to the piece, the next two what of its document it holds,
# and all of it is the word that cuts are drawn from. 0 is a piece that is left alone.
FIRST_ORDER, SECOND_ORDER, TOO_LONG = 1, 2, 3
ORDER_BITS, HOLDS_BEGINNING, HOLDS_END, FLAG_BITS = 3, 4, 8, 15


@dataclass(frozen=True)
class FimPlan:
    """What the plan must know of a source's fill-in-the-middle.

    Attributes:
        rate: share of pieces that are transformed.
        spm_rate: share of these that take the second order (SPM) instead of the first (PSM).
        added: tokens that each order adds.
        slack: tokens that cutting at characters may add on top.
        min_length: pieces with less content are left alone.
        start, end: tokens at the beginning and at the end of each document that stay outside: 0 or 1.
        loss: `all`; `middle`; or `kept`, which trains as many positions as the piece has without fill-in-the-middle.
        fragment_rate: share of the fragments of split pieces that are transformed; None where none is split.
    """

    rate: float
    spm_rate: float
    added: tuple[int, int]
    slack: int = 0
    min_length: int = 1
    start: int = 0
    end: int = 0
    loss: str = "all"
    fragment_rate: float | None = None


@dataclass(frozen=True)
class Line:
    """The documents of a round, frame after frame, as pieces refer to them.

    Attributes:
        frames: the frames, O rows.
        documents: int64 [O], documents of each frame.
        lengths: int64 [D], tokens of each document.
        sources: names of the blend's sources.
        seed: of the run.
        separators: of the documents; None where no source is split.
    """

    frames: FrameTable
    documents: NDArray[np.int64]
    lengths: NDArray[np.int64]
    sources: Sequence[str]
    seed: int
    separators: Separators | None = None


def with_choices(
    pieces: Pieces, line: Line, plans: Sequence[FimPlan | None], seq_length: int, packing: PackingConfig
) -> Pieces:
    """Draw what happens to each piece, and give those that are transformed the room they need.

    A piece that with its sentinels no longer fits a sequence is left as it is, and marked as such; of a split one, the
    fragments from the first on that does not fit.

    Args:
        pieces: P of them, on the line.
        line: the documents.
        plans: of each source; None for one without.
        seq_length: the most a slot may be.
        packing: for the alignment of slots.

    Returns:
        the pieces with `fim`, `trained` and `fragments`, and slots that hold the transformed pieces.
    """
    first = np.cumsum(line.documents) - line.documents
    words = np.zeros(len(line.lengths), np.uint64)
    for number, plan in enumerate(plans):
        if plan is None or not plan.rate:
            continue
        own = line.frames.source == number
        frames = line.frames.take(own)
        places = list(zip(frames.epoch.tolist(), frames.shard.tolist(), frames.frame.tolist(), strict=True))
        drawn = raw_words_of_each(line.documents[own].tolist(), places, line.seed, "fim", line.sources[number])
        words[own.repeat(line.documents)] = drawn
    entry = first[pieces.occurrence] + pieces.document
    source = line.frames.source[pieces.occurrence]
    choice, trained = np.zeros(len(pieces), np.uint64), np.full(len(pieces), -1, np.int64)
    slot = pieces.slot.copy()
    word = words[entry]
    later = np.flatnonzero(pieces.start)  # pieces that draw on their own
    word[later] = mixed_words(word[later] ^ pieces.start[later].astype(np.uint64), 0)
    begins, ends = pieces.start == 0, pieces.start + pieces.length == line.lengths[entry]
    tables: list[NDArray[np.int64]] = []
    for number, plan in enumerate(plans):
        if plan is None:
            continue
        own = np.flatnonzero(source == number)
        own = own[coins(mixed_words(word[own], 1), plan.rate)]
        content = pieces.length[own] - plan.start * begins[own] - plan.end * ends[own]
        long_enough = content >= max(1, plan.min_length)
        own, content = own[long_enough], content[long_enough]
        if line.separators is not None and plan.fragment_rate is not None:
            lead, tail = plan.start * begins[own], plan.end * ends[own]
            hits = _Hits(own, entry[own], pieces.start[own], pieces.length[own], lead, tail, word[own], begins[own])
            split = _split(hits, plan, line.separators, seq_length)
            slot[split.rows], trained[split.rows] = rounded_up(split.room, packing), split.trained
            tables.append(split.table)
            whole = ~split.separated
            own, content = own[whole], content[whole]
        second = coins(mixed_words(word[own], 2), plan.spm_rate)
        need = pieces.length[own] + np.where(second, plan.added[1], plan.added[0])
        fits = need <= seq_length
        order = np.where(fits, np.where(second, SECOND_ORDER, FIRST_ORDER), TOO_LONG).astype(np.uint64)
        flags = order + begins[own] * np.uint64(HOLDS_BEGINNING) + ends[own] * np.uint64(HOLDS_END)
        choice[own] = word[own] & ~np.uint64(FLAG_BITS) | flags
        own, content, need = own[fits], content[fits], need[fits]
        slot[own] = rounded_up(np.minimum(need + plan.slack, seq_length), packing)
        if plan.loss == "all":
            trained[own] = need - 1
        elif plan.loss == "middle":
            cuts = sorted_cuts(choice[own], content)
            trained[own] = cuts[:, 1] - cuts[:, 0] + plan.end * ends[own]
    fragments = None if line.separators is None else _fragments(tables, len(pieces))
    return replace(pieces, slot=slot, fim=choice, trained=trained, fragments=fragments)


class _Hits(NamedTuple):
    """Pieces of a source that are hit: arrays of length H.

    Attributes:
        row: int64, which piece; entry: int64, its document.
        start, length: int64, its tokens in the document.
        lead, tail: int64, start and end tokens of the document that it holds.
        word: uint64; begins: bool, whether it is where its document begins.
    """

    row: NDArray[np.int64]
    entry: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    lead: NDArray[np.int64]
    tail: NDArray[np.int64]
    word: NDArray[np.uint64]
    begins: NDArray[np.bool_]


class _Split(NamedTuple):
    """What becomes of hit pieces that have separators.

    Attributes:
        separated: bool [H], which of the hit pieces these are.
        rows: int64 [R], those of which a fragment is transformed: which piece.
        room: int64 [R], what each needs; trained: int64 [R], -1 for as many as without.
        table: int64 [K, 4], piece, begin, end, choice of each fragment that is hit.
    """

    separated: NDArray[np.bool_]
    rows: NDArray[np.int64]
    room: NDArray[np.int64]
    trained: NDArray[np.int64]
    table: NDArray[np.int64]


def _split(hits: _Hits, plan: FimPlan, separators: Separators, seq_length: int) -> _Split:
    """Draw what happens to each fragment of the pieces that have separators."""
    separated, of, begin, end, number = _cut_at_separators(hits, separators)
    word = mixed_words(hits.word[of] ^ number.astype(np.uint64), 3)
    rate = plan.fragment_rate or 0.0
    taken = coins(mixed_words(word, 1), rate) & (end - begin >= max(1, plan.min_length))
    opens = (begin > hits.lead[of]) | hits.begins[of]
    of, begin, end, word, opens = of[taken], begin[taken], end[taken], word[taken], opens[taken]
    second = coins(mixed_words(word, 2), plan.spm_rate)
    added = np.where(second, plan.added[1], plan.added[0])
    total = np.cumsum(added)
    before = (total - added)[np.searchsorted(of, of)] if len(of) else total
    fits = hits.length[of] + total - before <= seq_length
    order = np.where(fits, np.where(second, SECOND_ORDER, FIRST_ORDER), TOO_LONG)
    choice = (word >> np.uint64(1)).astype(np.int64) & ~FLAG_BITS | order + opens * HOLDS_BEGINNING
    table = np.column_stack([hits.row[of], begin, end, choice])
    of, begin, end, added, choice = of[fits], begin[fits], end[fits], added[fits], choice[fits]
    made, more = _sums(of, np.ones_like(of), len(hits.row)), _sums(of, added, len(hits.row))
    done = made > 0
    need = hits.length + more
    room = np.minimum(need + made * plan.slack, seq_length)
    trained = np.full(len(need), -1, np.int64)
    if plan.loss == "all":
        trained = need - 1
    elif plan.loss == "middle":
        cuts = sorted_cuts(choice.astype(np.uint64), end - begin)
        # The first token of a piece is no target anyway.
        untrained = end - begin + added - (cuts[:, 1] - cuts[:, 0]) - (begin == 0)
        trained = need - 1 - _sums(of, untrained, len(need))
    return _Split(separated, hits.row[done], room[done], trained[done], table)


def _cut_at_separators(
    hits: _Hits, separators: Separators
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut hit pieces into what lies between separators: F fragments, some of them empty.

    Returns:
        which hit pieces have separators (bool [H]); of each fragment which of them it is of, where in the piece it
        begins and ends, and its number within the document (int64 [F] each).
    """
    first, last = hits.start + hits.lead, hits.start + hits.length - hits.tail
    low, high = separators.between(hits.entry, first, last)
    separated = high > low
    count = np.where(separated, high - low + 1, 0)
    of = np.repeat(np.arange(len(count)), count)
    inside = np.arange(len(of)) - (np.cumsum(count) - count)[of]
    behind = low[of] + inside  # the separator that ends it; the last fragment of a piece has none
    place = np.append(separators.place, 0)
    begin = np.where(inside == 0, first[of], place[behind - 1] + 1)
    end = np.where(behind == high[of], last[of], place[behind])
    start = hits.start[of]
    return separated, of, begin - start, end - start, behind - separators.first[hits.entry[of]]


def _sums(of: NDArray[np.int64], amounts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    # bincount sums in float64, exact below 2^53.
    return np.bincount(of, amounts, count).astype(np.int64)


def _fragments(tables: list[NDArray[np.int64]], pieces: int) -> Fragments:
    table = np.concatenate([np.empty((0, 4), np.int64), *tables])
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Fragments(np.searchsorted(table[:, 0], np.arange(pieces + 1)), table[:, 1], table[:, 2], table[:, 3])
