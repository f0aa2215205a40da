"""What a cursor says of the stream that it belongs to, and whether a config is that stream.

A cursor describes the past; the config may differ in what comes after it: a phase that is added, a source that joins or
has grown.
"""

import hashlib
from fractions import Fraction
from typing import Any

import msgspec

from streampipe.config import SourceConfig, StreamConfig
from streampipe.cursor import Cursor, SourcePast, StreamPast, refuse_difference
from streampipe.fim_opening import OpenedFim
from streampipe.opening import GivenOrder, OpenedSource, resolve_packing, weights_of
from streampipe.plan.blend import Blend, weight_fraction

_HASH = 10  # hexadecimal digits of what a cursor keeps of a source


def source_pasts(
    phase: StreamConfig, sources: list[OpenedSource], numbers: list[int], orders: list[GivenOrder | None]
) -> dict[str, SourcePast]:
    """Return what a cursor says of each source in a phase, by name; nothing is planned of it yet."""
    weights = weights_of(phase, sources, numbers)
    total = sum(weights, Fraction(0))
    pasts: dict[str, SourcePast] = {}
    for source, number, order, weight in zip(sources, numbers, orders, weights, strict=True):
        pasts[source.name] = SourcePast(
            _content(source, len(source.shard_tokens), order),
            len(source.shard_tokens),
            _short(str(weight / total)),
            phase.sources[number].epochs,
            phase.shuffle_of(number) or 0,
        )
    return pasts


def _content(source: OpenedSource, shards: int, order: GivenOrder | None) -> str:
    content = source.content_of(shards)
    if order is not None:
        content = hashlib.sha256(content.encode() + order.content).hexdigest()
    return content[:_HASH]


def _short(text: str) -> str:
    """Return a text, or its hash if a cursor of 30 sources has no room for it."""
    return text if len(text) <= 8 else hashlib.sha256(text.encode()).hexdigest()[:8]


def stream_past(
    phases: list[StreamConfig],
    phase: int,
    sources: list[OpenedSource],
    numbers: list[int],
    round_tokens: str,
    fim: OpenedFim,
) -> StreamPast:
    """Return what a cursor says of the stream in one of its phases.

    Args:
        phases: the config in each.
        phase: which.
        sources: of the blend, in its order.
        numbers: their positions in `config.sources`.
        round_tokens: as they were resolved when the phase began.
        fim: of the sources.
    """
    config = phases[phase]
    packing = resolve_packing(config, sources)
    name: str = packing.policy
    if config.batch.batch_by == "documents":
        name = f"documents/{config.batch.sequence_multiple}"
    before = hashlib.sha256()
    for past in phases[:phase]:
        before.update(
            msgspec.json.encode([past.seq_length, past.shuffle, past.packing, past.plan, _blend(past)], order="sorted")
        )
        before.update(fim.digest_of(past).encode())
    return StreamPast(
        seed=config.seed,
        tokenizer=sources[0].tokenizer.core_hash[:16],
        seq_length=config.seq_length,
        packing=f"{name}/{packing.overlong}/{packing.document_multiple}",
        plan=f"{config.plan.windows}x{config.plan.resolved_window_tokens(config.seq_length)}",
        round_tokens=round_tokens,
        before=before.hexdigest()[:16] if phase else "",
        balance=config.plan.order_name(config.seq_length),
        fim=fim.digest_of(config),
        exhausted=ends if (ends := "".join(map(_end, (config.sources[n] for n in numbers)))).strip("-") else "",
    )


def _end(source: SourceConfig) -> str:
    """Return the letter that `StreamPast.exhausted` has for a source."""
    return "-" if source.epochs is None or source.on_exhausted == "renormalise" else source.on_exhausted[0]


def _blend(config: StreamConfig) -> list[Any]:
    """Return the weights of the sources that took part."""
    return sorted(
        [s.name, str(s.weight), s.shuffle] for s in config.sources if s.weight is None or float(Fraction(str(s.weight)))
    )


_ENDS = {"-": "renormalise", "s": "stop", "r": "repeat"}


