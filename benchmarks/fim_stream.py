"""A million mock documents through a stream with fill-in-the-middle: is any piece not what it must be?

    python benchmarks/fim_stream.py [--documents 1001000] [--seed 1] [--rate 0.5] [--spm-rate 0.5] [--multiple 1]

Every piece that the stream delivers is checked: a transformed one has its three sentinels, each directly before its
part, and all of its document; no piece is longer than its slot or crosses the end of a sequence; every document comes
once. Rates must be within four deviations of a binomial distribution. Padding is compared with that of the same stream
without fill-in-the-middle, whose plan alone is made. The last line is JSON.
"""

import argparse
import json
from collections import Counter
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe import build_loader, config_from
from streampipe.assemble.fim_cuts import FIM_COUNTS
from streampipe.config import StreamConfig
from streampipe.stream import open_stream

SEQ_LENGTH = 8192
SENTINELS = {"prefix": 1, "suffix": 2, "middle": 3}
PREFIX, SUFFIX, MIDDLE, SENTINEL = 1, 2, 3, 4


def stream_config(settings: argparse.Namespace, fim: dict[str, Any] | None) -> StreamConfig:
    source: dict[str, Any] = {"name": "mock", "epochs": 1}
    source["mock"] = {"documents": settings.documents, "mean": 1000, "max": 8000}
    return config_from(
        {
            "seed": settings.seed,
            "seq_length": SEQ_LENGTH,
            "sources": [source | ({"fim": fim} if fim else {})],
            "packing": {"document_multiple": settings.multiple},
            "plan": {"windows": 16},
            "batch": {
                "global_batch_size": 64,
                "micro_batch_size": 16,
                "fields": ["tokens", "fim_parts"] if fim else ["tokens"],
            },
            "loader": {"log_every": 0},
        }
    )


def require(holds: NDArray[np.bool_], what: str, batch: dict[str, Any]) -> None:
    if not holds.all():
        raise AssertionError(f"{what}: {(~holds).sum()} pieces of step {batch['step']}, {batch['document_ids']}")


