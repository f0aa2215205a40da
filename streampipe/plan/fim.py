"""Which pieces fill-in-the-middle takes, and the room they then need: known without their tokens.

The choice of a document is one word, keyed by (seed, "fim", source, epoch, shard, frame) and counted by its row in the
frame; each further choice of it is mixed from that word. So it depends on no order of reading, and every epoch has
choices of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streampipe.plan.pieces import PackingConfig, Pieces, rounded_up
from streampipe.plan.round_plan import FrameTable
from streampipe.rng import coins, mixed_words, raw_words, sorted_cuts

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
    """

    rate: float
    spm_rate: float
    added: tuple[int, int]
    slack: int = 0
    min_length: int = 1
    start: int = 0
    end: int = 0
    loss: str = "all"


@dataclass(frozen=True)
class Line:
    """The documents of a round, frame after frame, as pieces refer to them.

    Attributes:
        frames: the frames, O rows.
        documents: int64 [O], documents of each frame.
        lengths: int64 [D], tokens of each document.
        sources: names of the blend's sources.
        seed: of the run.
    """

    frames: FrameTable
    documents: NDArray[np.int64]
    lengths: NDArray[np.int64]
    sources: Sequence[str]
    seed: int


def with_choices(
    pieces: Pieces, line: Line, plans: Sequence[FimPlan | None], seq_length: int, packing: PackingConfig
) -> Pieces:
    """Draw what happens to each piece, and give those that are transformed the room they need.

    A piece that with its sentinels no longer fits a sequence is left as it is, and marked as such.

    Args:
        pieces: P of them, on the line.
        line: the documents.
        plans: of each source; None for one without.
        seq_length: the most a slot may be.
        packing: for the alignment of slots.

    Returns:
        the pieces with `fim` and `trained`, and slots that hold the transformed pieces.
    """
    first = np.cumsum(line.documents) - line.documents
    words = np.zeros(len(line.lengths), np.uint64)
    for row in [number for number, plan in enumerate(plans) if plan is not None and plan.rate > 0]:
        for frame in np.flatnonzero(line.frames.source == row).tolist():
            place = (int(getattr(line.frames, name)[frame]) for name in ("epoch", "shard", "frame"))
            count = int(line.documents[frame])
            drawn = raw_words(count, line.seed, "fim", line.sources[row], *place)
            words[first[frame] : first[frame] + count] = drawn
    entry = first[pieces.occurrence] + pieces.document
    source = line.frames.source[pieces.occurrence]
    choice, trained = np.zeros(len(pieces), np.uint64), np.full(len(pieces), -1, np.int64)
    slot = pieces.slot.copy()
    # Later pieces of a document draw on their own.
    word = np.where(pieces.start > 0, mixed_words(words[entry] ^ pieces.start.astype(np.uint64), 0), words[entry])
    begins, ends = pieces.start == 0, pieces.start + pieces.length == line.lengths[entry]
    for number, plan in enumerate(plans):
        if plan is None:
            continue
        own = np.flatnonzero(source == number)
        content = pieces.length[own] - plan.start * begins[own] - plan.end * ends[own]
        hit = coins(mixed_words(word[own], 1), plan.rate) & (content >= max(1, plan.min_length))
        own, content = own[hit], content[hit]
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
    return replace(pieces, slot=slot, fim=choice, trained=trained)
