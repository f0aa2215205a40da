"""How much the shards of a source differ, and whether that is more than chance makes: then the order shows through."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardtools.looking.token_counts import Half, ShardTokens
from streampipe.shards import Source

Floats = NDArray[np.float64]

SIGMAS = 10
"""How far beyond chance a difference must be to be told of."""
LEAST_SHARE = 0.001
"""What part of all variation must lie between shards to be told of."""
LEAST_RATIO = 1.1
"""How much more the ids of two shards must differ than those of two halves of one."""
CURE = "documents of a kind stand together; build again with --shuffle global"


@dataclass(frozen=True)
class Range:
    """The least and the greatest value of shards, and which shards they are."""

    low: float
    high: float
    low_shard: str
    high_shard: str


@dataclass(frozen=True)
class Spread:
    """How much shards differ.

    Attributes:
        shards: how many there are.
        mean_length: tokens a document.
        bytes_per_token: as stored.
        token_distance: share of tokens that two shards do not have in common, on average; None if no ids were read.
        chance_distance: the same of two halves of one shard.
        warnings: where order shows through, in words.
    """

    shards: int
    mean_length: Range
    bytes_per_token: Range
    token_distance: float | None
    chance_distance: float | None
    warnings: list[str]


def spread(sources: Sequence[Source], tokens: Sequence[ShardTokens]) -> Spread | None:
    """Compare the shards of one split of a source; None if there is only one.

    Args:
        sources: the splits; the one with most shards is looked at.
        tokens: ids of shards, of all splits; may be empty.
    """
    source = max(sources, key=lambda each: len(each.shards))
    if len(source.shards) < 2:
        return None
    lengths, costs = _Groups(), _Groups()
    for shard in range(len(source.shards)):
        index = source.load_index(shard)
        lengths.add(np.log(index.document_lengths.astype(np.float64)))
        costs.add(index.compressed_bytes / np.maximum(index.tokens, 1))
    names = [entry.path for entry in source.shards]
    mean_length = _range(names, [entry.tokens / entry.documents for entry in source.shards])
    cost = _range(names, [entry.bytes / entry.tokens for entry in source.shards])
    warnings = []
    if lengths.differ():
        warnings.append(
            f"mean length goes from {mean_length.low:,.0f} tokens ({mean_length.low_shard}) to {mean_length.high:,.0f} "
            f"({mean_length.high_shard}), more than chance makes: {CURE}"
        )
    if costs.differ():
        warnings.append(
            f"bytes a token go from {cost.low:.2f} ({cost.low_shard}) to {cost.high:.2f} ({cost.high_shard}), "
            f"more than chance makes: {CURE}"
        )
    own = [shard for shard in tokens if shard.shard in set(names)]
    between, within, differ = _distances(own)
    if differ:
        warnings.append(
            f"two shards have {between:.1%} of their tokens not in common, two halves of one {within:.1%}: {CURE}"
        )
    return Spread(len(names), mean_length, cost, between, within, warnings)


def _range(names: Sequence[str], values: Sequence[float]) -> Range:
    low, high = int(np.argmin(values)), int(np.argmax(values))
    return Range(round(values[low], 4), round(values[high], 4), names[low], names[high])


class _Groups:
    """Analysis of variance: values in groups, of which only sums are kept."""

    def __init__(self) -> None:
        self._sums: list[tuple[int, float, float]] = []

    def add(self, values: Floats) -> None:
        """Add one group."""
        self._sums.append((len(values), float(values.sum()), float((values**2).sum())))

    def differ(self) -> bool:
        """Tell whether the means of groups differ by more than chance makes, and by enough to matter."""
        counts, sums, squares = np.array(self._sums).T
        groups, total = len(counts), counts.sum()
        between = float((sums**2 / counts).sum() - sums.sum() ** 2 / total)
        within = float(squares.sum() - (sums**2 / counts).sum())
        freedom = total - groups
        if freedom < 1 or between <= LEAST_SHARE * (between + within):
            return False
        ratio = (between / (groups - 1)) / max(within / freedom, 1e-12)
        # By chance the ratio is about 1, with a variance of 2/(groups - 1) + 2/freedom.
        return bool(ratio > 1 + SIGMAS * (2 / (groups - 1) + 2 / freedom) ** 0.5)


def _distances(shards: Sequence[ShardTokens]) -> tuple[float | None, float | None, bool]:
    """Return the distance of the ids of two shards, that of two halves of one, and whether the first is greater.

    Both compare a half with a half, so both have the same noise: alike shards give alike distances.
    """
    held = [shard for shard in shards if all(len(half.ids) for half in shard.halves)]
    if len(held) < 2:
        return None, None, False
    within = np.array([_distance(*shard.halves) for shard in held])
    between = np.array(
        [
            np.mean([_distance(shard.halves[0], held[(i + step) % len(held)].halves[1]) for step in _steps(len(held))])
            for i, shard in enumerate(held)
        ]
    )
    excess = between - within
    error = excess.std(ddof=1) / len(held) ** 0.5
    ratio = between.mean() / max(within.mean(), 1e-9)
    sure = excess.mean() > 4 * error if len(held) >= 4 else ratio > 2 * LEAST_RATIO
    return round(float(between.mean()), 4), round(float(within.mean()), 4), bool(ratio > LEAST_RATIO and sure)


def _steps(count: int) -> list[int]:
    return sorted({1, max(1, count // 3), max(1, count // 2)})


def _distance(one: Half, other: Half) -> float:
    """Return the share of tokens that two halves do not have in common: total variation, 0 to 1."""
    ids = np.union1d(one.ids, other.ids)
    shares = np.zeros((2, len(ids)))
    for row, half in enumerate((one, other)):
        shares[row, np.searchsorted(ids, half.ids)] = half.counts / half.counts.sum()
    return float(np.abs(shares[0] - shares[1]).sum() / 2)
