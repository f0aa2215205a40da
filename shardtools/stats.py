"""What a source holds: from its manifest and indexes, and of the ids from a sample of its shards, or all."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardtools.looking.longest import LongDocument, longest
from shardtools.looking.spread import Spread, spread
from shardtools.looking.token_counts import count_tokens
from shardtools.looking.vocabulary import TokenUse, token_use
from streampipe.errors import ConfigError
from streampipe.plan.packing import best_fit
from streampipe.shards import Source, length_histogram, read_manifest
from streampipe.storage import open_store

FORECAST_DOCUMENTS = 250_000
"""A forecast packs so many documents at most: evenly spaced quantiles of all lengths."""

ReadTokens = Literal["sample", "all", "none"]


@dataclass(frozen=True)
class LengthSummary:
    """Tokens of documents."""

    min: int
    mean: float
    median: int
    p99: int
    max: int


@dataclass(frozen=True)
class PaddingForecast:
    """How documents fill sequences of one length.

    Attributes:
        seq_length: tokens a sequence.
        best_fit: share of padding when documents are packed, longer texts split, longer ones of other kinds left out.
        none: share of padding with one document a sequence.
        split_documents: share of documents longer than a sequence.
    """

    seq_length: int
    best_fit: float
    none: float
    split_documents: float


@dataclass(frozen=True)
class SourceStats:
    """What a source holds.

    Attributes:
        url: the folder.
        splits: which ones are counted.
        kind, token_dtype, compression: as stored.
        documents, tokens, shards, frames: counts.
        loss_tokens: those that are trained; `loss_share` of all.
        bytes: of shards; `index_bytes` of indexes.
        bytes_per_token: of shards and indexes, as stored.
        lengths: of documents.
        histogram: (bound, documents) with bound / 2 < length <= bound.
        padding: a forecast for each sequence length.
        skipped: rows that the build left out, by reason.
        longest: the longest documents.
        use: how the vocabulary is used, if tokens were read.
        spread: how much shards differ, if there are several.
    """

    url: str
    splits: list[str]
    kind: str
    token_dtype: str
    compression: str
    documents: int
    tokens: int
    loss_tokens: int
    loss_share: float
    shards: int
    frames: int
    bytes: int
    index_bytes: int
    bytes_per_token: float
    lengths: LengthSummary
    histogram: list[tuple[int, int]]
    padding: list[PaddingForecast]
    skipped: dict[str, int]
    longest: list[LongDocument]
    use: TokenUse | None
    spread: Spread | None

    def as_json(self) -> dict[str, Any]:
        """Return the statistics as plain data."""
        return asdict(self)


def measure(
    url: str,
    seq_lengths: Sequence[int] = (2048, 4096, 8192, 32768),
    split: str | None = None,
    storage: Mapping[str, Any] | None = None,
    read: ReadTokens = "sample",
) -> SourceStats:
    """Read the manifest and all indexes of a source, and some of its shards or all.

    Args:
        url: the folder.
        seq_lengths: to forecast the padding for.
        split: only this one; None for all.
        storage: options of the filesystem.
        read: which tokens to read.

    Raises:
        ConfigError: if there is no such split.
        SourceError: if the manifest or an index is damaged.
    """
    store = open_store(url, storage)
    manifest = read_manifest(store)
    if split is not None and split not in manifest.splits:
        raise ConfigError(f"{url}: there is no split {split!r}; it has {', '.join(sorted(manifest.splits))}")
    splits = sorted(manifest.splits) if split is None else [split]
    sources = [Source(name, store, manifest, name) for name in splits]
    lengths, counts = _length_counts(sources)
    entries = [entry for source in sources for entry in source.shards]
    tokens = sum(entry.tokens for entry in entries)
    stored = sum(entry.bytes for entry in entries)
    index_bytes = sum(entry.index_bytes for entry in entries)
    loss_tokens = sum(entry.loss_tokens for entry in entries)
    sample = quantiles(lengths, counts, FORECAST_DOCUMENTS)
    found = None if read == "none" else count_tokens(sources, whole=read == "all")
    return SourceStats(
        url=store.url,
        splits=splits,
        kind=manifest.kind,
        token_dtype=manifest.token_dtype,
        compression=manifest.compression,
        documents=sum(entry.documents for entry in entries),
        tokens=tokens,
        loss_tokens=loss_tokens,
        loss_share=round(loss_tokens / tokens, 6),
        shards=len(entries),
        frames=sum(entry.frames for entry in entries),
        bytes=stored,
        index_bytes=index_bytes,
        bytes_per_token=round((stored + index_bytes) / tokens, 4),
        lengths=_summary(lengths, counts),
        histogram=_histogram(lengths, counts),
        padding=[
            forecast(sample, seq_length, split=manifest.kind == "text") for seq_length in dict.fromkeys(seq_lengths)
        ],
        skipped=dict(manifest.counts),
        longest=longest(sources),
        use=token_use(store, manifest, found) if found else None,
        spread=spread(sources, found.shards if found else []),
    )


def _length_counts(sources: Sequence[Source]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct lengths, ascending, and how many documents have each: int64 [K] both."""
    found: dict[int, int] = {}
    for source in sources:
        for shard in range(len(source.shards)):
            values, counts = np.unique(source.load_index(shard).document_lengths, return_counts=True)
            for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                found[value] = found.get(value, 0) + count
    lengths = np.array(sorted(found), np.int64)
    return lengths, np.array([found[length] for length in lengths.tolist()], np.int64)