def check_past(
    cursor: Cursor,
    phases: list[StreamConfig],
    sources: list[OpenedSource],
    numbers: list[int],
    orders: list[GivenOrder | None],
    fim: OpenedFim,
) -> None:
    """Refuse a cursor whose past is not this stream's.

    Raises:
        CursorMismatchError: naming what differs.
    """
    differing: dict[str, tuple[Any, Any]] = {}
    if cursor.phase >= len(phases):
        refuse_difference({"phases": (f"phase {cursor.phase}", f"{len(phases) - 1} phases after the first")})
    config = phases[cursor.phase]
    stream = stream_past(phases, cursor.phase, sources, numbers, cursor.stream.round_tokens, fim)
    for field in StreamPast.__struct_fields__:
        saved, now = getattr(cursor.stream, field), getattr(stream, field)
        if saved != now and field != "exhausted":
            differing["phases" if field == "before" else field] = (saved, now)
    pasts = source_pasts(config, sources, numbers, orders)
    number_of = {source.name: at for at, source in enumerate(sources)}
    ends = dict(zip(sorted(cursor.sources), cursor.stream.exhausted, strict=False))
    for name in sorted(cursor.sources.keys() | pasts.keys()):
        saved = cursor.sources.get(name)
        if saved is None:
            if pasts[name].weight != "0":
                differing[f"sources.{name}"] = ("absent", "present; let it join in a phase that begins later")
            continue
        if name not in pasts:
            differing[f"sources.{name}"] = ("present", "absent; let it leave in a phase, with weight 0")
            continue
        at = number_of[name]
        now = pasts[name]
        if saved.shards < now.shards:
            now = msgspec.structs.replace(now, content=_content(sources[at], saved.shards, orders[at]))
        for field in ("content", "weight", "epochs", "shuffle"):
            if getattr(saved, field) != getattr(now, field):
                differing[f"sources.{name}.{field}"] = (getattr(saved, field), getattr(now, field))
        ended, ends_now = ends.get(name, "-"), _end(config.sources[numbers[at]])
        if ended != ends_now:
            differing[f"sources.{name}.on_exhausted"] = (_ENDS[ended], _ENDS[ends_now])
    changed = any(field.endswith(".weight") for field in differing)
    refuse_difference(differing, _weights_before(cursor, config, sources, numbers) if changed else "")


def _weights_before(cursor: Cursor, config: StreamConfig, sources: list[OpenedSource], numbers: list[int]) -> str:
    """Say how to keep weights that followed sizes where a source has grown since; "" where it is not that."""
    before = {name: past.shards for name, past in cursor.sources.items()}
    grown = [s.name for s in sources if before.get(s.name, len(s.shard_tokens)) < len(s.shard_tokens)]
    given = [config.sources[number].weight for number in numbers]
    if not grown or (None not in given and config.weight_by == "tokens"):
        return ""
    weights = []
    for source, weight, number in zip(sources, given, numbers, strict=True):
        shards = before.get(source.name)
        share = Fraction(int(source.shard_tokens[:shards].sum()))
        if weight is not None:
            share = weight_fraction(weight, f"$.sources[{number}].weight") * source.mean_document(shards)
        weights.append(f"{source.name}: {str(share)!r}")
    keys = f"`phases[{cursor.phase - 1}].weights`" if cursor.phase else "`weight` of each source"
    return (
        f" (weights follow the sizes of sources here, and {', '.join(grown)} has grown since; to go on with the "
        f"weights that the run has, set weight_by: tokens and as {keys} {', '.join(weights)})"
    )


def check_future(cursor: Cursor, blend: Blend) -> None:
    """Refuse a phase that would have begun before the cursor.

    Raises:
        CursorMismatchError: naming it.
    """
    phase = blend.segment(cursor.round).phase
    begins_now = (
        phase == cursor.phase + 1
        and cursor.next_round == cursor.round
        and blend.segment(cursor.round).first_round == cursor.round
    )
    if phase != cursor.phase and not begins_now and not (blend.rounds is not None and cursor.round >= blend.rounds):
        taken = sum(blend.positions(cursor.round))
        refuse_difference(
            {
                f"phases[{cursor.phase}].start": (
                    f"phase {cursor.phase} after {taken} tokens",
                    f"phase {phase} there; a phase that is added must begin later",
                )
            }
        )
