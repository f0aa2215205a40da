"""The ids of a source against its vocabulary."""

from dataclasses import dataclass

import numpy as np

from shardtools.looking.decoder import Decoder
from shardtools.looking.token_counts import TokenCounts
from streampipe.errors import SourceError
from streampipe.shards import Manifest
from streampipe.storage import Store

MOST_FREQUENT = 20
EXAMPLES = 10


@dataclass(frozen=True)
class TokenUse:
    """How a vocabulary is used.

    Attributes:
        whole: whether all tokens were read, or a sample.
        read: tokens read.
        vocabulary: how many ids there are.
        never_seen: how many of them did not come.
        never_seen_examples: the first of them: (id, token).
        most_frequent: (id, token, share of all tokens).
        special: (token, how often) of every control token.
        histogram: (least, most, ids, share of all tokens): how many ids came so often.
        unknown: ids that came and are not in the vocabulary.
    """

    whole: bool
    read: int
    vocabulary: int
    never_seen: int
    never_seen_examples: list[tuple[int, str]]
    most_frequent: list[tuple[int, str, float]]
    special: dict[str, int]
    histogram: list[tuple[int, int, int, float]]
    unknown: list[int]


def token_use(store: Store, manifest: Manifest, tokens: TokenCounts) -> TokenUse:
    """Compare what was counted with the vocabulary; without the tokenizer's file ids have no names."""
    counts, read = tokens.counts, int(tokens.counts.sum())
    try:
        decoder: Decoder | None = Decoder.of(store, manifest)
    except (SourceError, ModuleNotFoundError):
        decoder = None
    known = np.arange(len(counts)) if decoder is None else np.array(sorted(decoder.vocabulary), np.int64)
    known = known[known < len(counts)]
    inside = np.zeros(len(counts), np.bool_)
    inside[known] = True
    unseen = known[counts[known] == 0]

    def name(number: int) -> str:
        return decoder.name(number) if decoder else f"id {number}"

    order = np.argsort(-counts, kind="stable")[:MOST_FREQUENT]
    return TokenUse(
        whole=tokens.whole,
        read=read,
        vocabulary=len(known),
        never_seen=len(unseen),
        never_seen_examples=[(number, name(number)) for number in unseen[:EXAMPLES].tolist()],
        most_frequent=[(i, name(i), round(int(counts[i]) / read, 6)) for i in order.tolist() if counts[i]],
        special={
            token: int(counts[number])
            for token, number in manifest.tokenizer.special_tokens.items()
            if number < len(counts)
        },
        histogram=_histogram(tokens, read),
        unknown=np.flatnonzero((counts > 0) & ~inside).tolist()[:EXAMPLES],
    )


def _histogram(tokens: TokenCounts, read: int) -> list[tuple[int, int, int, float]]:
    """Return how many ids came 1 to 9 times, 10 to 99, and so on."""
    counts, rows, least = tokens.counts, list[tuple[int, int, int, float]](), 1
    while least <= counts.max(initial=0):
        among = counts[(counts >= least) & (counts < 10 * least)]
        rows.append((least, 10 * least - 1, len(among), round(int(among.sum()) / read, 6)))
        least *= 10
    return rows