def _summary(lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> LengthSummary:
    before = np.cumsum(counts)
    total = int(before[-1])

    def at(share: float) -> int:
        return int(lengths[np.searchsorted(before, int(share * (total - 1)), side="right")])

    mean = float((lengths * counts).sum() / total)
    return LengthSummary(int(lengths[0]), round(mean, 2), at(0.5), at(0.99), int(lengths[-1]))


def _histogram(lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> list[tuple[int, int]]:
    bounds: dict[int, int] = {}
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        bound = length_histogram([length])[0][0]
        bounds[bound] = bounds.get(bound, 0) + count
    return sorted(bounds.items())


def quantiles(lengths: NDArray[np.int64], counts: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return up to `limit` documents' lengths that stand for all: every one, or evenly spaced quantiles."""
    total = int(counts.sum())
    if total <= limit:
        return np.repeat(lengths, counts)
    places = (2 * np.arange(limit, dtype=np.int64) + 1) * total // (2 * limit)
    chosen: NDArray[np.int64] = lengths[np.searchsorted(np.cumsum(counts), places, side="right")]
    return chosen


def forecast(lengths: NDArray[np.int64], seq_length: int, *, split: bool = True) -> PaddingForecast:
    """Return how documents of these lengths (int64 [D], at least one) fill sequences."""
    sequences = -(-lengths // seq_length)
    room = int(sequences.sum()) * seq_length
    fitting = lengths if split else lengths[lengths <= seq_length]
    return PaddingForecast(
        seq_length=seq_length,
        best_fit=round(padding_forecast(fitting, seq_length), 6),
        none=round(1 - int(lengths.sum()) / room, 6),
        split_documents=round(float((lengths > seq_length).mean()), 6),
    )


def padding_forecast(lengths: NDArray[np.int64], seq_length: int) -> float:
    """Return the share of padding of the planner's best-fit packing, documents longer than a sequence split.

    Args:
        lengths: tokens of each document, int64 [D], each at least 1.
        seq_length: tokens a sequence.
    """
    rest = lengths % seq_length
    _, used = best_fit(rest[rest > 0], seq_length, None)
    sequences = used + int((lengths // seq_length).sum())
    return 1 - int(lengths.sum()) / (sequences * seq_length) if sequences else 0.0