def checked(batch: dict[str, Any], lengths: NDArray[np.int64], seen: NDArray[np.int64]) -> Counter:
    """Check every piece of a micro batch."""
    arrays = {name: value.numpy() for name, value in batch.items() if hasattr(value, "numpy")}
    own = np.flatnonzero(arrays["source_ids"] >= 0)
    begin, room = arrays["cu_seqlens_padded"][:-1][own], np.diff(arrays["cu_seqlens_padded"])[own]
    real, document = np.diff(arrays["cu_seqlens"])[own], arrays["document_ids"][own]
    kinds = arrays["fim_parts"]
    before = {kind: np.concatenate([[0], np.cumsum(kinds == kind)]) for kind in (PREFIX, SUFFIX, MIDDLE, SENTINEL)}
    size = {kind: counts[begin + real] - counts[begin] for kind, counts in before.items()}
    hit = size[SENTINEL] > 0
    require(real <= room, "longer than their slots", batch)
    require(begin // SEQ_LENGTH == (begin + room - 1) // SEQ_LENGTH, "cross the end of a sequence", batch)
    require(size[SENTINEL] == 3 * hit, "do not have three sentinels", batch)
    require(real - 3 * hit == lengths[document], "do not have all of their document", batch)
    require(hit | (size[PREFIX] + size[SUFFIX] + size[MIDDLE] == 0), "have parts without sentinels", batch)
    start, end = begin[hit], (begin + real)[hit]
    one, two, three = np.flatnonzero(kinds == SENTINEL).reshape(-1, 3).T
    prefix, suffix, middle = (size[kind][hit] for kind in (PREFIX, SUFFIX, MIDDLE))
    ids = arrays["tokens"][np.stack([one, two, three])] == np.array([list(SENTINELS.values())]).T
    require(ids.all(0) & (one == start), "have other sentinels", batch)
    first = (two == one + 1 + prefix) & (three == two + 1 + suffix) & (end == three + 1 + middle)
    first &= _filled(before[PREFIX], one + 1, two) & _filled(before[SUFFIX], two + 1, three)
    second = (two == one + 1) & (three == two + 1 + suffix) & (end == three + 1 + prefix + middle)
    second &= _filled(before[SUFFIX], two + 1, three) & _filled(before[PREFIX], three + 1, three + 1 + prefix)
    require((first | second) & _filled(before[MIDDLE], end - middle, end), "are cut from their sentinels", batch)
    np.add.at(seen, document, 1)
    told = dict(zip(FIM_COUNTS, batch["fim_counts"][0], strict=True))
    both = int((first & second).sum())  # without a prefix the two orders are one
    if not second.sum() - both <= told["spm"] <= second.sum() or told["transformed"] != hit.sum():
        raise AssertionError(f"counts do not agree: {told}, {second.sum()}, {both}, {hit.sum()}")
    return Counter(
        documents=len(own),
        transformed=int(hit.sum()),
        spm=told["spm"],
        left=told["too_long"],
        tokens=int(real.sum()),
        positions=len(np.unique(begin // SEQ_LENGTH)) * SEQ_LENGTH,  # without sequences that complete the last step
    )


def _filled(counts: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return where all of a stretch is of the kind that was counted; not where it goes on behind the batch."""
    last = len(counts) - 1
    filled: NDArray[np.bool_] = counts[np.minimum(end, last)] - counts[np.minimum(begin, last)] == end - begin
    return filled


def within(hits: int, of: int, rate: float, what: str) -> float:
    """Return by how many deviations a count is off."""
    deviation = sqrt(of * rate * (1 - rate))
    off = (hits - of * rate) / deviation if deviation else float(hits != of * rate) * 99
    if abs(off) > 4:
        raise AssertionError(f"{what}: {hits} of {of} are {off:.1f} deviations from {rate}")
    return off


def padding_without(settings: argparse.Namespace) -> float:
    stream = open_stream(stream_config(settings, None))
    sequences = tokens = number = 0
    while stream.planner.rounds is None or number < stream.planner.rounds:
        plan = stream.planner.round(number)
        sequences, tokens, number = sequences + len(plan), tokens + int(plan.pieces.length.sum()), number + 1
    return 1 - tokens / (sequences * SEQ_LENGTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_001_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--spm-rate", type=float, default=0.5)
    parser.add_argument("--multiple", type=int, default=1)
    settings = parser.parse_args()
    fim = {"rate": settings.rate, "spm_rate": settings.spm_rate, "level": "token", "sentinels": SENTINELS}
    total: Counter[str] = Counter()
    with build_loader(stream_config(settings, fim)) as loader:
        source = loader.stream.sources[0]
        lengths = np.concatenate([np.pad(own := source.index(shard).lengths, (0, int(most) - len(own)))
                                  for shard, most in enumerate(source.shard_documents)])  # fmt: skip
        seen = np.zeros(len(lengths), np.int64)
        for batch in loader:
            total += checked(batch, lengths, seen)
    if not np.array_equal(seen, lengths > 0):
        raise AssertionError(f"{(seen != (lengths > 0)).sum()} documents did not come once")
    off = within(total["transformed"] + total["left"], total["documents"], settings.rate, "rate")
    off_spm = within(total["spm"], total["transformed"], settings.spm_rate, "spm_rate")
    padding, without = 1 - total["tokens"] / total["positions"], padding_without(settings)
    rates = [total["transformed"] / total["documents"], total["spm"] / max(1, total["transformed"])]
    print("| documents | rate | spm rate | padding with, without, more |\n|---|---|---|---|")
    print(
        f"| {total['documents']} | {rates[0]:.4f} ({off:+.1f} deviations) | {rates[1]:.4f} ({off_spm:+.1f}) | "
        f"{padding:.3%}, {without:.3%}, {padding - without:.3%} |"
    )
    print(json.dumps(total))


if __name__ == "__main__":
    main()
