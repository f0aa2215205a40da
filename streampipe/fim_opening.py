"""Fill-in-the-middle of a config, made ready: ids for sentinels, cutters for texts, and what the plan must know."""

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import msgspec

from streampipe.assemble.fim import Order, SourceFim
from streampipe.assemble.fim_config import FimConfig
from streampipe.assemble.fim_cuts import Cutter, TokenCutter
from streampipe.assemble.fim_text import TextCutter
from streampipe.config import SourceConfig, StreamConfig
from streampipe.encoder import open_encoder
from streampipe.errors import ConfigError
from streampipe.fim_sentinels import order_items, sentinel_ids, tokenizer_file
from streampipe.opening import OpenedSource, takes_part
from streampipe.plan.fim import FimPlan
from streampipe.shards.source import Source


@dataclass(frozen=True)
class OpenedFim:
    """The fill-in-the-middle of a stream's sources, by their positions in `config.sources`.

    Attributes:
        sources: how pieces are transformed.
    """

    sources: dict[int, SourceFim] = field(default_factory=dict)

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
            slack=0 if fim.level == "token" else fim.slack,
            min_length=fim.min_length,
            start=own.start,
            end=own.end,
            loss="kept" if fim.no_prefix is not None else fim.loss,
            fragment_rate=fim.rate_of_fragments,
        )

    def digest_of(self, phase: StreamConfig) -> str:
        """Return a hash of whatever decides the transformed pieces of a phase; "" without any."""
        canonical = [
            [source.name, _settings(source.fim), [_ids(order) for order in own.orders], own.start, own.end]
            for number, own in self.sources.items()
            if takes_part(phase, number) and (source := phase.sources[number]).fim is not None
        ]
        return hashlib.sha256(msgspec.json.encode(sorted(canonical))).hexdigest()[:12] if canonical else ""


NO_FIM = OpenedFim()


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
    itemsize = max((source.token_dtype.itemsize for source in sources), default=2)
    opened: dict[int, SourceFim] = {}
    for source, number in zip(sources, numbers, strict=True):
        fim = config.sources[number].fim
        if fim is not None:
            phases = [phase.sources[number].fim or fim for _, phase in config.in_phases()]
            opened[number] = _open(fim, phases, source, "HI"[itemsize // 2 - 1], f"$.sources[{number}].fim")
    return OpenedFim(opened)


def _open(fim: FimConfig, phases: list[FimConfig], source: OpenedSource, form: str, where: str) -> SourceFim:
    if source.kind != "text":
        raise ConfigError(f"{where}: only texts have a middle, but {source.name!r} ({source.url}) is of {source.kind}s")

    recorded = source.manifest.build.get(source.split) if isinstance(source, Source) else None
    built = recorded if isinstance(recorded, dict) else {}
    if fim.split_on is not None:
        _require_fragments(fim.split_on, built.get("fragments_at"), source, where)

    @cache
    def read() -> bytes:
        return tokenizer_file(source, where)

    ids = sentinel_ids(fim, source, read, where)
    encode = _text_encoder(source, read, where)
    for rates in phases:
        first, second = order_items(rates, ids, encode, where)
    orders = tuple(
        Order(tuple(item if isinstance(item, int) else memoryview(array(form, item)) for item in items))
        for items in (first, second)
    )
    cutter: Cutter = TokenCutter()
    if fim.needs_text:
        encoder = open_encoder(read(), source.tokenizer.special_tokens, where)
        cutter = TextCutter(encoder, fim.level, fim.no_prefix, form)
    start, end = (int(built.get(name) is not None) for name in ("bos", "eos"))
    slack = 0 if fim.level == "token" else fim.slack
    return SourceFim((orders[0], orders[1]), cutter, start, end, fim.loss == "middle", slack)


def _require_fragments(split_on: str, known: object, source: OpenedSource, where: str) -> None:
    if known == split_on:
        return
    if not isinstance(source, Source):
        raise ConfigError(f"{where}.split_on: a mock source has no separators; leave it out")
    found = "none are recorded" if known is None else f"those of {known!r} are recorded"
    raise ConfigError(
        f"{where}.split_on: where {split_on!r} stands must be recorded in {source.name!r} ({source.url}), but {found}; "
        f"build the source with `shardtools build --fragments-at '{split_on}'`"
        + ("" if known is None else f", or set split_on: {known!r}")
    )


def _text_encoder(source: OpenedSource, read: Callable[[], bytes], where: str) -> Callable[[str], list[int]]:
    def encode(text: str) -> list[int]:
        return open_encoder(read(), source.tokenizer.special_tokens, where).encode(text, first=False)

    return encode
