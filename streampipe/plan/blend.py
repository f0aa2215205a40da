"""Where each source's axis stands at each round: closed-form, exact, and the same for every rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from streampipe.errors import ConfigError


@dataclass(frozen=True)
class Share:
    """What the blend knows of a source.

    Attributes:
        name: the source's name.
        weight: its share of tokens, on any positive scale; exact.
        epoch_tokens: tokens of one pass over it.
        epochs: how many passes it may give, or None for as many as it takes.
    """

    name: str
    weight: Fraction
    epoch_tokens: int
    epochs: int | None = None

    @property
    def limit(self) -> int | None:
        """The axis position at which the source is spent, or None."""
        return None if self.epochs is None else self.epochs * self.epoch_tokens


@dataclass(frozen=True)
class Segment:
    """A stretch of rounds with one set of weights.

    Attributes:
        first_round: the round it begins with.
        weights: per source, normalised to a sum of 1; 0 for a source that is spent.
        offsets: per source, the axis position at which the segment found it.
    """

    first_round: int
    weights: tuple[Fraction, ...]
    offsets: tuple[int, ...]


class Blend:
    """The axis position of every source at every round border.

    Round `r` takes from source `s` the frames that start within `[position(s, r), position(s, r + 1))`. Inside a
    segment the position is `offset + floor((r - first_round) * round_tokens * weight)`, one function of the round
    number, so that a round's end is the next one's start to the token, at 10^13 tokens too. When a source reaches its
    `epochs` limit, the others share its weight from the next round on.
    """

    def __init__(self, shares: Sequence[Share], round_tokens: Fraction) -> None:
        self.shares = tuple(shares)
        self.round_tokens = round_tokens
        self.segments, self.rounds = _segments(self.shares, round_tokens)

    def positions(self, round_: int) -> tuple[int, ...]:
        """Return the axis position of every source at the start of a round."""
        # Past the end of a finite run every source stands at its limit.
        if self.rounds is not None and round_ >= self.rounds:
            return tuple(share.limit or 0 for share in self.shares)
        segment = next(s for s in reversed(self.segments) if s.first_round <= round_)
        return _positions(self.shares, segment, round_, self.round_tokens)


def _positions(shares: Sequence[Share], segment: Segment, round_: int, round_tokens: Fraction) -> tuple[int, ...]:
    passed = (round_ - segment.first_round) * round_tokens
    return tuple(
        offset + floor(passed * weight) if share.limit is None else min(share.limit, offset + floor(passed * weight))
        for share, weight, offset in zip(shares, segment.weights, segment.offsets, strict=True)
    )


def _segments(shares: Sequence[Share], round_tokens: Fraction) -> tuple[tuple[Segment, ...], int | None]:
    """Return the segments, and the number of rounds of a finite run (None if endless)."""
    segments: list[Segment] = []
    first_round, offsets = 0, tuple(0 for _ in shares)
    while True:
        alive = [share.limit is None or offset < share.limit for share, offset in zip(shares, offsets, strict=True)]
        total = sum((s.weight for s, lives in zip(shares, alive, strict=True) if lives), Fraction(0))
        if not total:
            return tuple(segments), first_round
        weights = tuple(s.weight / total if lives else Fraction(0) for s, lives in zip(shares, alive, strict=True))
        segment = Segment(first_round, weights, offsets)
        segments.append(segment)
        # The first round whose end reaches a limit: offset + floor(k * R * w) >= limit  <=>  k >= (limit - offset) / (R
        # * w).
        spans = [
            ceil(Fraction(share.limit - offset) / (round_tokens * weight))
            for share, offset, weight in zip(shares, offsets, weights, strict=True)
            if share.limit is not None and weight
        ]
        if not spans:
            return tuple(segments), None
        first_round += min(spans)
        offsets = _positions(shares, segment, first_round, round_tokens)


def resolve_round_tokens(shares: Sequence[Share], windows: int, window_tokens: int, seq_length: int) -> Fraction:
    """Return the token budget of a round.

    It is `windows * window_tokens`; where the sources share epochs (one source, or weights that follow sizes) the
    nearest whole fraction of a pass, so that epochs end with a round, or a whole multiple of a pass if a pass gives
    fewer than 8 sequences a window.
    """
    budget = windows * window_tokens
    if not share_epochs(shares):
        return Fraction(budget)
    one_pass = sum(share.epoch_tokens for share in shares)
    least = min(budget, windows * 8 * seq_length)
    if one_pass < least:
        return Fraction(one_pass * -(-least // one_pass))
    return Fraction(one_pass, max(1, (2 * one_pass + budget) // (2 * budget)))


def share_epochs(shares: Sequence[Share]) -> bool:
    """Return whether all sources finish their passes together."""
    return len({share.weight / share.epoch_tokens for share in shares}) == 1


def weight_fraction(weight: float | int | str, where: str) -> Fraction:
    """Return a weight as an exact fraction of what was written: 0.7 is 7/10.

    Raises:
        ConfigError: for a weight that is not a finite number of at least 0.
    """
    try:
        value = Fraction(str(weight))
    except (ValueError, ZeroDivisionError):
        value = Fraction(-1)
    if value < 0:
        raise ConfigError(
            f"{where}: a weight must be a finite number of at least 0, but got {weight!r}; give a share of tokens on "
            "any scale"
        )
    return value
