"""How fast `shardtools build` is beside bare `encode_batch_fast` on the same text and cores, and its memory.

    python benchmarks/build.py [--megabytes 60] [--workers 2] [--rounds 5] [--input DIR] [--tokenizer FILE]
    python benchmarks/build.py --memory --megabytes 300 [--one-document] [--shard-tokens 67108864]

Rounds of both alternate. Start-up is left out: the bare run is timed after loading, and the build's time is that of
the whole command less that of the same command on a few short documents. All else that a build does counts as its
own: looking at the input, reading, checks, ids as arrays, the shuffle through scratch, compression, hashes. The bare
run has all texts in memory and drops the ids. Shards are small, so that there are many tasks, as in a large build.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

BARE = """
import json, os, resource, sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[2])
texts = [json.loads(line)["text"] for line in open(sys.argv[1])]
tokenizer.encode_batch_fast(texts[:8], add_special_tokens=False)
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
before, start = cpu(), time.perf_counter()
for i in range(0, len(texts), 256):
    tokenizer.encode_batch_fast(texts[i : i + 256], add_special_tokens=False)
print(json.dumps([time.perf_counter() - start, cpu() - before]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--input", default=sysconfig.get_path("purelib"), help="folder of .py, .txt, .md files")
    parser.add_argument("--tokenizer", help="a tokenizer.json (one of 32,000 tokens is trained)")
    parser.add_argument("--shard-tokens", type=int, default=1_000_000)
    parser.add_argument("--one-document", action="store_true", help="make one document of all text")
    parser.add_argument("--memory", action="store_true", help="build once and print the memory, nothing else")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        corpus = write_corpus(
            texts(Path(arguments.input)), place, arguments.megabytes << 20, one=arguments.one_document
        )
        short = place / "short.jsonl"
        short.write_text("".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(32)))
        tokenizer = arguments.tokenizer or train(Path(arguments.input), place)
        shards = arguments.shard_tokens
        if arguments.memory:
            spent, memory, tokens = run_build(corpus, tokenizer, place / "out", arguments.workers, shards)
            print(f"{tokens / 1e6:.1f} million tokens in {spent[0]:.0f} s, {memory / 2**20:,.0f} MiB of all processes")
            return
        rows = []
        for i in range(arguments.rounds):
            bare = run_bare(corpus, tokenizer, arguments.workers)
            whole, memory, tokens = run_build(corpus, tokenizer, place / f"{i}", arguments.workers, shards)
            empty, _, _ = run_build(short, tokenizer, place / f"empty-{i}", arguments.workers, 16)
            built = (whole[0] - empty[0], whole[1] - empty[1])
            rows.append((bare[0] / built[0], bare[1] / built[1], memory / 2**20))
            print(
                f"bare {tokens / bare[0] / 1e6:.2f} Mtok/s {bare[1] / tokens * 1e9:,.0f} CPU-s/1e9 tok   "
                f"build {tokens / built[0] / 1e6:.2f} Mtok/s {built[1] / tokens * 1e9:,.0f} CPU-s/1e9 tok   "
                f"ratio {rows[-1][0]:.2f} wall {rows[-1][1]:.2f} CPU   memory {memory / 2**20:,.0f} MiB",
                flush=True,
            )
        wall, cpu, memory = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"median: {wall:.2f} of bare by wall clock, {cpu:.2f} by CPU time, {memory:,.0f} MiB of all processes")


def write_corpus(texts: Iterator[str], place: Path, size: int, *, one: bool = False) -> Path:
    """Write documents of up to 32,000 characters to a JSONL file, or one of all text."""
    path, written = place / "corpus.jsonl", 0
    whole: list[str] = []
    with path.open("w") as file:
        for text in texts:
            if written >= size:
                break
            for start in range(0, len(text), 32_000):
                line = json.dumps({"text": text[start : start + 32_000]}) + "\n"
                written += len(line) if one else file.write(line)
            whole += [text] if one else []
        if one:
            file.write(json.dumps({"text": "\n".join(whole)}) + "\n")
    print(f"{written / 2**20:.0f} MiB of text")
    return path


def texts(folder: Path) -> Iterator[str]:
    """Yield the texts of a folder, over and over."""
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".txt", ".md", ".rst")]
    for path in itertools.cycle(paths):
        yield path.read_text(errors="ignore")


def train(folder: Path, place: Path) -> str:
    """Train a tokenizer on 8 MiB of the text."""
    sample, tokenizer = place / "sample", str(place / "tokenizer.json")
    sample.mkdir()
    some = write_corpus(itertools.islice(texts(folder), 0, None, 8), sample, 8 << 20)
    command = [sys.executable, "-m", "shardtools", "train-tokenizer", str(some), "--vocab-size", "32000"]
    subprocess.run([*command, "--output", tokenizer], check=True, stdout=subprocess.DEVNULL)
    return tokenizer


def run_bare(corpus: Path, tokenizer: str, workers: int) -> tuple[float, float]:
    """Return seconds of wall clock and of CPU."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": str(workers)}
    command = [sys.executable, "-c", BARE, str(corpus), tokenizer]
    wall, cpu = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    return wall, cpu


def run_build(
    corpus: Path, tokenizer: str, output: Path, workers: int, shard_tokens: int
) -> tuple[tuple[float, float], int, int]:
    """Return (seconds of wall clock, of CPU), the most bytes of all processes at once, and tokens."""
    command = [sys.executable, "-m", "shardtools", "build", str(corpus), "--tokenizer", tokenizer, "--json"]
    command += ["--output", str(output), "--workers", str(workers), "--shard-tokens", str(shard_tokens)]
    before, start = children_cpu(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    most: list[int] = [0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            most[0] = max(most[0], memory_of(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    printed, _ = process.communicate()
    wall = time.perf_counter() - start
    ended.set()
    watcher.join()
    if process.returncode:
        sys.exit(f"the build failed: {' '.join(command)}")
    return (wall, children_cpu() - before), most[0], json.loads(printed)["tokens"]


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory_of(session: int) -> int:
    """Return the bytes of all processes of a session, shared pages once (PSS)."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) != session:
                continue
            lines = (folder / "smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total


if __name__ == "__main__":
    main()
