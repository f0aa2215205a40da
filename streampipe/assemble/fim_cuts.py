"""Where a text is cut into prefix, suffix and middle."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

from streampipe.rng import sorted_cut

# Pairs of cuts that are tried before a text is cut at token borders.
DRAWS = 8
# Prefix, suffix and middle, each as stretches of ids of the stored format, one after the other.
Parts = tuple[tuple[memoryview, ...], tuple[memoryview, ...], tuple[memoryview, ...]]


class Text(NamedTuple):
    """A piece without its start and end tokens.

    Attributes:
        ids: as stored.
        beginning: whether it is where its document begins.
        word: what cuts are drawn from.
    """

    ids: memoryview
    beginning: bool
    word: int


@dataclass
class Counts:
    """What was done to a source's pieces.

    Attributes:
        pieces: all of them.
        transformed: those that now have parts; split: those of them that were split at separators.
        fragments: of the split ones, those that now have parts.
        spm: texts (pieces that were not split, and fragments) in the second order.
        too_long: hit, but left as they are since their sentinels would not fit: pieces, or fragments of split ones.
        exempt: hit, but left as they are since they begin with `no_prefix`.
        redraws: draws of cuts that were thrown away, since the result had no room.
        fallbacks: pieces cut at token borders, after all draws or since their text is not whole.
        whole: pieces whose text was encoded anew from beginning to end.
        inserted: tokens that pieces have more than before: sentinels, and what cuts inside tokens add.
    """

    pieces: int = 0
    transformed: int = 0
    split: int = 0
    fragments: int = 0
    spm: int = 0
    too_long: int = 0
    exempt: int = 0
    redraws: int = 0
    fallbacks: int = 0
    whole: int = 0
    inserted: int = 0


FIM_COUNTS = tuple(field.name for field in fields(Counts))  # the columns of `batch["fim_counts"]`
INSERTED = FIM_COUNTS.index("inserted")


def fim_rates(amounts: Sequence[int]) -> dict[str, float]:
    """Turn what was counted, in the order of `FIM_COUNTS`, into what is told of it."""
    counts = dict(zip(FIM_COUNTS, amounts, strict=True))
    rates = {
        "rate": counts["transformed"] / max(1, counts["pieces"]),
        "spm_rate": counts["spm"] / max(1, counts["transformed"] - counts["split"] + counts["fragments"]),
    }
    told = ("fragments", "fallbacks", "redraws", "whole", "too_long", "exempt", "inserted")
    return rates | {name: counts[name] for name in told}


class Cutter(Protocol):
    """Chooses the cuts of texts."""

    def parts(self, text: Text, room: int, counts: Counts) -> Parts | None:
        """Return the parts of a text, of at most `room` tokens together; None to leave the text alone."""


class TokenCutter:
    """Cuts between tokens as they are stored."""

    def parts(self, text: Text, room: int, counts: Counts) -> Parts:
        """Return the parts."""
        return at_tokens(text)


def at_tokens(text: Text) -> Parts:
    """Cut a text at the token borders that were drawn."""
    ids = text.ids
    first, last = sorted_cut(text.word, len(ids))
    return (ids[:first],), (ids[last:],), (ids[first:last],)
