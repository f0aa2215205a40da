"""The plan of a run from its beginning or from a cursor, and whether the two belong together.

A cursor describes the past; the config may differ in what comes after it: a phase that is added, a source that joins or
has grown.
"""

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from streampipe.config import StreamConfig
from streampipe.cursor import Cursor, EraPast, SegmentPast, SourcePast, StreamPast, refuse_difference
from streampipe.fim_opening import NO_FIM, OpenedFim
from streampipe.opening import OpenedSource, order_file, resolve_packing, weights_of
from streampipe.plan.blend import Blend, BlendPhase, Segment, Share, resolve_round_tokens
from streampipe.plan.epoch_order import Era, SourceAxis
from streampipe.plan.pieces import PackingConfig
from streampipe.plan.planner import Layout, Planner

_HASH = 10  # hexadecimal digits of what a cursor keeps of a source


@dataclass(frozen=True)
class Run:
    """The plan of a run, and what a cursor must say of it.

    Attributes:
        planner: of its rounds.
        phases: the config in each phase.
        eras: by phase, the eras of each source as far as they are decided when the phase has begun.
        sources: of the blend, in its order.
        numbers: their positions in `config.sources`.
        fim: of the sources.
    """

    planner: Planner
    phases: list[StreamConfig]
    eras: list[list[tuple[Era, ...]]]
    sources: list[OpenedSource]
    numbers: list[int]
    fim: OpenedFim

    def past(self, round_: int) -> tuple[StreamPast, dict[str, SourcePast], int, SegmentPast | None]:
        """Return what a cursor at the start of a round says: stream, sources without their counts, phase, segment."""
        segment = self.planner.blend.segment(round_)
        positions = self.planner.blend.positions(round_)
        pasts = _source_pasts(self.phases[segment.phase], self.sources, self.numbers)
        for number, source in enumerate(self.sources):
            eras = self.eras[segment.phase][number]
            since = max((n for n, era in enumerate(eras) if era.start <= positions[number]), default=0)
            kept = [EraPast(era.epoch, era.start, era.shards, era.shuffle) for era in eras[since:]]
            past = pasts[source.name]
            if kept != [EraPast(0, 0, past.shards, past.shuffle)]:
                pasts[source.name] = msgspec.structs.replace(past, eras=kept)
        stream = _stream_past(self.phases, segment.phase, self.sources, str(segment.round_tokens), self.fim)
        begun = SegmentPast(segment.first_round, list(segment.offsets)) if segment.first_round else None
        return stream, pasts, segment.phase, begun


def plan_run(
    config: StreamConfig,
    sources: list[OpenedSource],
    numbers: list[int],
    cursor: Cursor | None,
    fim: OpenedFim = NO_FIM,
) -> Run:
    """Plan a run.

    Args:
        config: the stream.
        sources: of the blend, in its order.
        numbers: their positions in `config.sources`.
        cursor: where to go on, instead of the beginning.
        fim: of the sources.

    Raises:
        CursorMismatchError: when the cursor's past is not this stream's.
    """
    starts, phases = zip(*config.in_phases(), strict=True)
    pasts = cursor.sources if cursor is not None else {}
    if cursor is not None:
        _check_past(cursor, list(phases), sources, numbers, fim)
    first = cursor.phase if cursor is not None else 0
    groups = [[phase.shuffle_of(n) or 0 for n in numbers] for phase in phases]
    axes: list[SourceAxis] = []
    for at, source in enumerate(sources):
        past = pasts.get(source.name)
        eras = [Era(0, 0, past.shards if past is not None else _shards(source), groups[first][at])]
        if past is not None and past.eras:
            eras = [Era(era.epoch, era.start, era.shards, era.shuffle) for era in past.eras]
        axes.append(SourceAxis(source.name, source, config.seed, eras, order_file(config, numbers[at], source)))
    blends = [
        BlendPhase(start, weights_of(phase, sources, numbers), _round_tokens(phase, sources, numbers))
        for start, phase in zip(starts, phases, strict=True)
    ]
    origin = _origin(cursor, len(sources), sources)
    if cursor is not None:
        # A source that has grown takes its new shards in with the first epoch that begins after what is being
        # delivered.
        before = Blend(_shares(config, axes, numbers), blends, origin)
        positions = before.positions(cursor.round + (1 if cursor.offset else 0))
        for at, source in enumerate(sources):
            if axes[at].eras[-1].shards < _shards(source):
                axes[at] = axes[at].changed(positions[at], _shards(source), axes[at].eras[-1].shuffle)
    blend = Blend(_shares(config, axes, numbers), blends, origin)
    if cursor is not None:
        _check_future(cursor, blend)
    decided = [[axis.eras for axis in axes]] * (first + 1)
    for phase in range(first + 1, len(phases)):
        begins = next((s.first_round for s in blend.segments if s.phase >= phase), None)
        if begins is not None:
            positions = blend.positions(begins)
            for at, axis in enumerate(axes):
                if axis.eras[-1].shuffle != groups[phase][at]:
                    axes[at] = axis.changed(positions[at], axis.eras[-1].shards, groups[phase][at])
        decided.append([axis.eras for axis in axes])
    layouts = [
        _layout(phase, resolve_packing(phase, sources), fim, numbers, shuffled=any(groups[number]))
        for number, phase in enumerate(phases)
    ]
    planner = Planner(axes, blend, layouts, config.seed, sources[0].members)
    return Run(planner, list(phases), decided, sources, numbers, fim)


