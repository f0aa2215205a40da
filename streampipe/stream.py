"""A config, opened: its sources, its planner, and what makes it this stream and no other."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.config import SourceConfig, StreamConfig
from streampipe.cursor import Cursor, SourcePast, StreamPast, Within, check_same_stream
from streampipe.errors import ConfigError, DocumentTooLongError
from streampipe.mock import MockSource
from streampipe.plan.blend import Blend, Share, resolve_round_tokens, weight_fraction
from streampipe.plan.epoch_order import SourceAxis
from streampipe.plan.planner import Layout, Planner
from streampipe.plan.round_plan import RoundPlan
from streampipe.plan.schedule import COUNTED, Place
from streampipe.shards.source import Source

OpenedSource = Source | MockSource


@dataclass(frozen=True)
class Addressed:
    """A round whose pieces know where their tokens lie: arrays over its P pieces.

    Attributes:
        plan: the round.
        source: int32, position in `config.sources`; epoch: int32.
        document: int64, number of the document in its source.
        offset: int64, first token inside the decoded frame, in tokens.
        raw_bytes: int64 [O], decoded size of each frame.
        asked: bool [O], whether a frame is being read or has been; views: the decoded frames, filled in as they come.
    """

    plan: RoundPlan
    source: NDArray[np.int32]
    epoch: NDArray[np.int32]
    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    asked: NDArray[np.bool_]
    views: list[Any]


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
        self._shards_before = [np.concatenate([[0], np.cumsum(source.shard_documents)]) for source in sources]
        shares = [_share(config.sources[n], n, source) for n, source in zip(numbers, sources, strict=True)]
        window_tokens = config.plan.resolved_window_tokens(config.seq_length)
        round_tokens = resolve_round_tokens(shares, config.plan.windows, window_tokens, config.seq_length)
        groups = [config.shuffle_of(n) for n in numbers]
        axes = [SourceAxis(s.name, s, config.seed, group) for s, group in zip(sources, groups, strict=True)]
        layout = Layout(config.seed, config.seq_length, config.plan.windows, config.packing)
        self.planner = Planner(axes, Blend(shares, round_tokens), layout, shuffled=any(g is not None for g in groups))
        total = sum((share.weight for share in shares), Fraction(0))
        packing = config.packing
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
        frames, pieces = plan.frames, plan.pieces
        payload, first, raw_bytes = (
            [np.empty(0, np.int64)],
            np.empty(len(frames), np.int64),
            np.empty(len(frames), np.int64),
        )
        itemsizes = np.array([source.token_dtype.itemsize for source in self.sources])
        for row, (source, shard, frame) in enumerate(
            zip(frames.source.tolist(), frames.shard.tolist(), frames.frame.tolist(), strict=True)
        ):
            index = self.sources[source].index(shard)
            begin, end = index.first_document[frame : frame + 2].tolist()
            payload.append(index.payload_offsets[begin:end])
            first[row] = self._shards_before[source][shard] + begin
            raw_bytes[row] = index.raw_bytes[frame]
        begins = np.cumsum([len(part) for part in payload])[:-1] if len(frames) else np.empty(0, np.int64)
        source_of_piece = frames.source[pieces.occurrence]
        at = np.concatenate(payload)[begins[pieces.occurrence] + pieces.document]
        return Addressed(
            plan,
            np.array(self.numbers, np.int32)[source_of_piece],
            frames.epoch[pieces.occurrence].astype(np.int32),
            first[pieces.occurrence] + pieces.document,
            at // itemsizes[source_of_piece] + pieces.start,
            raw_bytes,
            np.zeros(len(frames), bool),
            [None] * len(frames),
        )


def open_stream(config: StreamConfig) -> Stream:
    """Open the sources of a config and check that they belong together.

    Raises:
        SourceError: when a source cannot be read.
        ConfigError: when sources have different tokenizers, or one is empty or of a kind that is not streamed yet.
        DocumentTooLongError: with `overlong: error`, naming what is too long.
    """
    config.check()
    opened: list[tuple[int, OpenedSource]] = []
    for number, source in enumerate(config.sources):
        if source.weight is not None and not weight_fraction(source.weight, f"$.sources[{number}].weight"):
            continue
        opened.append((number, _open(source, config.seed)))
    if not opened:
        raise ConfigError("$.sources: every weight is 0; give at least one source a weight above 0")
    opened.sort(key=lambda pair: pair[1].name)
    for number, each in opened:
        _check_source(number, each, config)
    first = opened[0][1]
    for number, each in opened[1:]:
        if each.tokenizer.core_hash != first.tokenizer.core_hash:
            raise ConfigError(
                f"$.sources[{number}]: {each.name!r} ({each.url}) was made with another tokenizer than {first.name!r} "
                f"({first.url}): "
                f"{each.tokenizer.core_hash[:16]} and {first.tokenizer.core_hash[:16]}; ids would mean different "
                "texts, so build them with the same one"
            )
    return Stream(config, [each for _, each in opened], [number for number, _ in opened])


def _open(source: SourceConfig, seed: int) -> OpenedSource:
    if source.mock is not None:
        return MockSource(source.name, source.mock, seed)
    return Source.open(source.name, source.path or "", source.split, source.storage or None)


def _share(source: SourceConfig, number: int, opened: OpenedSource) -> Share:
    tokens = int(opened.shard_tokens.sum())
    weight = (
        Fraction(tokens) if source.weight is None else weight_fraction(source.weight, f"$.sources[{number}].weight")
    )
    return Share(source.name, weight, tokens, source.epochs)


def _check_source(number: int, source: OpenedSource, config: StreamConfig) -> None:
    where = f"$.sources[{number}]: {source.name!r} ({source.url})"
    if not int(source.shard_tokens.sum()):
        raise ConfigError(
            f"{where} holds no document in split {config.sources[number].split!r}; take it out, or choose another split"
        )
    if isinstance(source, MockSource):
        longest, where_longest = source.longest_document(), ""
    else:
        if source.manifest.kind != "text":
            raise ConfigError(
                f"{where} is of kind {source.manifest.kind}, which this release does not stream yet; build it as text"
            )
        entry = max(source.shards, key=lambda shard: shard.longest)
        longest, where_longest = entry.longest, f" (in {entry.path})"
    if config.packing.overlong == "error" and longest > config.seq_length:
        raise DocumentTooLongError(
            f"{where}: its longest document{where_longest} has {longest} tokens, but seq_length is {config.seq_length} "
            "and packing.overlong "
            f"is error; choose split, truncate or drop, or a longer seq_length"
        )
