"""The plan of a run from its beginning or from a cursor."""

from dataclasses import dataclass
from fractions import Fraction

import msgspec

from streampipe.config import StreamConfig
from streampipe.cursor import Cursor, EraPast, SegmentPast, SourcePast, StreamPast
from streampipe.fim_opening import OpenedFim
from streampipe.identity import check_future, check_past, source_pasts, stream_past
from streampipe.opening import GivenOrder, OpenedSource, resolve_packing, weights_of
from streampipe.plan.blend import Blend, BlendPhase, Segment, Share, resolve_round_tokens
from streampipe.plan.epoch_order import Era, SourceAxis
from streampipe.plan.pieces import PackingConfig
from streampipe.plan.planner import Layout, Planner


@dataclass(frozen=True)
class Run:
    """The plan of a run, and what a cursor must say of it.

    Attributes:
        planner: of its rounds.
        phases: the config in each phase.
        eras: by phase, the eras of each source as far as they are decided when the phase has begun.
        sources: of the blend, in its order.
        numbers: their positions in `config.sources`.
        orders: that files give them.
        fim: of the sources.
    """

    planner: Planner
    phases: list[StreamConfig]
    eras: list[list[tuple[Era, ...]]]
    sources: list[OpenedSource]
    numbers: list[int]
    orders: list[GivenOrder | None]
    fim: OpenedFim

    def past(self, round_: int) -> tuple[StreamPast, dict[str, SourcePast], int, SegmentPast | None]:
        """Return what a cursor at the start of a round says: stream, sources without their counts, phase, segment."""
        segment = self.planner.blend.segment(round_)
        positions = self.planner.blend.positions(round_)
        pasts = source_pasts(self.phases[segment.phase], self.sources, self.numbers, self.orders)
        for number, source in enumerate(self.sources):
            eras = self.eras[segment.phase][number]
            since = max((n for n, era in enumerate(eras) if era.start <= positions[number]), default=0)
            kept = [EraPast(era.epoch, era.start, era.shards, era.shuffle) for era in eras[since:]]
            past = pasts[source.name]
            if kept != [EraPast(0, 0, past.shards, past.shuffle)]:
                pasts[source.name] = msgspec.structs.replace(past, eras=kept)
        stream = stream_past(
            self.phases, segment.phase, self.sources, self.numbers, str(segment.round_tokens), self.fim
        )
        begun = SegmentPast(segment.first_round, list(segment.offsets)) if segment.first_round else None
        return stream, pasts, segment.phase, begun


def plan_run(
    config: StreamConfig,
    sources: list[OpenedSource],
    numbers: list[int],
    orders: list[GivenOrder | None],
    fim: OpenedFim,
    cursor: Cursor | None,
) -> Run:
    """Plan a run.

    Args:
        config: the stream.
        sources: of the blend, in its order.
        numbers: their positions in `config.sources`.
        orders: that files give them.
        fim: of the sources.
        cursor: where to go on, instead of the beginning.

    Raises:
        CursorMismatchError: when the cursor's past is not this stream's.
    """
    starts, phases = zip(*config.in_phases(), strict=True)
    pasts = cursor.sources if cursor is not None else {}
    if cursor is not None:
        check_past(cursor, list(phases), sources, numbers, orders, fim)
    first = cursor.phase if cursor is not None else 0
    groups = [[phase.shuffle_of(n) or 0 for n in numbers] for phase in phases]
    axes: list[SourceAxis] = []
    for at, source in enumerate(sources):
        past = pasts.get(source.name)
        eras = [Era(0, 0, past.shards if past is not None else _shards(source), groups[first][at])]
        if past is not None and past.eras:
            eras = [Era(era.epoch, era.start, era.shards, era.shuffle) for era in past.eras]
        order = orders[at]
        axes.append(SourceAxis(source.name, source, config.seed, eras, order.shards if order is not None else None))
    blends = [
        BlendPhase(start, weights_of(phase, sources, numbers), _round_tokens(phase, sources, numbers))
        for start, phase in zip(starts, phases, strict=True)
    ]
    origin = _origin(cursor, len(sources), sources)
    if cursor is not None:
        # A source that has grown takes its new shards in with the first epoch that begins after what is being
        # delivered.
        before = Blend(_shares(config, axes, numbers), blends, origin)
        positions = before.positions(cursor.next_round)
        for at, source in enumerate(sources):
            if axes[at].eras[-1].shards < _shards(source):
                axes[at] = axes[at].changed(positions[at], _shards(source), axes[at].eras[-1].shuffle)
    blend = Blend(_shares(config, axes, numbers), blends, origin)
    if cursor is not None:
        check_future(cursor, blend)
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
    return Run(planner, list(phases), decided, sources, numbers, orders, fim)


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
