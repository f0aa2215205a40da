"""A whole run simulated from indexes alone, before it costs a GPU hour."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.assemble.batch_config import BatchConfig
from streampipe.config import StreamConfig
from streampipe.forecast import forecast
from streampipe.parallel import Topology
from streampipe.plan.documents import costs_of_packed, deal_sequences, pack_documents
from streampipe.plan.schedule import COUNTED, Schedule, StepPlan
from streampipe.stream import Stream, open_stream
from streampipe.tools.rounds import Rounds, RoundStats, in_order

# Points of a run that a report shows.
_SAMPLES = 200
# What evens out the work of ranks, for steps of sequences and of documents.
_EVENER = (
    "more sequences a step on each rank even it out, or plan.balance: cost",
    "more documents a step even it out, or batch.sequence_multiple",
)


@dataclass
class Simulation:
    """What a run of some steps reads and gives.

    Attributes:
        steps, sequences, tokens, positions: of all ranks; sequences as they come in batches, the empty ones too.
        documents, split, pieces, empty_sequences: as planned; documents and pieces of the rounds that were touched.
        sources: per source, what was counted, its epochs and share.
        imbalance: max over mean of the ranks' cost, per step: mean and max; `lockstep` the same with ranks that wait
            for each other after each micro batch.
        frames, reads, stored_bytes: of the rounds that were touched; a read is one rank's of one frame.
        memory_bytes: that the loader of a rank holds at most.
        history: some steps on the way: tokens, shares and epochs of the sources, padding.
        warnings: in words.
        ended: whether a finite run came to its end.
    """

    steps: int = 0
    sequences: int = 0
    tokens: int = 0
    positions: int = 0
    documents: int = 0
    split: int = 0
    pieces: int = 0
    empty_sequences: int = 0
    sources: list[dict[str, Any]] = field(default_factory=list)
    imbalance: dict[str, float] = field(default_factory=dict)
    frames: int = 0
    reads: int = 0
    stored_bytes: int = 0
    memory_bytes: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ended: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "steps": self.steps,
            "sequences": self.sequences,
            "tokens": self.tokens,
            "padding": 1 - self.tokens / self.positions if self.positions else 0.0,
            "documents": self.documents,
            "split_documents": self.split,
            "empty_sequences": self.empty_sequences,
            "sources": self.sources,
            "imbalance": self.imbalance,
            "frames": self.frames,
            "read_amplification": self.reads / self.frames if self.frames else 0.0,
            "bytes": self.stored_bytes,
            "requests": self.reads,
            "memory_bytes": self.memory_bytes,
            "ended": self.ended,
            "warnings": self.warnings,
        }


def simulate(
    config: StreamConfig,
    *,
    dp_size: int = 1,
    steps: int | None = None,
    tokens: int | None = None,
    processes: int | None = None,
    progress: Callable[[Simulation], None] = lambda _: None,
) -> Simulation:
    """Plan a run and say what it reads and gives.

    Args:
        config: the stream.
        dp_size: ranks.
        steps: how many; or
        tokens: how many real tokens at least. Neither: one pass over everything, or all of a finite run.
        processes: 1 plans in this process; None takes a process for each core.
        progress: called after each round.

    Raises:
        ConfigError: when config and ranks do not fit together.
    """
    topology, batch = Topology(dp_size=dp_size), config.batch
    stream = open_stream(config)
    for size in stream.step_size.sizes([phase.seq_length for _, phase in config.in_phases()]):
        topology.check_batch(size, batch.micro_batch_size, batch.batch_by, batch.global_batch_tokens)
    start = stream.start()
    one_pass = sum(int(source.shard_tokens.sum()) for source in stream.sources)
    if steps is None and tokens is None and stream.planner.rounds is None:
        tokens = one_pass
    found = Simulation(memory_bytes=forecast(stream, topology, start).resident_bytes)
    costs, history = _Costs(config.batch.micro_batch_size), _History()

    def met(stats: RoundStats) -> None:
        found.documents += stats.documents
        found.split += stats.split
        found.pieces += stats.pieces
        found.frames += stats.frames
        found.reads += stats.reads
        found.stored_bytes += stats.stored_bytes
        progress(found)

    with Rounds(config, start, dp_size, processes) as rounds:
        schedule = Schedule(stream.planner, stream.place(start), in_order(rounds, stream.planner, met))
        while (steps is None or found.steps < steps) and (tokens is None or found.tokens < tokens):
            step = schedule.next(stream.size_of_step(schedule.place))
            if step is None:
                found.ended = True
                break
            of_ranks = _costs_of_ranks(step, config.batch, dp_size)
            costs.count(of_ranks)
            _count(found, step, of_ranks)
            history.see(found, step)
    found.history = history.points(stream)
    found.imbalance = costs.summary()
    found.sources = _sources(stream, schedule.place.counts)
    found.warnings = _warnings(stream, found)
    return found


def _costs_of_ranks(step: StepPlan, batch: BatchConfig, dp_size: int) -> NDArray[np.int64]:
    """Return what each rank's sequences cost, 0 for an empty one, in their order: int64 [dp_size, rows]."""
    if batch.batch_by == "sequences":
        return step.costs_of_ranks(dp_size)
    costs = step.costs()
    sequence = pack_documents(step.slots(), costs, step.seq_length, batch.sequence_multiple)
    packed = costs_of_packed(sequence, costs)
    return np.append(packed, 0)[deal_sequences(packed, dp_size, batch.micro_batch_size)]


