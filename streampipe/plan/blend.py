"""Where each source's axis stands at each round: closed-form, exact, and the same for every rank."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Literal

from streampipe.errors import ConfigError

OnExhausted = Literal["renormalise", "stop", "repeat"]


@dataclass(frozen=True)
class Share:
    """What the blend knows of a source.

    Attributes:
        name: the source's name.
        limit: the axis position at which it is spent, or None for never.
        stops: whether the run ends with it, rather than the others taking over its weight.
    """

    name: str
    limit: int | None = None
    stops: bool = False


@dataclass(frozen=True)
class BlendPhase:
    """A stretch of a run with one set of weights.

    Attributes:
        start: tokens taken before it; it begins at the round border nearest to that.
        weights: per source, on any scale; 0 for one that takes no part.
        round_tokens: the token budget of its rounds.
    """

    start: int
    weights: tuple[Fraction, ...]
    round_tokens: Fraction


@dataclass(frozen=True)
class Segment:
    """A stretch of rounds of one phase with the same sources left.

    Attributes:
        first_round: the round it begins with.
        phase: number of the phase.
        round_tokens: of its rounds.
        weights: per source, normalised to a sum of 1; 0 for a source that is spent or takes no part.
        offsets: per source, the axis position at which the segment found it.
    """

    first_round: int
    phase: int
    round_tokens: Fraction
    weights: tuple[Fraction, ...]
    offsets: tuple[int, ...]


class Blend:
    """The axis position of every source at every round border.

    Round `r` takes from source `s` the frames that start within `[position(s, r), position(s, r + 1))`. Inside a
    segment the position is `offset + floor((r - first_round) * round_tokens * weight)`, one function of the round
    number, so that a round's end is the next one's start to the token, at 10^13 tokens too. A segment ends where a
    phase begins, or where a source reaches its limit: then the others share its weight from the next round on.

    Args:
        shares: the sources.
        phases: at least one; the first begins at 0.
        origin: where to go on from, instead of the beginning: a segment of the same run, with its phase.
    """

    def __init__(self, shares: Sequence[Share], phases: Sequence[BlendPhase], origin: Segment | None = None) -> None:
        self.shares = tuple(shares)
        self.phases = tuple(phases)
        self.segments, self.rounds = self._segments(origin)
        self._firsts = [segment.first_round for segment in self.segments]

    def segment(self, round_: int) -> Segment:
        """Return the segment that a round belongs to; past the end of a finite run the last one."""
        return self.segments[max(0, bisect_right(self._firsts, round_) - 1)]

    def positions(self, round_: int) -> tuple[int, ...]:
        """Return the axis position of every source at the start of a round."""
        return self._positions(self.segment(round_), min(round_, self.rounds) if self.rounds is not None else round_)

    def _positions(self, segment: Segment, round_: int) -> tuple[int, ...]:
        passed = (round_ - segment.first_round) * segment.round_tokens
        return tuple(
            offset + floor(passed * weight)
            if share.limit is None
            else min(share.limit, offset + floor(passed * weight))
            for share, weight, offset in zip(self.shares, segment.weights, segment.offsets, strict=True)
        )

    def _segments(self, origin: Segment | None) -> tuple[tuple[Segment, ...], int | None]:
        """Return the segments, and the number of rounds of a finite run (None if endless)."""
        segments: list[Segment] = []
        first_round, phase, offsets = 0, 0, tuple(0 for _ in self.shares)
        if origin is not None:
            first_round, phase, offsets = origin.first_round, origin.phase, origin.offsets
        round_tokens = origin.round_tokens if origin is not None else self.phases[0].round_tokens
        while True:
            alive = self._alive(phase, offsets)
            total = sum(alive, Fraction(0))
            if not total:
                if phase + 1 == len(self.phases):
                    return tuple(segments) or (Segment(first_round, phase, round_tokens, alive, offsets),), first_round
                phase, round_tokens = phase + 1, self.phases[phase + 1].round_tokens
                continue
            weights = tuple(weight / total for weight in alive)
            segment = Segment(first_round, phase, round_tokens, weights, offsets)
            to_limit = self._rounds_to_limit(segment)
            to_phase = self._rounds_to_phase(segment)
            if to_phase == 0:
                phase, round_tokens = phase + 1, self.phases[phase + 1].round_tokens
                continue
            segments.append(segment)
            ends = [rounds for rounds in (to_limit, to_phase) if rounds is not None]
            if not ends:
                return tuple(segments), None
            first_round += min(ends)
            offsets = self._positions(segment, first_round)
            if any(
                share.stops and weight and offset == share.limit
                for share, weight, offset in zip(self.shares, weights, offsets, strict=True)
            ):
                return tuple(segments), first_round
            if to_phase == min(ends):
                phase, round_tokens = phase + 1, self.phases[phase + 1].round_tokens

    def _alive(self, phase: int, offsets: tuple[int, ...]) -> tuple[Fraction, ...]:
        return tuple(
            weight if share.limit is None or offset < share.limit else Fraction(0)
            for share, weight, offset in zip(self.shares, self.phases[phase].weights, offsets, strict=True)
        )

    def _rounds_to_limit(self, segment: Segment) -> int | None:
        # The first round whose end reaches a limit: offset + floor(k·R·w) >= limit  <=>  k >= (limit - offset) / (R·w).
        spans = [
            ceil(Fraction(share.limit - offset) / (segment.round_tokens * weight))
            for share, offset, weight in zip(self.shares, segment.offsets, segment.weights, strict=True)
            if share.limit is not None and weight
        ]
        return min(spans, default=None)

    def _rounds_to_phase(self, segment: Segment) -> int | None:
        """Return how many rounds the segment has before the border nearest to the next phase's start."""
        if segment.phase + 1 == len(self.phases):
            return None
        left = self.phases[segment.phase + 1].start - sum(segment.offsets)
        return max(0, floor(Fraction(left) / segment.round_tokens + Fraction(1, 2)))


def resolve_round_tokens(
    weights: Sequence[Fraction], epoch_tokens: Sequence[int], windows: int, window_tokens: int, seq_length: int
) -> Fraction:
    """Return the token budget of a round.

    It is `windows * window_tokens`; where the sources share epochs (one source, or weights that follow sizes) the
    nearest whole fraction of a pass, so that epochs end with a round, or a whole multiple of a pass if a pass gives
    fewer than 8 sequences a window.
    """
    budget = windows * window_tokens
    taking_part = [(weight, tokens) for weight, tokens in zip(weights, epoch_tokens, strict=True) if weight]
    if len({weight / tokens for weight, tokens in taking_part}) != 1:
        return Fraction(budget)
    one_pass = sum(tokens for _, tokens in taking_part)
    least = min(budget, windows * 8 * seq_length)
    if one_pass < least:
        return Fraction(one_pass * -(-least // one_pass))
    return Fraction(one_pass, max(1, (2 * one_pass + budget) // (2 * budget)))


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
            f"any scale"
        )
    return value
