"""What the first round says of a run: padding, read amplification, memory."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streampipe.cursor import Cursor
from streampipe.errors import ConfigError
from streampipe.parallel import Topology
from streampipe.plan.balance import Rows, doubts
from streampipe.plan.documents import pack_documents
from streampipe.plan.round_plan import RoundPlan
from streampipe.stream import Stream

# Bytes that a piece takes in a plan: seven to nine arrays of its own, eight to ten of the ground, rounded up for what
# planning holds for a moment.
_BYTES_OF_A_PIECE = 300


@dataclass(frozen=True)
class Forecast:
    """What is to be expected of a run, from one round of it.

    Attributes:
        rounds: of a finite run; None for an endless one.
        windows, sequences: of the round.
        padding: share of positions without a token.
        read_amplification: frames read by all ranks together, over the frames there are.
        resident_bytes: what the loader of a rank holds in memory at most: decoded frames of two rounds, two plans,
            batches; all of it again in each worker process.
        plan_hash: of the round's plan.
    """

    rounds: int | None
    windows: int
    sequences: int
    padding: float
    read_amplification: float
    resident_bytes: int
    plan_hash: str

    def __str__(self) -> str:
        rounds = "endless rounds" if self.rounds is None else f"{self.rounds} rounds"
        return (
            f"{rounds} of about {self.sequences} sequences in {self.windows} windows; resident memory up to "
            f"{self.resident_bytes / 2**20:.0f} MiB "
            f"a rank, expected padding {self.padding:.2%}, frames read {self.read_amplification:.2f} times over all "
            "ranks"
        )


def forecast(stream: Stream, topology: Topology, cursor: Cursor) -> Forecast:
    """Plan the round of the cursor and describe it.

    With one column a rank or more, a rank reads the frames of its columns; with fewer windows than ranks, several ranks
    read the same window.
    """
    first = cursor.sequences - cursor.offset  # sequences of the run before the round
    plan = stream.planner.round(cursor.round, first=first)
    config = stream.config
    column = np.repeat(np.arange(len(plan)) % plan.windows, np.diff(plan.sequence_start))
    reader = (column + first) % plan.windows * topology.dp_size // plan.windows
    reads = len(np.unique(reader * max(1, len(plan.frames)) + plan.pieces.occurrence))
    amplification = reads / max(1, len(plan.frames)) * max(1.0, topology.dp_size / plan.windows)
    padding = plan.padding()
    if config.batch.batch_by == "documents":
        size = stream.size_of_step(stream.place(cursor))
        amplification = _reads_of_documents(plan, topology.dp_size)
        padding = _padding_of_documents(plan, size, config.batch.sequence_multiple)
    itemsize = max(source.token_dtype.itemsize for source in stream.sources)
    tokens = int(plan.totals.taken_tokens.sum())
    share = min(1.0, amplification / topology.dp_size)
    # Of those that are made at once, some are being made and some in use while those that are prefetched wait.
    batches = config.loader.prefetch + 2 * stream.micro_batches_at_once(plan.seq_length)
    batch_bytes = config.batch.micro_batch_size * plan.seq_length * 28 * batches
    resident = int(2 * tokens * itemsize * share) + 2 * len(plan.pieces) * _BYTES_OF_A_PIECE + batch_bytes
    resident *= max(1, config.loader.num_workers)
    return Forecast(stream.planner.rounds, plan.windows, len(plan), padding, amplification, resident, _hash(plan))


def _reads_of_documents(plan: RoundPlan, dp_size: int) -> float:
    """Expect that each document of a frame goes to any rank: a frame of many documents is read by all ranks."""
    documents = np.bincount(plan.pieces.occurrence, minlength=len(plan.frames))
    return float(np.mean(dp_size * (1 - (1 - 1 / dp_size) ** documents))) if len(documents) else 1.0


def _padding_of_documents(plan: RoundPlan, size: int, multiple: int) -> float:
    """Pack the first `size` documents of the round, without the empty sequences that complete the last micro batch."""
    count = min(len(plan), size)
    if not count:
        return 0.0
    sequences = int(pack_documents(plan.slots[:count], plan.cost[:count], plan.seq_length, multiple).max()) + 1
    tokens = int(plan.pieces.length[: plan.sequence_start[count]].sum())
    return 1 - tokens / (sequences * plan.seq_length)


def check_shares(stream: Stream, cursor: Cursor) -> list[str]:
    """Refuse a source that `overlong` takes most of its weight from; return what is to be said of the others.

    Raises:
        ConfigError: when a source would deliver under half of the tokens that it is weighted for, unless it says
            `accept_loss`.
    """
    totals = stream.planner.round(cursor.round, first=cursor.sequences - cursor.offset).totals
    told: list[str] = []
    lost = totals.truncated_tokens + totals.dropped_tokens
    for source, number, gone, taken in zip(
        stream.sources, stream.numbers, lost.tolist(), totals.taken_tokens.tolist(), strict=True
    ):
        if gone * 2 > taken and not stream.config.sources[number].accept_loss:
            raise ConfigError(
                f"$.sources[{number}]: {source.name!r} would deliver {1 - gone / taken:.1%} of the tokens that its "
                "weight counts, since "
                f"packing.overlong takes the rest; choose overlong: split, a longer seq_length, or accept_loss: true"
            )
        if gone:
            told.append(f"{source.name} loses {gone / taken:.2%} of its tokens to packing.overlong")
    return told


def doubts_of_balance(stream: Stream, topology: Topology, cursor: Cursor) -> list[str]:
    """Return in words why `plan.balance: cost` does not pay for a run; nothing where it does, or is off."""
    layout = stream.planner.layout(cursor.round)
    if layout.even_rows is None:
        return []
    first = cursor.sequences - cursor.offset
    plan = stream.planner.round(cursor.round, first=first)
    rows = Rows(layout.windows, first, layout.even_rows)
    return doubts(plan.cost, rows, stream.size_of_step(stream.place(cursor)), topology.dp_size)


def check_memory(expected: Forecast) -> None:
    """Refuse what cannot fit into this machine.

    Raises:
        ConfigError: with the cure.
    """
    available = available_memory()
    if available is not None and expected.resident_bytes > available:
        raise ConfigError(
            f"$.plan: a round would hold up to {expected.resident_bytes / 2**30:.1f} GiB in memory on each rank, but "
            f"{available / 2**30:.1f} GiB are "
            "available; lower plan.windows or plan.window_tokens, use more data-parallel ranks (a rank holds its "
            "share of a round), or lower loader.num_workers (each worker process holds as much as a rank without any)"
        )


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may still take.

    Of the machine or of its cgroup, whichever is less; None if unknown.
    """
    limits: list[int] = []
    try:
        meminfo = (root / "proc/meminfo").read_text()
        limits.append(int(meminfo.split("MemAvailable:")[1].split()[0]) * 1024)
    except (OSError, IndexError, ValueError):
        return None
    try:
        group = root / "sys/fs/cgroup"
        limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no cgroup, or one without a limit
    return min(limits)


def _hash(plan: RoundPlan) -> str:
    digest = hashlib.sha256()
    for array in (
        plan.sequence_start,
        plan.pieces.occurrence,
        plan.pieces.document,
        plan.pieces.start,
        plan.pieces.length,
    ):
        digest.update(np.ascontiguousarray(array, np.int64).tobytes())
    return digest.hexdigest()[:16]
