"""The sources of a config, opened and checked: do they belong together, and does the config fit them?"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampipe.config import SourceConfig, StreamConfig
from streampipe.errors import ConfigError, DocumentTooLongError
from streampipe.mock import MockSource
from streampipe.plan.blend import weight_fraction
from streampipe.plan.pieces import PackingConfig, rounded_up
from streampipe.shards.source import Source

OpenedSource = Source | MockSource

# Indexes that are read to count overlong documents before a stream is refused.
_SHARDS_COUNTED = 16


def open_sources(config: StreamConfig) -> tuple[list[OpenedSource], list[int]]:
    """Open the sources that have a weight in any phase, in the order of their names.

    Returns:
        the sources, and the position of each in `config.sources`.

    Raises:
        SourceError: when a source cannot be read.
        ConfigError: when sources do not belong together, or the config does not fit them.
        DocumentTooLongError: when documents are too long and the config does not say what to do with them.
    """
    phases = [phase for _, phase in config.in_phases()]
    opened: list[tuple[int, OpenedSource]] = []
    for number, source in enumerate(config.sources):
        if any(takes_part(phase, number) for phase in phases):
            opened.append((number, _open(source, config.seed)))
    for number, phase in enumerate(phases):
        if not any(takes_part(phase, source) for source in range(len(config.sources))):
            where = f"$.phases[{number - 1}].weights" if number else "$.sources"
            raise ConfigError(f"{where}: every weight is 0; give at least one source a weight above 0")
    opened.sort(key=lambda pair: pair[1].name)
    for number, each in opened:
        if not int(each.shard_tokens.sum()):
            raise ConfigError(
                f"$.sources[{number}]: {each.name!r} ({each.url}) holds no document in split "
                f"{config.sources[number].split!r}; take it out, or choose another split"
            )
    for phase in phases:
        _check_together(opened, phase)
        for number, each in opened:
            if takes_part(phase, number):
                _check_lengths(number, each, phase)
    return [each for _, each in opened], [number for number, _ in opened]


def weights_of(config: StreamConfig, sources: list[OpenedSource], numbers: list[int]) -> tuple[Fraction, ...]:
    """Return the weight of each source as a share of tokens, on any scale; without weights, shares follow sizes."""
    weights = []
    for source, number in zip(sources, numbers, strict=True):
        given = config.sources[number].weight
        if given is None:
            weights.append(Fraction(int(source.shard_tokens.sum())))
            continue
        weight = weight_fraction(given, f"$.sources[{number}].weight")
        if config.weight_by == "documents":
            weight *= source.mean_document()
        weights.append(weight)
    return tuple(weights)


def resolve_packing(config: StreamConfig, sources: list[OpenedSource]) -> PackingConfig:
    """Return the packing with `overlong` decided: `split` for a stream with text, `error` for one without.

    A step that counts documents splits none.
    """
    if config.packing.overlong is not None:
        return config.packing
    text = any(source.kind == "text" for source in sources) and config.batch.batch_by == "sequences"
    return msgspec.structs.replace(config.packing, overlong="split" if text else "error")


@dataclass(frozen=True)
class GivenOrder:
    """An order file as it was when the stream was opened; what becomes of the file later does not matter to the run.

    Attributes:
        shards: int64 [shards], the order of every epoch.
        content: of the file.
    """

    shards: NDArray[np.int64]
    content: bytes


def open_orders(config: StreamConfig, sources: list[OpenedSource], numbers: list[int]) -> list[GivenOrder | None]:
    """Read the order files of sources; None for those that have none.

    Raises:
        ConfigError: unless each lists every shard once.
    """
    return [_order(config, number, source) for number, source in zip(numbers, sources, strict=True)]


def _order(config: StreamConfig, number: int, source: OpenedSource) -> GivenOrder | None:
    path = config.sources[number].order
    if path is None:
        return None
    where = f"$.sources[{number}].order"
    if isinstance(source, MockSource):
        raise ConfigError(f"{where}: a mock source has no shards to list; leave it out")
    try:
        content = Path(path).read_bytes()
        lines = [line.strip() for line in content.decode().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {path} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: {path} is no UTF-8 text ({error}); it lists shards, one a line") from error
    places = {entry.path: place for place, entry in enumerate(source.shards)}
    unknown = next((line for line in lines if line not in places), None)
    if unknown is not None or len(set(lines)) != len(lines) or len(lines) != len(places):
        what = (
            f"{unknown!r} is no shard of {source.url}"
            if unknown
            else f"it lists {len(set(lines))} of {len(places)} shards"
        )
        raise ConfigError(
            f"{where}: {path} must list every shard once, but {what}; export it with `streampipe plan --export-order`"
        )
    return GivenOrder(np.array([places[line] for line in lines], np.int64), content)


def takes_part(config: StreamConfig, number: int) -> bool:
    """Return whether a source has a weight above 0 in a phase."""
    weight = config.sources[number].weight
    return weight is None or bool(weight_fraction(weight, f"$.sources[{number}].weight"))


def _open(source: SourceConfig, seed: int) -> OpenedSource:
    if source.mock is not None:
        return MockSource(source.name, source.mock, seed)
    return Source.open(source.name, source.path or "", source.split, source.storage or None)


def _check_together(opened: list[tuple[int, OpenedSource]], config: StreamConfig) -> None:
    _, first = opened[0]
    kinds = {each.kind for _, each in opened}
    for number, each in opened[1:]:
        where = f"$.sources[{number}]: {each.name!r} ({each.url})"
        if each.tokenizer.core_hash != first.tokenizer.core_hash:
            raise ConfigError(
                f"{where} was made with another tokenizer than {first.name!r} ({first.url}): "
                f"{each.tokenizer.core_hash[:16]} and {first.tokenizer.core_hash[:16]}; ids would mean different "
                "texts, so "
                f"build them with the same one"
            )
        if "preference" in kinds and len(kinds) > 1:
            raise ConfigError(
                f"{where} is of kind {each.kind}, {first.name!r} of kind {first.kind}; pairs are trained with another "
                "loss, so "
                f"give them a stream of their own"
            )
    _check_policy(kinds, config)


def _check_policy(kinds: set[str], config: StreamConfig) -> None:
    packing = config.packing
    if packing.policy == "concat" and kinds != {"text"}:
        raise ConfigError(
            "$.packing.policy: concat cuts anywhere, which has no meaning for "
            f"{' and '.join(sorted(kinds - {'text'}))} sources; "
            f"choose best_fit"
        )
    if "preference" in kinds and packing.policy == "none":
        raise ConfigError(
            "$.packing.policy: none puts one document into a sequence, but a pair is two; choose best_fit"
        )
    if "preference" in kinds and packing.overlong == "split":
        raise ConfigError("$.packing.overlong: pairs are never split; choose drop, truncate or error")


def _check_lengths(number: int, source: OpenedSource, config: StreamConfig) -> None:
    """Refuse documents that are too long where that is an error.

    Asked for, or a conversation or pair and nothing said.
    """
    chosen = config.packing.overlong
    whole = config.batch.batch_by == "documents" or source.kind == "preference"
    if chosen not in ("error", None) or (chosen is None and source.kind == "text" and not whole):
        return
    # Rounding the members of a pair up to `document_multiple` may make one too long that has few enough tokens.
    surely = config.seq_length - (source.members - 1) * (config.packing.document_multiple - 1)
    if source.longest_document() <= surely:
        return
    found = "documents are" if isinstance(source, MockSource) else _count_overlong(source, config, surely)
    if not found:
        return
    longest, shorter = f"the longest has {source.longest_document()} tokens", "a longer seq_length"
    if source.longest_document() <= config.seq_length:
        multiple = config.packing.document_multiple
        longest = f"either member takes a multiple of packing.document_multiple {multiple}"
        shorter += " or a smaller document_multiple"
    where = f"$.sources[{number}]: {source.name!r} ({source.url})"
    raise DocumentTooLongError(
        f"{where}: {found} longer than seq_length {config.seq_length} ({longest}), and packing.overlong is error; "
        f"choose {'drop or truncate' if whole else 'split, truncate or drop'}, or {shorter}"
    )


def _count_overlong(source: Source, config: StreamConfig, surely: int) -> str:
    """Say how many documents of a source are too long, and where; nothing if none is.

    Those of up to `surely` tokens are not.
    """
    shards = [number for number, entry in enumerate(source.shards) if entry.longest > surely]
    count, found, more = 0, list[int](), False
    for read, shard in enumerate(shards):
        if more := bool(count) and read >= _SHARDS_COUNTED:
            break
        by_member = source.index(shard).lengths.reshape(-1, source.members).astype(np.int64)
        here = int(np.sum(rounded_up(by_member, config.packing).sum(axis=1) > config.seq_length))
        count += here
        found += [shard] if here else []
    if not count:
        return ""
    files = ", ".join(source.shards[shard].path for shard in found[:3])
    return (
        f"{'at least ' if more else ''}{count} of {int(source.shard_documents.sum())} documents, in {files}"
        f"{' and other shards' if more or len(found) > 3 else ''}, are"
    )
