"""What a training loop feels of planning that runs beside it in a thread of its process.

    python benchmarks/interference.py

The loop does 0.2 ms of pure Python at a time, as one that launches kernels does, while a thread plans rounds of 64 x
2^20 tokens without an end: not at all, as the loader does it (a pause after each window), and without pauses.
"""

import time
from threading import Event, Thread

import numpy as np

from streampipe import config_from
from streampipe.planned_rounds import _BREATH
from streampipe.stream import open_stream

SECONDS = 6.0


def work() -> float:
    began = time.perf_counter()
    total = 0
    for number in range(4000):
        total += number
    return time.perf_counter() - began


def loop() -> np.ndarray:
    took, began = [], time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        took.append(work())
    return np.array(took) * 1e3


def beside(pause: float | None) -> tuple[np.ndarray, int]:
    """Run the loop beside planning; return its times in milliseconds and the rounds planned."""
    planner = open_stream(config_from({"seq_length": 8192, "sources": [{"name": "mock", "mock": {}}]})).planner
    stop, rounds = Event(), [0]

    def plan() -> None:
        while not stop.is_set():
            planner.round(rounds[0], lambda: time.sleep(pause) if pause else None)
            rounds[0] += 1

    thread = Thread(target=plan, daemon=True)
    if pause is not None:
        thread.start()
    took = loop()
    stop.set()
    if pause is not None:
        thread.join()
    return took, rounds[0]


def main() -> None:
    print("| planning beside the loop | p50 ms | p99 ms | p99.9 ms | iterations | rounds planned |")
    print("|---|---|---|---|---|---|")
    for name, pause in (("none", None), (f"paced, {_BREATH * 1e3:g} ms after each window", _BREATH), ("unpaced", 0.0)):
        took, rounds = beside(pause)
        p50, p99, p999 = np.quantile(took, [0.5, 0.99, 0.999])
        print(f"| {name} | {p50:.3f} | {p99:.3f} | {p999:.3f} | {len(took)} | {rounds} |")


if __name__ == "__main__":
    main()
