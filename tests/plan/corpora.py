"""Corpora of lengths alone: what the plan sees of a source."""

from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st

from streampipe.plan.blend import Blend, BlendPhase, Share, resolve_round_tokens
from streampipe.plan.epoch_order import Era, SourceAxis
from streampipe.plan.pieces import PackingConfig
from streampipe.plan.planner import Layout, Planner
from streampipe.plan.round_plan import RoundPlan


class Corpus:
    """A source given as shards of frames of document lengths."""

    def __init__(self, shards: Sequence[Sequence[Sequence[int]]]) -> None:
        self.shards = shards
        self.shard_tokens = np.array([sum(map(sum, frames)) for frames in shards], np.int64)

    def index(self, shard: int) -> SimpleNamespace:
        frames = self.shards[shard]
        return SimpleNamespace(
            tokens=np.array([sum(lengths) for lengths in frames], np.int64),
            first_document=np.cumsum([0, *map(len, frames)]),
            lengths=np.array([n for lengths in frames for n in lengths], np.int32),
        )

    @property
    def largest_frame(self) -> int:
        return max(sum(lengths) for frames in self.shards for lengths in frames)


def corpora(longest: int = 60) -> st.SearchStrategy[Corpus]:
    frames = st.lists(st.integers(1, longest), min_size=1, max_size=12)
    shards = st.lists(st.lists(frames, min_size=1, max_size=5), min_size=1, max_size=6)
    return shards.map(Corpus)


def lognormal_corpus(seed: int, shards: int, documents: int, mean: float = 1000.0, sigma: float = 1.2) -> Corpus:
    """A corpus as large as a real one, in frames of about 65,536 tokens."""
    generator = np.random.Generator(np.random.Philox(seed))
    made = []
    for _ in range(shards):
        lengths = np.maximum(1, np.exp(generator.normal(np.log(mean) - sigma**2 / 2, sigma, documents))).astype(int)
        frames, frame, tokens = [], [], 0
        for length in lengths.tolist():
            frame.append(length)
            tokens += length
            if tokens >= 65_536:
                frames.append(frame)
                frame, tokens = [], 0
        made.append(frames + ([frame] if frame else []))
    return Corpus(made)


def planner(
    sources: Sequence[Corpus],
    *,
    weights: Sequence[float | str] = (),
    epochs: Sequence[int | None] = (),
    seq_length: int = 16,
    windows: int = 4,
    window_tokens: int = 128,
    shuffle: int | None = 2,
    seed: int = 1,
    even_rows: int | None = None,
    **packing: object,
) -> Planner:
    axes = [
        SourceAxis(f"source{n}", source, seed, [Era(0, 0, len(source.shard_tokens), shuffle or 0)])
        for n, source in enumerate(sources)
    ]
    fractions = [Fraction(str(weight)) for weight in weights or [1] * len(sources)]
    limits = [
        axis.start_of(limit) if limit else None for axis, limit in zip(axes, epochs or [None] * len(axes), strict=True)
    ]
    shares = [Share(axis.name, limit) for axis, limit in zip(axes, limits, strict=True)]
    tokens = [int(source.shard_tokens.sum()) for source in sources]
    round_tokens = resolve_round_tokens(fractions, tokens, windows, window_tokens, seq_length)
    packing_config = PackingConfig(**({"overlong": "split"} | packing))  # type: ignore[arg-type]
    layout = Layout(seq_length, windows, packing_config, shuffle is not None, even_rows=even_rows)
    return Planner(axes, Blend(shares, [BlendPhase(0, tuple(fractions), round_tokens)]), [layout], seed)


def pieces_of(plan: RoundPlan) -> list[tuple[int, int, int, int, int, int, int]]:
    """Every piece as (source, epoch, shard, frame, document, start, length), in canonical order."""
    frames, pieces = plan.frames, plan.pieces
    at = pieces.occurrence
    columns = (frames.source[at], frames.epoch[at], frames.shard[at], frames.frame[at])
    return list(zip(*(c.tolist() for c in (*columns, pieces.document, pieces.start, pieces.length)), strict=True))
