"""Packing by documents per step against Megatron's `dp_balanced` scheduler, on lengths like Llama 3's SFT data.

    python benchmarks/documents.py

99.89 % of documents of 1,000 tokens on average (lognormal, sigma 1), 0.11 % of 37,000 (sigma 0.5), cut at `seq_length`.
Both get the same documents in the same order, step after step. Megatron's rule is written down here as its sources
have it: next-fit in order of arrival, then single documents taken off the last sequences until the
number of sequences is a multiple of `dp_size`.

`multiple` is streampipe with `batch.sequence_multiple` set to `dp_size`: a canonical number that the user chooses.

Micro batches are those of a rank per step, of one sequence each. Imbalance is the time of a step whose ranks wait for
each other after every micro batch, over that of equal work; `step` where they wait at its end only. Time is the
former times the cost, relative to Megatron's: the cost is the same, so it is what a step takes.
"""

import numpy as np

from streampipe.plan.balance import imbalance_of
from streampipe.plan.documents import costs_of_packed, deal_sequences, pack_documents
from streampipe.plan.round_plan import COST_OF_A_TOKEN

STEPS = 40
CASES = [
    (seq_length, dp_size, documents)
    for seq_length in (16_384, 131_072)
    for dp_size, documents in ((8, 512), (8, 2048), (64, 4096), (64, 16_384))
]


def lengths(generator: np.random.Generator, count: int, seq_length: int) -> np.ndarray:
    short = np.exp(generator.normal(np.log(1000) - 0.5, 1.0, count))
    long = np.exp(generator.normal(np.log(37_000) - 0.125, 0.5, count))
    drawn = np.where(generator.random(count) < 0.0011, long, short)
    return np.clip(drawn, 1, seq_length).astype(np.int64)


def dp_balanced(slots: np.ndarray, capacity: int, dp_size: int) -> list[list[int]]:
    """Megatron-LM: next-fit, then the last document of one sequence after another made a sequence of its own."""
    sequences: list[list[int]] = [[]]
    room = capacity
    for document, slot in enumerate(slots.tolist()):
        if slot > room and sequences[-1]:
            sequences.append([])
            room = capacity
        sequences[-1].append(document)
        room -= slot
    missing = -len(sequences) % dp_size
    donor = len(sequences) - 1
    while missing:
        if donor < 0:
            raise AssertionError("Not enough samples to move")
        while missing and len(sequences[donor]) > 1:
            sequences.append([sequences[donor].pop()])
            missing -= 1
        donor -= 1
    return sequences


def of_megatron(slots: np.ndarray, costs: np.ndarray, seq_length: int, dp_size: int) -> tuple[int, np.ndarray]:
    sequences = dp_balanced(slots, seq_length, dp_size)
    cost = np.array([costs[documents].sum() for documents in sequences])
    return len(sequences), cost.reshape(-1, dp_size).T


def of_multiple(slots: np.ndarray, costs: np.ndarray, seq_length: int, dp_size: int) -> tuple[int, np.ndarray]:
    return of_streampipe(slots, costs, seq_length, dp_size, dp_size)


def of_streampipe(
    slots: np.ndarray, costs: np.ndarray, seq_length: int, dp_size: int, multiple: int = 1
) -> tuple[int, np.ndarray]:
    sequence = pack_documents(slots, costs, seq_length, multiple)
    cost = np.append(costs_of_packed(sequence, costs), 0)  # -1, an empty sequence, costs nothing
    return int(sequence.max()) + 1, cost[deal_sequences(cost[:-1], dp_size, 1)]


RULES = {"dp_balanced": of_megatron, "streampipe": of_streampipe, "multiple": of_multiple}


def main() -> None:
    print("| seq_length | dp_size, documents a step | micro batches | sequences | step | lockstep | time |")
    print("|---|---|---|---|---|---|---|")
    for seq_length, dp_size, documents in CASES:
        generator = np.random.Generator(np.random.Philox(7))
        drawn = [lengths(generator, documents, seq_length) for _ in range(STEPS)]
        waited: dict[str, float] = {}
        for name, rule in RULES.items():
            micro_batches, sequences, times, ends, mean = 0, 0, 0.0, 0.0, 0.0
            for slots in drawn:
                used, costs = rule(slots, slots * (slots + COST_OF_A_TOKEN), seq_length, dp_size)
                found = imbalance_of(costs[None])
                mean_of_rank = costs.sum() / dp_size
                micro_batches += costs.shape[1]
                sequences += used
                times += found.lockstep * mean_of_rank
                ends += found.step * mean_of_rank
                mean += mean_of_rank
            waited[name] = times
            print(
                f"| {seq_length} | {dp_size}, {documents}: {name} | {micro_batches / STEPS:.2f} | "
                f"{sequences / STEPS:.1f} | {ends / mean:.3f} | {times / mean:.3f} | "
                f"{times / waited['dp_balanced']:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
