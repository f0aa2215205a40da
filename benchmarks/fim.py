"""What fill-in-the-middle costs: microseconds a transformed document, and the share of the loader's rate.

    python benchmarks/fim.py TOKENIZER.json [--documents 500] [--tokens 2000] [--text FOLDER]

The texts are the Python sources of the running interpreter, or the files of a folder. Whole re-encoding is measured
beside, in the same run, on the same cuts. The last line is JSON.
"""

import argparse
import json
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from streampipe import config_from
from streampipe.assemble.fim_cuts import Counts, Text, TokenCutter
from streampipe.assemble.fim_text import TextCutter
from streampipe.encoder import TokenizerEncoder, open_encoder
from streampipe.rng import raw_words
from streampipe.tools.bench import bench


class WholeOnly:
    """An encoder that knows of no windows."""

    table = None

    def __init__(self, encoder: TokenizerEncoder) -> None:
        self.encode, self.text_of = encoder.encode, encoder.text_of


def texts_of(folder: Path, characters: int, count: int) -> list[str]:
    text = "".join(path.read_text(errors="ignore") for path in sorted(folder.rglob("*.py"))[:3000])
    return [text[at : at + characters] for at in range(0, len(text) - characters, characters)][:count]


def cost(cutter: Any, documents: list[Text], slack: int) -> tuple[float, Counts]:
    counts = Counts()
    began = time.perf_counter()
    for text in documents:
        cutter.parts(text, len(text.ids) + slack, counts)
    return (time.perf_counter() - began) / len(documents) * 1e6, counts


def characters(data: bytes, texts: list[str]) -> dict[str, Any]:
    content = json.loads(data)
    special = {t["content"]: t["id"] for t in content.get("added_tokens", []) if t["special"]}
    encoder = open_encoder(data, special, "tokenizer")
    ids = [encoder.encode(text, first=True) for text in texts]
    words = raw_words(len(texts), "benchmark").tolist()
    documents = [Text(memoryview(array("I", own)), True, word) for own, word in zip(ids, words, strict=True)]
    windows = TextCutter(encoder, "character", None, "I")
    cost(windows, documents[:20], 4)  # builds the tables
    windows = TextCutter(encoder, "character", None, "I")
    by_window, counts = cost(windows, documents, 4)
    whole, _ = cost(TextCutter(WholeOnly(encoder), "character", None, "I"), documents, 4)
    tokens, _ = cost(TokenCutter(), documents, 0)
    added = [
        sum(len(c) for part in windows.parts(text, 10**9, Counts()) or () for c in part) - len(text.ids)
        for text in documents
    ]
    return {
        "documents": len(documents),
        "tokens_of_a_document": float(np.mean([len(own) for own in ids])),
        "microseconds": {"character": by_window, "whole": whole, "token": tokens},
        "times_faster": whole / by_window,
        "fallbacks": counts.fallbacks,
        "redraws": counts.redraws,
        "added_tokens": float(np.mean(added)),
        "fit_slack": {str(slack): float(np.mean(np.array(added) <= slack)) for slack in (0, 1, 2, 4, 8)},
    }


def loader_share(rate: float, steps: int) -> dict[str, float]:
    """Compare the rate of a mock stream with and without, in turns."""
    rates: dict[str, list[float]] = {"without": [], "with": []}
    padding = {}
    for _ in range(3):
        for name, found in rates.items():
            source: dict[str, Any] = {
                "name": "mock",
                "mock": {"documents": 200_000, "mean": 1000, "vocab_size": 32_000},
            }
            if name == "with":
                tokens = {"prefix": 1, "suffix": 2, "middle": 3}
                source["fim"] = {"rate": rate, "level": "token", "sentinels": tokens}
            config = config_from(
                {
                    "seq_length": 8192,
                    "sources": [source],
                    "plan": {"windows": 8},
                    "batch": {"global_batch_size": 8, "micro_batch_size": 1},
                    "loader": {"log_every": 0},
                }
            )
            result = bench(config, steps)
            found.append(result.tokens_per_second)
            padding[name] = result.padding
    best = {name: max(found) for name, found in rates.items()}
    return {**best, "cost": 1 - best["with"] / best["without"], "padding_more": padding["with"] - padding["without"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--characters", type=int, default=7000)
    parser.add_argument("--text", type=Path, default=Path(json.__file__).parents[1])
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    texts = texts_of(arguments.text, arguments.characters, arguments.documents)
    report = {
        "characters": characters(arguments.tokenizer.read_bytes(), texts),
        "loader": loader_share(0.5, arguments.steps),
    }
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
