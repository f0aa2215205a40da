"""How fast a rank's batches come, with data or without, beside the physical limit measured in the same run."""

import os
import resource
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zstandard

from streampipe.config import StreamConfig
from streampipe.cursor import Cursor
from streampipe.errors import ConfigError
from streampipe.loader import StreamLoader, build_loader
from streampipe.meter import tokens_of
from streampipe.parallel import Topology
from streampipe.shards.source import Source
from streampipe.stream import Stream

# Frames of the first round that are decoded bare, to know the limit.
_BARE_FRAMES = 256


@dataclass(frozen=True)
class BenchResult:
    """What one rank's loader did.

    Attributes:
        tokens_per_second: real tokens, after the first batch.
        cpu_seconds_per_billion_tokens: of this process, all threads.
        padding: share of positions without a token.
        time_to_first_batch: seconds from the config to the first batch; imports counted apart, in import_seconds.
        wait_p50, wait_p99: seconds that the loop waited for a batch.
        peak_rss_bytes: of this process; rss_growth_bytes: over what it had before the loader was built.
        decode_share: tokens_per_second over bare single-threaded zstd decoding of the same frames into memory that is
            kept; null without compressed frames. decode_share_discarding: where decoded frames are thrown away.
        planning_microseconds_per_document: of the round planner alone, indexes in memory.
        steps, batches, tokens: how much was delivered to this rank; whole steps.
        fim: realised rates and counts of fill-in-the-middle; null without any.
    """

    tokens_per_second: float
    cpu_seconds_per_billion_tokens: float
    padding: float
    time_to_first_batch: float
    import_seconds: float
    wait_p50: float
    wait_p99: float
    peak_rss_bytes: int
    rss_growth_bytes: int
    decode_share: float | None
    decode_share_discarding: float | None
    bare_decode_tokens_per_second: float | None
    planning_microseconds_per_document: float
    steps: int
    batches: int
    tokens: int
    fim: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def bench(
    config: StreamConfig, steps: int, *, dp_size: int = 1, at: float = 0.0, import_seconds: float = 0.0
) -> BenchResult:
    """Deliver the batches of dp_rank 0 for `steps` steps, and measure.

    Args:
        config: the stream.
        steps: how many; fewer if a finite run ends.
        dp_size: how many ranks share the stream; the others are not run.
        at: part of the first epoch to start at, from 0 to 1.
        import_seconds: passed through.

    Raises:
        ConfigError: for `at` outside 0 and 1, or a stream that gives less than two batches.
    """
    before = _rss()
    began = time.perf_counter()
    with build_loader(config, Topology(dp_size=dp_size)) as loader:
        if at:
            loader.load_state_dict(cursor_at(loader.stream, at).to_dict())
        first = next(loader)
        to_first = time.perf_counter() - began
        limit_before = bare_decode_rate(loader.stream)
        measured = _deliver(loader, steps, first)
        limit_after = bare_decode_rate(loader.stream)
        discarding = bare_decode_rate(loader.stream, keep=False)
        planning = _planning_rate(loader.stream)
        fim = loader.metrics().get("fim")
    if not measured.batches:
        raise ConfigError(
            f"the stream gave {measured.batches + 1} batch in {steps} steps; nothing can be measured; ask for more "
            "steps or more documents"
        )
    rate = measured.tokens / measured.seconds
    limit = (limit_before + limit_after) / 2 if limit_before and limit_after else None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return BenchResult(
        tokens_per_second=rate,
        cpu_seconds_per_billion_tokens=measured.cpu_seconds / measured.tokens * 1e9,
        padding=1 - measured.tokens / measured.positions,
        time_to_first_batch=to_first,
        import_seconds=import_seconds,
        wait_p50=float(np.quantile(measured.waits, 0.5)),
        wait_p99=float(np.quantile(measured.waits, 0.99)),
        peak_rss_bytes=peak,
        rss_growth_bytes=max(0, peak - before),
        decode_share=rate / limit if limit else None,
        decode_share_discarding=rate / discarding if discarding else None,
        bare_decode_tokens_per_second=limit,
        planning_microseconds_per_document=planning,
        steps=measured.steps,
        batches=measured.batches + 1,
        tokens=measured.tokens + tokens_of(first),
        fim=fim,
    )


def cursor_at(stream: Stream, at: float) -> Cursor:
    """Return the cursor of the round at a part of the first epoch (of the largest source, where epochs differ).

    Raises:
        ConfigError: for a part outside 0 and 1.
    """
    if not 0 <= at <= 1:
        raise ConfigError(f"--at: must be within 0 and 1, the part of the epoch to start at, but got {at}")
    segment = stream.planner.blend.segments[0]
    rounds = max(
        int(source.shard_tokens.sum()) / (segment.round_tokens * weight)
        for source, weight in zip(stream.sources, segment.weights, strict=True)
        if weight
    )
    return msgspec.structs.replace(stream.start(), round=min(int(rounds * at), max(0, int(rounds) - 1)))


@dataclass
class _Measured:
    tokens: int = 0
    positions: int = 0
    steps: int = 0
    batches: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    waits: list[float] = field(default_factory=list)


def _deliver(loader: StreamLoader, steps: int, first: dict[str, Any]) -> _Measured:
    measured = _Measured(steps=_ends_step(first))
    began, cpu = time.perf_counter(), time.process_time()
    while measured.steps < steps:
        asked = time.perf_counter()
        batch = next(loader, None)
        if batch is None:
            break
        measured.waits.append(time.perf_counter() - asked)
        measured.tokens += tokens_of(batch)
        measured.positions += batch["tokens"].numel()
        measured.steps += _ends_step(batch)
        measured.batches += 1
    measured.seconds, measured.cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    return measured


def _ends_step(batch: dict[str, Any]) -> int:
    return int(batch["micro_batch"] + 1 == batch["num_micro_batches"])


def bare_decode_rate(stream: Stream, *, keep: bool = True) -> float | None:
    """Return the tokens per second of bare single-threaded zstd decoding of the first round's frames.

    With `keep` the decoded frames stay in memory, as they must for whoever packs documents of many frames; without it
    each is thrown away at once, so that all are decoded into the same few hot cache lines. None if none is compressed.
    """
    frames = stream.planner.round(0).frames
    stored: list[bytes] = []
    tokens = 0
    for source, shard, frame in zip(frames.source.tolist(), frames.shard.tolist(), frames.frame.tolist(), strict=True):
        opened = stream.sources[source]
        if not isinstance(opened, Source) or opened.manifest.compression != "zstd" or len(stored) == _BARE_FRAMES:
            continue
        index = opened.index(shard)
        span = (opened.shards[shard].path, int(index.offset[frame]), int(index.compressed_bytes[frame]))
        stored += opened.store.read_ranges([span])
        tokens += int(index.tokens[frame])
    if not stored:
        return None
    decompressor = zstandard.ZstdDecompressor()
    began = time.perf_counter()
    decoded = [decompressor.decompress(data) if keep else len(decompressor.decompress(data)) for data in stored]
    elapsed = time.perf_counter() - began
    del decoded
    return tokens / elapsed


def _planning_rate(stream: Stream) -> float:
    """Return what planning a document takes, in microseconds, indexes in memory."""
    stream.planner.round(0), stream.planner.round(1)
    began = time.perf_counter()
    plan = stream.planner.round(0)
    return (time.perf_counter() - began) * 1e6 / max(1, int(plan.pieces.begun().sum()))


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def seconds_since_process_start() -> float:
    """Return how long ago this process was started: at the top of `main`, what imports took."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - started
