"""How long ranks wait for the one with the long documents, and what evening that out does to the blend.

    python benchmarks/balance.py [--dp-size 64] [--windows 64] [--books 0.06]

Web lengths (mean 1,000, sigma 1.2) blended with 6 % of tokens of books (mean 40,000, sigma 1). Steps of one, four and
eight sequences a window. Orders: `off` is random; `aligned` puts like costs of all windows into a row, over all rows
(even_rows beyond the round); `cost` is what `plan.balance: cost` does by default.

For each: how much longer a step takes than with equal work, when ranks wait at its end, and when they wait after every
micro batch (a rank's are ordered by cost, dearest first, as always); the standard deviation of the share of books per
step, and over random order's; frames read by all ranks over frames there are; positions without a token.
"""

import argparse
from collections.abc import Iterator

import numpy as np

from streampipe import config_from
from streampipe.plan.balance import imbalance_of
from streampipe.plan.schedule import Place, Schedule, StepPlan, rows_of_rank
from streampipe.stream import Stream, open_stream

LENGTHS = (8192, 32_768, 131_072)
HEIGHTS = (1, 4, 8)  # sequences that a step takes of each window
SEQUENCES = {8192: 40_960, 32_768: 20_480, 131_072: 20_480}
ORDERS = {
    "off": {"balance": "off"},
    "aligned": {"balance": "cost", "even_rows": 65_536},
    "even 4": {"balance": "cost", "even_rows": 4},
    "cost": {"balance": "cost"},
}


def stream(seq_length: int, plan: dict[str, object], books: float) -> Stream:
    sources = [
        {"name": "books", "weight": books, "mock": {"documents": 100_000, "mean": 40_000, "sigma": 1.0, "max": 2**20}},
        {"name": "web", "weight": 1 - books, "mock": {"documents": 20_000_000, "sigma": 1.2, "max": 2**20}},
    ]
    return open_stream(config_from({"seed": 1, "seq_length": seq_length, "sources": sources, "plan": plan}))


def steps_of(opened: Stream, global_batch_size: int, sequences: int) -> Iterator[StepPlan]:
    schedule = Schedule(opened.planner, Place(0, 0, 0, 0, np.zeros((2, 5), np.int64)))
    for _ in range(sequences // global_batch_size):
        step = schedule.next(global_batch_size)
        assert step is not None
        yield step


def measure(opened: Stream, global_batch_size: int, dp_size: int, sequences: int) -> tuple[float, ...]:
    """Return imbalance at step ends and in lockstep, standard deviation of the share of books, reads, padding."""
    costs, shares, reads, frames = [], [], set(), {}
    tokens = 0
    for step in steps_of(opened, global_batch_size, sequences):
        cost = step.costs()
        rows = np.stack([rows_of_rank([step], dp_size, rank)[0] for rank in range(dp_size)])
        costs.append(cost[rows])
        taken = (step.after.counts - step.before.counts)[:, 0]
        shares.append(taken[0] / taken.sum())
        tokens += int(taken.sum())
        rank_of = np.empty(global_batch_size, np.int64)
        rank_of[rows] = np.arange(dp_size)[:, None]
        seen = 0
        for span in step.spans:
            plan, count = span.plan, span.last - span.first
            pieces = slice(plan.sequence_start[span.first], plan.sequence_start[span.last])
            reader = np.repeat(rank_of[seen : seen + count], np.diff(plan.sequence_start[span.first : span.last + 1]))
            pairs = np.unique(plan.pieces.occurrence[pieces] * dp_size + reader)
            reads |= {(plan.round, pair) for pair in pairs.tolist()}
            frames[plan.round] = len(plan.frames)
            seen += count
    whole = {n for n in frames if n < max(frames)}  # rounds that were walked to their end
    amplification = sum(n in whole for n, _ in reads) / max(1, sum(frames[n] for n in whole))
    imbalance = imbalance_of(np.stack(costs))
    padding = 1 - tokens / (len(costs) * global_batch_size * opened.config.seq_length)
    return imbalance.step, imbalance.lockstep, float(np.std(shares)), amplification, padding


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dp-size", type=int, default=64)
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--books", type=float, default=0.06)
    args = parser.parse_args()
    print(
        "| seq_length | order | sequences of a window a step | step | lockstep | books' deviation | reads | padding |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for seq_length in LENGTHS:
        random: dict[int, float] = {}
        for order, plan in ORDERS.items():
            opened = stream(seq_length, plan | {"windows": args.windows}, args.books)
            for height in HEIGHTS:
                found = measure(opened, height * args.windows, args.dp_size, SEQUENCES[seq_length] * args.windows // 64)
                step, lockstep, deviation, reads, padding = found
                random.setdefault(height, deviation)
                print(
                    f"| {seq_length} | {order} | {height} | {step:.3f} | {lockstep:.3f} | {deviation:.2%}, "
                    f"{deviation / random[height]:.2f} x | {reads:.3f} | {padding:.2%} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