def _layout(
    phase: StreamConfig, packing: PackingConfig, fim: OpenedFim, numbers: list[int], *, shuffled: bool
) -> Layout:
    if phase.batch.batch_by == "documents":
        # The canonical order is one of documents; a step packs its own.
        packing = msgspec.structs.replace(packing, policy="none")
    return Layout(
        seq_length=phase.seq_length,
        windows=phase.plan.windows,
        packing=packing,
        shuffled=shuffled,
        cost_of_token=phase.plan.cost_of_token,
        even_rows=phase.plan.resolved_even_rows(phase.seq_length),
        fim=fim.plans_of(phase, numbers),
        fim_windows=fim.windows is not None,
    )


def _shards(source: OpenedSource) -> int:
    return len(source.shard_tokens)


def _shares(config: StreamConfig, axes: list[SourceAxis], numbers: list[int]) -> list[Share]:
    shares = []
    for axis, number in zip(axes, numbers, strict=True):
        source = config.sources[number]
        limited = source.epochs is not None and source.on_exhausted != "repeat"
        limit = axis.start_of(source.epochs) if limited and source.epochs is not None else None
        shares.append(Share(axis.name, limit, source.on_exhausted == "stop"))
    return shares


def _round_tokens(phase: StreamConfig, sources: list[OpenedSource], numbers: list[int]) -> Fraction:
    tokens = [int(source.shard_tokens.sum()) for source in sources]
    plan = phase.plan
    window_tokens = plan.resolved_window_tokens(phase.seq_length)
    return resolve_round_tokens(
        weights_of(phase, sources, numbers), tokens, plan.windows, window_tokens, phase.seq_length
    )


def _origin(cursor: Cursor | None, count: int, sources: list[OpenedSource]) -> Segment | None:
    """Return the segment that a cursor stands in; sources that joined since begin at 0."""
    if cursor is None:
        return None
    offsets = dict.fromkeys((source.name for source in sources), 0)
    if cursor.segment is not None:
        offsets |= zip(sorted(cursor.sources), cursor.segment.offsets, strict=True)
    first_round = cursor.segment.first_round if cursor.segment is not None else 0
    nothing = tuple(Fraction(0) for _ in range(count))
    return Segment(
        first_round,
        cursor.phase,
        Fraction(cursor.stream.round_tokens),
        nothing,
        tuple(offsets[s.name] for s in sources),
    )


def _source_pasts(phase: StreamConfig, sources: list[OpenedSource], numbers: list[int]) -> dict[str, SourcePast]:
    weights = weights_of(phase, sources, numbers)
    total = sum(weights, Fraction(0))
    pasts: dict[str, SourcePast] = {}
    for source, number, weight in zip(sources, numbers, weights, strict=True):
        pasts[source.name] = SourcePast(
            _content(phase, number, source, _shards(source)),
            _shards(source),
            _short(str(weight / total)),
            phase.sources[number].epochs,
            phase.shuffle_of(number) or 0,
        )
    return pasts


def _content(config: StreamConfig, number: int, source: OpenedSource, shards: int) -> str:
    content = source.content_of(shards)
    order = config.sources[number].order
    if order is not None:
        content = hashlib.sha256(content.encode() + Path(order).read_bytes()).hexdigest()
    return content[:_HASH]


def _short(text: str) -> str:
    """Return a text, or its hash if a cursor of 30 sources has no room for it."""
    return text if len(text) <= 8 else hashlib.sha256(text.encode()).hexdigest()[:8]


def _stream_past(
    phases: list[StreamConfig], phase: int, sources: list[OpenedSource], round_tokens: str, fim: OpenedFim
) -> StreamPast:
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
    )


def _blend(config: StreamConfig) -> list[Any]:
    """Return the weights of the sources that took part."""
    return sorted(
        [s.name, str(s.weight), s.shuffle] for s in config.sources if s.weight is None or float(Fraction(str(s.weight)))
    )


def _check_past(
    cursor: Cursor, phases: list[StreamConfig], sources: list[OpenedSource], numbers: list[int], fim: OpenedFim
) -> None:
    differing: dict[str, tuple[Any, Any]] = {}
    if cursor.phase >= len(phases):
        refuse_difference({"phases": (f"phase {cursor.phase}", f"{len(phases) - 1} phases after the first")})
    config = phases[cursor.phase]
    stream = _stream_past(phases, cursor.phase, sources, cursor.stream.round_tokens, fim)
    for field in StreamPast.__struct_fields__:
        saved, now = getattr(cursor.stream, field), getattr(stream, field)
        if saved != now:
            differing["phases" if field == "before" else field] = (saved, now)
    pasts = _source_pasts(config, sources, numbers)
    number_of = {source.name: at for at, source in enumerate(sources)}
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
            now = msgspec.structs.replace(now, content=_content(config, numbers[at], sources[at], saved.shards))
        for field in ("content", "weight", "epochs", "shuffle"):
            if getattr(saved, field) != getattr(now, field):
                differing[f"sources.{name}.{field}"] = (getattr(saved, field), getattr(now, field))
    refuse_difference(differing)


def _check_future(cursor: Cursor, blend: Blend) -> None:
    """Refuse a phase that would have begun before the cursor."""
    phase = blend.segment(cursor.round).phase
    begins_now = (
        phase == cursor.phase + 1 and not cursor.offset and blend.segment(cursor.round).first_round == cursor.round
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
