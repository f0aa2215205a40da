"""Fill-in-the-middle of a config, made ready: ids for sentinels, cutters for texts, and what the plan must know."""

import hashlib
from array import array
from dataclasses import astuple, dataclass, field
from functools import cache
from typing import Any

import msgspec

from streampipe.assemble.fim import Order, SourceFim
from streampipe.assemble.fim_config import FimConfig
from streampipe.assemble.fim_copies import PlannedFim, planned_fim
from streampipe.assemble.fim_cuts import Cutter, TokenCutter
from streampipe.assemble.fim_text import TextCutter
from streampipe.assemble.megatron_fim import MegatronFim
from streampipe.assemble.megatron_windows import MegatronWindows
from streampipe.config import SourceConfig, StreamConfig
from streampipe.encoder import TokenizerEncoder, open_codec, open_encoder
from streampipe.errors import ConfigError
from streampipe.fim_sentinels import named_id, order_items, sentinel_ids, tokenizer_file
from streampipe.opening import OpenedSource, takes_part
from streampipe.plan.fim import FimPlan
from streampipe.shards.source import Source


@dataclass(frozen=True)
class OpenedFim:
    """The fill-in-the-middle of a stream's sources, by their positions in `config.sources`.

    Attributes:
        sources: how pieces are transformed.
        planned: the same, where it is planned with the round, for it needs no token; else None.
        windows: instead, how windows are, with `compat: megatron`; tokenizer: the hash of what encodes them.
    """

    sources: dict[int, SourceFim] = field(default_factory=dict)
    planned: PlannedFim | None = None
    windows: MegatronWindows | None = None
    tokenizer: str = ""

    def plans_of(self, phase: StreamConfig, numbers: list[int]) -> tuple[FimPlan | None, ...]:
        """Return what the plan of a phase must know of each source of the blend."""
        return tuple(self._plan(phase.sources[number], number) for number in numbers) if self.sources else ()

    def _plan(self, source: SourceConfig, number: int) -> FimPlan | None:
        fim, own = source.fim, self.sources.get(number)
        if fim is None or own is None:
            return None
        return FimPlan(
            rate=fim.rate,
            spm_rate=fim.spm_rate,
            added=(own.orders[0].added, own.orders[1].added),
            slack=fim.room_for_cuts,
            min_length=fim.min_length,
            start=own.start,
            end=own.end,
            loss="kept" if fim.no_prefix is not None else fim.loss,
            fragment_rate=fim.rate_of_fragments,
        )

    def digest_of(self, phase: StreamConfig) -> str:
        """Return a hash of whatever decides the transformed pieces, or windows, of a phase; "" without any."""
        if self.windows is not None:
            return _hash(["megatron", *astuple(self.windows.fim), self.tokenizer])
        canonical = [
            [source.name, _settings(source.fim), [_ids(order) for order in own.orders], own.start, own.end]
            for number, own in self.sources.items()
            if takes_part(phase, number) and (source := phase.sources[number]).fim is not None
        ]
        return _hash(sorted(canonical)) if canonical else ""