def _count(found: Simulation, step: StepPlan, of_ranks: NDArray[np.int64]) -> None:
    found.steps += 1
    found.sequences += of_ranks.size
    found.empty_sequences += int((of_ranks == 0).sum())
    found.positions += of_ranks.size * step.seq_length
    found.tokens = int(step.after.counts[:, 0].sum())


class _History:
    """Steps on the way, thinned out as they become many."""

    def __init__(self) -> None:
        self._every = 1
        self._seen: list[tuple[int, int, NDArray[np.int64]]] = []

    def see(self, found: Simulation, step: StepPlan) -> None:
        if found.steps % self._every:
            return
        self._seen.append((found.steps, found.positions, step.after.counts))
        if len(self._seen) > 2 * _SAMPLES:
            self._seen, self._every = self._seen[1::2], 2 * self._every

    def points(self, stream: Stream) -> list[dict[str, Any]]:
        return [
            {"step": step, "padding": 1 - int(counts[:, 0].sum()) / positions, "sources": _sources(stream, counts)}
            for step, positions, counts in self._seen
        ]


class _Costs:
    """How unequal the ranks' work is."""

    def __init__(self, micro_batch_size: int) -> None:
        self._micro_batch_size = micro_batch_size
        self._by_step: list[float] = []
        self._lockstep: list[float] = []

    def count(self, of_ranks: NDArray[np.int64]) -> None:
        micro = of_ranks.reshape(len(of_ranks), -1, self._micro_batch_size).sum(axis=2)
        mean = micro.sum() / len(micro)
        if mean:
            self._by_step.append(float(micro.sum(axis=1).max() / mean))
            self._lockstep.append(float(micro.max(axis=0).sum() / mean))

    def summary(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for prefix, values in (("", self._by_step), ("lockstep_", self._lockstep)):
            found[f"{prefix}mean"] = float(np.mean(values)) if values else 1.0
            found[f"{prefix}max"] = float(np.max(values)) if values else 1.0
        return found


def _sources(stream: Stream, counts: NDArray[np.int64]) -> list[dict[str, Any]]:
    total = max(1, int(counts[:, 0].sum()))
    found = []
    for source, axis, row in zip(stream.sources, stream.planner.axes, counts.tolist(), strict=True):
        counted = dict(zip(COUNTED, row, strict=True))
        epochs = axis.epochs_until(counted["tokens"] + counted["truncated_tokens"] + counted["dropped_tokens"])
        found.append({"name": source.name, **counted, "epochs": epochs, "share": counted["tokens"] / total})
    return found


def _warnings(stream: Stream, found: Simulation) -> list[str]:
    """Say in words what a careful person would want to know."""
    told = []
    for source in found.sources:
        lost = source["truncated_tokens"] + source["dropped_tokens"]
        if source["epochs"] > 4:
            told.append(
                f"source `{source['name']}` reaches epoch {source['epochs']:.1f}: its documents are read again and "
                "again"
            )
        if lost and lost / (lost + source["tokens"]) > 0.01:
            share = lost / (lost + source["tokens"])
            told.append(f"source `{source['name']}` loses {share:.1%} of its tokens to packing.overlong")
    by_documents = stream.config.batch.batch_by == "documents"  # of a frame they go to all ranks, as they must
    if found.frames and found.reads / found.frames > 1.5 and not by_documents:
        told.append(
            f"ranks read each frame {found.reads / found.frames:.1f} times: make global_batch_size a multiple of "
            "plan.windows, and "
            f"plan.windows of dp_size"
        )
    if found.imbalance["lockstep_mean"] > 1.2:
        told.append(
            f"ranks wait for the dearest: lockstep imbalance {found.imbalance['lockstep_mean']:.2f} on average; "
            f"{_EVENER[by_documents]}"
        )
    if found.positions and 1 - found.tokens / found.positions > 0.05:
        told.append(f"{1 - found.tokens / found.positions:.1%} of positions are padding")
    return told
