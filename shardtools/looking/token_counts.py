"""Which ids a source holds, how often, and in which shard."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.shards import Source

Int64 = NDArray[np.int64]

SAMPLE_SHARDS = 64
SAMPLE_FRAMES = 4
"""A sample reads so many frames of so many shards, evenly spaced."""
READ_FRAMES = 8


@dataclass(frozen=True, eq=False)
class Half:
    """The ids of every second document that was read of a shard: distinct ids, ascending, and how often each came."""

    ids: Int64
    counts: Int64


@dataclass(frozen=True, eq=False)
class ShardTokens:
    """What was read of one shard: its name, and its documents in two halves, those of even and of odd rows."""

    shard: str
    halves: tuple[Half, Half]


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """How often ids come.

    Attributes:
        counts: int64 [largest id + 1], over all that was read.
        shards: the same by shard.
        whole: whether everything was read.
    """

    counts: Int64
    shards: list[ShardTokens]
    whole: bool


def count_tokens(sources: Sequence[Source], *, whole: bool) -> TokenCounts:
    """Count the ids of some splits of a source.

    Args:
        sources: the splits.
        whole: whether to read everything, or a sample.

    Raises:
        SourceError: if a shard is damaged.
    """
    places = [(source, shard) for source in sources for shard in range(len(source.shards))]
    read = places if whole else [places[i] for i in evenly(len(places), SAMPLE_SHARDS)]
    complete = len(read) == len(places)
    total = np.zeros(sources[0].tokenizer.max_id + 1, np.int64)
    shards: list[ShardTokens] = []
    for source, shard in read:
        count = len(source.index(shard).offset)
        frames = evenly(count, count if whole else SAMPLE_FRAMES)
        complete = complete and len(frames) == count
        halves = [np.zeros_like(total), np.zeros_like(total)]
        for even_and_odd in _frames(source, shard, frames):
            for half, ids in enumerate(even_and_odd):
                halves[half] += np.bincount(ids, minlength=len(total))[: len(total)]
        total += halves[0] + halves[1]
        shards.append(ShardTokens(source.shards[shard].path, (_half(halves[0]), _half(halves[1]))))
    return TokenCounts(total, shards, complete)


def evenly(count: int, most: int) -> list[int]:
    """Return `most` of `count` places, or all of them, evenly spaced."""
    return list(range(count)) if count <= most else [(2 * i + 1) * count // (2 * most) for i in range(most)]


def _half(counts: Int64) -> Half:
    ids = np.flatnonzero(counts)
    return Half(ids, counts[ids])


def _frames(source: Source, shard: int, frames: Sequence[int]) -> Iterator[tuple[Int64, Int64]]:
    """Yield the ids of the documents of each frame in two halves, those of even and of odd rows, by the fast path."""
    index, dtype, members = source.index(shard), source.token_dtype, source.members
    for group in range(0, len(frames), READ_FRAMES):
        wanted = frames[group : group + READ_FRAMES]
        for frame, raw in zip(wanted, source.read_frames([(shard, f) for f in wanted]), strict=True):
            halves: tuple[list[NDArray[Any]], list[NDArray[Any]]] = ([], [])
            first, stop = (index.first_document[frame : frame + 2] * members).tolist()
            for i in range(first, stop):
                ids = np.frombuffer(raw, dtype, int(index.lengths[i]), int(index.payload_offsets[i]))
                halves[i // members % 2].append(ids)
            even, odd = (np.concatenate([np.empty(0, dtype), *half]).astype(np.int64) for half in halves)
            yield even, odd
