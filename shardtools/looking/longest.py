"""The longest documents of a source."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardtools.looking.documents import origin_of
from streampipe.shards import Source

LONGEST = 10


@dataclass(frozen=True)
class LongDocument:
    """One of the longest.

    Attributes:
        tokens: of all its members together.
        split: where it is.
        document: its number there, which `shardtools inspect --document` takes.
        origin: the file and row that it came from, "" if not known.
    """

    tokens: int
    split: str
    document: int
    origin: str


def longest(sources: Sequence[Source], most: int = LONGEST) -> list[LongDocument]:
    """Return the `most` longest documents of some splits, the longest first."""
    found: list[tuple[int, int, int]] = []
    for place, source in enumerate(sources):
        before = 0
        for shard, count in enumerate(source.shard_documents.tolist()):
            if source.shards[shard].longest > (found[-1][0] if len(found) == most else 0):
                lengths = source.load_index(shard).document_lengths
                rows = np.argsort(-lengths, kind="stable")[:most]
                candidates = ((int(lengths[row]), -place, -(before + int(row))) for row in rows)
                found = heapq.nlargest(most, [*found, *candidates])
            before += count
    return [
        LongDocument(tokens, sources[-place].split, -number, origin_of(sources[-place], -number))
        for tokens, place, number in found
    ]
