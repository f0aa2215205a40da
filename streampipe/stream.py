"""A config, opened: its sources, its planner, and what makes it this stream and no other."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from streampipe.address import Addressed, address
from streampipe.config import StreamConfig
from streampipe.cursor import Cursor, SourcePast, StreamPast, Within, check_same_stream
from streampipe.opening import OpenedSource, open_sources, resolve_packing, share_of
from streampipe.plan.blend import Blend, resolve_round_tokens
from streampipe.plan.epoch_order import SourceAxis
from streampipe.plan.planner import Layout, Planner
from streampipe.plan.schedule import COUNTED, Place


class Stream:
    """An opened config. Sources stand in the order of their names, so the order of the file decides nothing.

    Attributes:
        config: as given.
        sources: opened, those with a weight above 0, by name.
        numbers: their positions in `config.sources`.
        planner: of the rounds.
        past, source_pasts: what a cursor must agree with.
        pad_id: stands where no token is.
        stored_dtype: the widest in which a source stores its ids, native; frames of the others are widened when
            decoded.
    """

    def __init__(self, config: StreamConfig, sources: list[OpenedSource], numbers: list[int]) -> None:
        self.config = config
        self.sources = sources
        self.numbers = numbers
        shares = [share_of(config, n, source) for n, source in zip(numbers, sources, strict=True)]
        window_tokens = config.plan.resolved_window_tokens(config.seq_length)
        round_tokens = resolve_round_tokens(shares, config.plan.windows, window_tokens, config.seq_length)
        groups = [config.shuffle_of(n) for n in numbers]
        axes = [SourceAxis(s.name, s, config.seed, group) for s, group in zip(sources, groups, strict=True)]
        packing = resolve_packing(config, sources)
        layout = Layout(config.seed, config.seq_length, config.plan.windows, packing, sources[0].members)
        self.planner = Planner(axes, Blend(shares, round_tokens), layout, shuffled=any(g is not None for g in groups))
        total = sum((share.weight for share in shares), Fraction(0))
        self.past = StreamPast(
            seed=config.seed,
            seq_length=config.seq_length,
            packing=f"{packing.policy}/{packing.overlong}/{packing.document_multiple}",
            windows=config.plan.windows,
            round_tokens=str(round_tokens),
            tokenizer=sources[0].tokenizer.core_hash[:16],
        )
        self.source_pasts = {
            source.name: SourcePast(source.content_hash[:12], str(share.weight / total), share.epochs, group or 0)
            for source, share, group in zip(sources, shares, groups, strict=True)
        }
        self.stored_dtype: np.dtype[Any] = np.dtype(f"u{max(source.token_dtype.itemsize for source in sources)}")
        tokenizer = sources[0].tokenizer
        self.pad_id = next((i for i in (tokenizer.pad_id, tokenizer.eos_id) if i is not None), 0)

    def start(self) -> Cursor:
        """Return the cursor of a stream that has given nothing yet."""
        return Cursor(stream=self.past, sources=self.source_pasts)

    def ended(self, cursor: Cursor) -> bool:
        """Return whether a finite run has given everything."""
        return self.planner.rounds is not None and cursor.round >= self.planner.rounds

    def place(self, cursor: Cursor) -> Place:
        """Return where a cursor's next step begins.

        Raises:
            CursorMismatchError: when the cursor belongs to another stream.
        """
        check_same_stream(cursor, self.past, self.source_pasts)
        counts = [[getattr(cursor.sources[source.name], name) for name in COUNTED] for source in self.sources]
        return Place(cursor.round, cursor.offset, cursor.sequences, cursor.step, np.array(counts, np.int64))

    def cursor(self, place: Place, within: Within | None = None) -> Cursor:
        """Return the cursor of a step border, or of a place within the step that begins there."""
        sources = {}
        for source, counts in zip(self.sources, place.counts.tolist(), strict=True):
            past = self.source_pasts[source.name]
            sources[source.name] = SourcePast(past.content, past.weight, past.epochs, past.shuffle, *counts)
        return Cursor(
            stream=self.past,
            sources=sources,
            round=place.round,
            offset=place.offset,
            sequences=place.sequences,
            step=place.step,
            within=within,
        )

    def plan_round(self, number: int, breathe: Callable[[], None]) -> Addressed:
        """Plan a round and look up where its pieces lie."""
        plan = self.planner.round(number, breathe)
        return address(plan, self.sources, self.numbers, aligned=self.config.batch.labels == "aligned")


def open_stream(config: StreamConfig) -> Stream:
    """Open a config.

    Raises:
        SourceError, ConfigError, DocumentTooLongError: as `open_sources` does.
    """
    config.check()
    sources, numbers = open_sources(config)
    return Stream(config, sources, numbers)
