"""What fill-in-the-middle costs: microseconds a transformed document, and the share of the loader's rate.

    python benchmarks/fim.py TOKENIZER.json [--documents 2500] [--characters 7000] [--text FOLDER] [--rounds 5]
        [--turns 12]

The texts are the Python sources of the running interpreter, or of a folder. Whole re-encoding is measured beside, in
the same run, on the same cuts. The last line is JSON.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from array import array
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from reading import make_source

from streampipe import build_loader, config_from
from streampipe.assemble.fim_cuts import Counts, Text, TokenCutter
from streampipe.assemble.fim_text import TextCutter
from streampipe.encoder import TokenizerEncoder, open_encoder
from streampipe.loader import StreamLoader
from streampipe.rng import raw_words

RATE, SLACK, SECONDS = 0.5, 3, 1.5  # the slack that a config has unless it says otherwise


class WholeOnly:
    """An encoder that knows of no windows."""

    table = None

    def __init__(self, encoder: TokenizerEncoder) -> None:
        self.encode, self.text_of, self.spelling = encoder.encode, encoder.text_of, encoder.spelling


def texts_of(folder: Path, characters: int, count: int) -> list[str]:
    """Return stretches of files, all at equal distances."""
    files = sorted(folder.rglob("*.py"))
    text = "".join(path.read_text(errors="ignore") for path in files[:: max(1, len(files) // 3000)])
    distance = max(characters, (len(text) - characters) // count)
    return [text[at : at + characters] for at in range(0, len(text) - characters, distance)][:count]


def cost(cutter: Any, documents: list[Text], slack: int) -> tuple[float, Counts]:
    counts = Counts()
    gc.collect()  # else what came before may be looked at here, for 0.1 s
    began = time.perf_counter()
    for text in documents:
        cutter.parts(text, len(text.ids) + slack, counts)
    return (time.perf_counter() - began) / len(documents) * 1e6, counts


def characters(data: bytes, texts: list[str], rounds: int) -> dict[str, Any]:
    """Cut all documents in each round, with a cutter that remembers nothing of the round before."""
    content = json.loads(data)
    special = {t["content"]: t["id"] for t in content.get("added_tokens", []) if t["special"]}
    encoder = open_encoder(data, special, "tokenizer")
    ids = [encoder.encode(text, first=True) for text in texts]
    words = raw_words(len(texts), "benchmark").tolist()
    documents = [Text(memoryview(array("I", own)), True, word) for own, word in zip(ids, words, strict=True)]
    found: list[tuple[float, float, float]] = []
    for number in range(rounds):
        windows = TextCutter(open_encoder(data, special, "tokenizer"), "character", None, "I")
        windows.parts(documents[0], 10**9, Counts())  # builds the tables
        by_window, counts = cost(windows, documents, SLACK)
        whole, _ = cost(TextCutter(WholeOnly(encoder), "character", None, "I"), documents[number::rounds], SLACK)
        found.append((by_window, whole, cost(TokenCutter(), documents, 0)[0]))
    kinds = ("character", "whole", "token")
    added = [
        sum(len(c) for part in windows.parts(text, 10**9, Counts()) or () for c in part) - len(text.ids)
        for text in documents
    ]
    return {
        "documents": len(documents),
        "tokens_of_a_document": float(np.mean([len(own) for own in ids])),
        "microseconds": dict(zip(kinds, np.median(found, axis=0).tolist(), strict=True)),
        "microseconds_of_the_best_round": dict(zip(kinds, np.min(found, axis=0).tolist(), strict=True)),
        "times_faster": float(np.median([other / one for one, other, _ in found])),
        "fallbacks": counts.fallbacks,
        "redraws": counts.redraws,
        "added_tokens": float(np.mean(added)),
        "fit_slack": {str(slack): float(np.mean(np.array(added) <= slack)) for slack in (0, 1, 2, 3, 4, 8)},
    }


def loader_costs(source: dict[str, Any], shape: tuple[int, int, int], turns: int) -> dict[str, Any]:
    """Compare the rate of a stream with and without, in turns, each beginning every other one."""
    rows, seq_length, size = shape
    fim = {"rate": RATE, "level": "token", "sentinels": {"prefix": 1, "suffix": 2, "middle": 3}}
    found: list[list[float]] = []
    with ExitStack() as stack:
        loaders = []
        for own in (source, source | {"fim": fim}):
            raw = {
                "seq_length": seq_length,
                "sources": [{"name": "web"} | own],
                "batch": {"global_batch_size": size, "micro_batch_size": rows},
                "loader": {"log_every": 0},
            }
            loaders.append(stack.enter_context(build_loader(config_from(raw))))
        for turn in range(turns + 1):
            rates = [0.0, 0.0]
            for number in (0, 1) if turn % 2 else (1, 0):
                rates[number] = tokens_a_second(loaders[number])
            found.append(rates)
        padding = [loader.metrics()["padding"] for loader in loaders]
    without, with_fim = np.array(found[1:]).T  # the first turn warms up
    return {
        "tokens_per_second": [float(np.median(without)), float(np.median(with_fim))],
        "cost": float(1 - np.median(with_fim / without)),
        "cost_quartiles": np.percentile(1 - with_fim / without, [25, 75]).tolist(),
        "padding_more": padding[1] - padding[0],
    }


def tokens_a_second(loader: StreamLoader) -> float:
    next(loader)
    before, began = loader.metrics()["tokens"], time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        next(loader)
    return float(loader.metrics()["tokens"] - before) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--documents", type=int, default=2500)
    parser.add_argument("--characters", type=int, default=7000)
    parser.add_argument("--text", type=Path, default=Path(json.__file__).parents[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=12)
    arguments = parser.parse_args()
    texts = texts_of(arguments.text, arguments.characters, arguments.documents)
    report: dict[str, Any] = {
        "characters": characters(arguments.tokenizer.read_bytes(), texts, arguments.rounds),
        "loader": {},
    }
    mock = {"mock": {"documents": 200_000, "mean": 1000, "vocab_size": 32_000}}
    with tempfile.TemporaryDirectory() as folder:
        make_source(folder)
        for name, source in (("mock", mock), ("local", {"path": folder})):
            for shape in ((1, 8192, 8), (8, 4096, 512)):
                costs = loader_costs(source, shape, arguments.turns)
                report["loader"][f"{name}, {shape[0]} x {shape[1]}, {shape[2]} a step"] = costs
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
