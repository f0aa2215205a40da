"""Fill against frames read: three ways to pack a round's windows.

    python benchmarks/packing.py

`apart` packs each window of dealt frames alone; `together` packs all windows as one; `borders` is what streampipe does:
windows take as many tokens as whole sequences hold. 64 columns, one a rank; lognormal lengths, the default round of 64
windows.
"""

import time

import numpy as np

from streampipe import config_from
from streampipe.plan.packing import best_fit
from streampipe.plan.round_plan import RoundPlan
from streampipe.plan.sequence_order import level_columns
from streampipe.plan.windows import deal_frames
from streampipe.stream import Stream, open_stream

CASES = [(2048, 1000, 1.2), (8192, 1000, 1.2), (8192, 3000, 1.3), (32_768, 1000, 1.2), (131_072, 1000, 1.2)]
ROUNDS = 4


def stream(seq_length: int, mean: float, sigma: float) -> Stream:
    mock = {"documents": 2_000_000, "mean": mean, "sigma": sigma}
    return open_stream(config_from({"seq_length": seq_length, "sources": [{"name": "mock", "mock": mock}]}))


def reads_of(plan: RoundPlan, window: np.ndarray, bins: np.ndarray) -> float:
    """Frames read by 64 columns over frames there are, when sequence `bins` of each piece belongs to `window`."""
    column = level_columns(window, plan.windows)[bins]
    return len(np.unique(column * len(plan.frames) + plan.pieces.occurrence)) / len(plan.frames)


def apart(plan: RoundPlan) -> tuple[float, float]:
    sizes = np.bincount(plan.pieces.occurrence, weights=plan.pieces.slot, minlength=len(plan.frames)).astype(np.int64)
    window_of_piece = deal_frames(sizes, plan.windows)[plan.pieces.occurrence]
    bins, window, used = np.empty(len(plan.pieces), np.int64), [], 0
    for number in range(plan.windows):
        rows = np.flatnonzero(window_of_piece == number)
        own, count = best_fit(plan.pieces.slot[rows], plan.seq_length, None)
        bins[rows] = own + used
        used += count
        window += [number] * count
    return fill(plan, used), reads_of(plan, np.array(window), bins)


def together(plan: RoundPlan) -> tuple[float, float]:
    bins, used = best_fit(plan.pieces.slot, plan.seq_length, None)
    window = np.sort(np.arange(used) % plan.windows)
    return fill(plan, used), reads_of(plan, window, bins)


def fill(plan: RoundPlan, sequences: int) -> float:
    return float(plan.pieces.length.sum()) / (sequences * plan.seq_length)


def main() -> None:
    ways = "apart: fill, reads | together: fill, reads | borders: fill, reads (worst round)"
    print(f"| seq_length, mean, sigma | {ways} | µs a document |")
    print("|---|---|---|---|---|")
    for seq_length, mean, sigma in CASES:
        planner = stream(seq_length, mean, sigma).planner
        rows, micros = [], []
        for number in range(ROUNDS):
            began = time.perf_counter()
            plan = planner.round(number)
            micros.append((time.perf_counter() - began) * 1e6 / int((plan.pieces.start == 0).sum()))
            ours = (1 - plan.padding(), len(plan.frames_by_column()) / len(plan.frames))
            rows.append((*apart(plan), *together(plan), *ours))
        a_fill, a_reads, t_fill, t_reads, fills, reads = np.array(rows).T
        print(
            f"| {seq_length}, {mean}, {sigma} | {a_fill.mean():.2%}, {a_reads.mean():.2f} | {t_fill.mean():.2%}, "
            f"{t_reads.mean():.2f} "
            f"| {fills.mean():.2%}, {reads.mean():.3f} ({fills.min():.2%}, {reads.max():.3f}) | {min(micros[1:]):.2f} |"
        )


if __name__ == "__main__":
    main()