def _hash(canonical: list[Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(canonical)).hexdigest()[:12]


def _settings(fim: FimConfig | None) -> list[object]:
    """Return the settings of a source; its templates are told by their ids."""
    if fim is None:
        return []
    settings: list[object] = [fim.rate, fim.spm_rate, fim.level, fim.min_length, fim.no_prefix, fim.loss]
    if fim.level != "token":
        settings.append(fim.slack)
    return settings if fim.split_on is None else [*settings, fim.split_on, fim.rate_of_fragments]


def _ids(order: Order) -> list[int | list[int]]:
    return [item if isinstance(item, int) else item.tolist() for item in order.items]


def open_fim(config: StreamConfig, sources: list[OpenedSource], numbers: list[int]) -> OpenedFim:
    """Make ready the fill-in-the-middle of the sources that have any.

    Args:
        config: the stream.
        sources: of the blend, in its order.
        numbers: their positions in `config.sources`.

    Raises:
        ConfigError: when sentinels are not in the tokenizer, or the source cannot be transformed.
    """
    if any(fim is not None and fim.compat for fim in (config.sources[number].fim for number in numbers)):
        return _open_windows(config, sources, numbers)
    itemsize = max((source.token_dtype.itemsize for source in sources), default=2)
    opened: dict[int, SourceFim] = {}
    for source, number in zip(sources, numbers, strict=True):
        fim = config.sources[number].fim
        if fim is not None:
            phases = [phase.sources[number].fim or fim for _, phase in config.in_phases()]
            opened[number] = _open(fim, phases, source, "HI"[itemsize // 2 - 1], f"$.sources[{number}].fim")
    return OpenedFim(opened, planned_fim(opened) if opened and _needs_no_token(config, list(opened)) else None)


def _needs_no_token(config: StreamConfig, numbers: list[int]) -> bool:
    """Return whether all that is asked of pieces can be told from their lengths."""
    fims = [fim for number in numbers if (fim := config.sources[number].fim) is not None]
    plain = all(not fim.needs_text and fim.split_on is None for fim in fims)
    return plain and not {"fim_parts", "horizon"}.intersection(config.batch.fields)


def _open(fim: FimConfig, phases: list[FimConfig], source: OpenedSource, form: str, where: str) -> SourceFim:
    if source.kind != "text":
        raise ConfigError(f"{where}: only texts have a middle, but {source.name!r} ({source.url}) is of {source.kind}s")

    built = source.built
    if fim.split_on is not None:
        _require_fragments(fim.split_on, built.get("fragments_at"), source, where)

    @cache
    def read() -> bytes:
        return tokenizer_file(source, where)

    @cache
    def encoder() -> TokenizerEncoder:
        return open_encoder(read(), source.tokenizer.special_tokens, where)

    @cache
    def encode(text: str) -> list[int]:
        return encoder().encode(text, first=False)

    ids = sentinel_ids(fim, source, read, where)
    for number, rates in enumerate(phases):
        rates_in = f"$.phases[{number - 1}].fim.{source.name}" if number else where
        first, second = order_items(rates, ids, encode, source, where, rates_in)
    orders = tuple(
        Order(tuple(item if isinstance(item, int) else memoryview(array(form, item)) for item in items))
        for items in (first, second)
    )
    cutter: Cutter = TokenCutter()
    if fim.needs_text:
        cutter = TextCutter(encoder(), fim.level, fim.no_prefix, form)
    start, end = (int(built.get(name) is not None) for name in ("bos", "eos"))
    return SourceFim((orders[0], orders[1]), cutter, start, end, fim.loss == "middle", fim.room_for_cuts)


def _require_fragments(split_on: str | int, known: object, source: OpenedSource, where: str) -> None:
    if known == split_on:
        return
    found = "none are recorded" if known is None else f"those of {known!r} are recorded"
    if not isinstance(source, Source):
        raise ConfigError(
            f"{where}.split_on: {split_on!r} must be the separator of the mock source {source.name!r}, by its id, but "
            f"{found}; set mock.fragments_at and split_on to the same id"
        )
    if isinstance(split_on, int):
        raise ConfigError(
            f"{where}.split_on: must be the token that `shardtools build --fragments-at` was given for {source.name!r} "
            f"({source.url}), not its id, but got {split_on}, and {found}"
        )
    raise ConfigError(
        f"{where}.split_on: where {split_on!r} stands must be recorded in {source.name!r} ({source.url}), but {found}; "
        f"build the source with `shardtools build --fragments-at '{split_on}'`"
        + ("" if known is None else f", or set split_on: {known!r}")
    )


def _open_windows(config: StreamConfig, sources: list[OpenedSource], numbers: list[int]) -> OpenedFim:
    opened: list[tuple[Source, MegatronFim]] = []
    for source, number in zip(sources, numbers, strict=True):
        where = f"$.sources[{number}].fim"
        fim = config.sources[number].fim
        if fim is None or not isinstance(source, Source):
            raise ConfigError(f"{where}: a mock source has no text; give every source a path with compat: megatron")
        opened.append((source, _megatron(fim, source, where)))
        first = opened[0][0]
        if opened[-1][1] != opened[0][1] or source.tokenizer.hash != first.tokenizer.hash:
            raise ConfigError(
                f"{where}: windows mix sources, but {source.name!r} ({source.url}) was built with another "
                f"tokenizer.json or end token than {first.name!r} ({first.url}): {source.tokenizer.hash[:16]} with "
                f"end token {source.tokenizer.eos_id}, and {first.tokenizer.hash[:16]} with {first.tokenizer.eos_id}; "
                "build both with the same, or give each a stream of its own"
            )
    where = f"$.sources[{numbers[0]}].fim"
    codec = open_codec(tokenizer_file(opened[0][0], where), where)
    return OpenedFim(
        windows=MegatronWindows(opened[0][1], codec, tuple(numbers)), tokenizer=opened[0][0].tokenizer.hash
    )


def _megatron(fim: FimConfig, source: Source, where: str) -> MegatronFim:
    """Return Megatron's options with the ids that tokens have in a source."""

    @cache
    def read() -> bytes:
        return tokenizer_file(source, where)

    tokenizer = source.tokenizer
    if source.built.get("eos") is None or tokenizer.eos_id is None:
        raise ConfigError(
            f"{where}: compat: megatron parts windows at end tokens, but the documents of {source.name!r} "
            f"({source.url}) have none; build the source with one (shardtools build --eos)"
        )
    ids = sentinel_ids(fim, source, read, where)
    if ids["PAD"] == tokenizer.pad_id:
        raise ConfigError(
            f"{where}.sentinels.pad: {ids['PAD']} is the padding token of {source.name!r}, from which Megatron takes "
            "the loss, and how many of them a step has is not known before its texts are; name another token"
        )
    return MegatronFim(
        prefix=ids["PRE"],
        middle=ids["MID"],
        suffix=ids["SUF"],
        pad=ids["PAD"],
        eod=tokenizer.eos_id,
        rate=fim.rate,
        spm_rate=fim.spm_rate,
        split=None if fim.split_on is None else named_id(fim.split_on, source, read, f"{where}.split_on"),
        fragment_rate=fim.fragment_rate or 0.0,
        no_prefix=fim.no_prefix,
    )
