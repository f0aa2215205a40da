"""From text files to a training run that survives kill -9, on what every machine with Python has: `make demo`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "demo-run"
CONFIG = "configs/demo.yaml"
BIN = Path(sys.executable).parent  # where pip puts commands
STARTED = time.monotonic()


def chapter(title: str) -> None:
    """Print what comes next, and how long the demo has been at it."""
    print(f"\n=== {title}  [{time.monotonic() - STARTED:.0f} s]", flush=True)


def command(*words: str | Path) -> subprocess.Popen[bytes]:
    """Start one of the project's commands, shown as a user would type it."""
    shown = [str(word) for word in words]
    print("$ " + " ".join(shown), flush=True)
    return subprocess.Popen([str(BIN / shown[0]), *shown[1:]], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})


def run(*words: str | Path) -> None:
    """Run one command to its end; stop the demo where it fails."""
    if code := command(*words).wait():
        sys.exit(f"the demo stopped: `{words[0]} {words[1]}` ended with code {code}")


def python_sources() -> Iterator[tuple[str, bytes]]:
    """Yield name and text of the standard library's source files, without its own tests and its prose."""
    library = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "pydoc_data"}
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if not skipped & set(name.parts) and path.stat().st_size:
            yield str(name), path.read_bytes()


def prose() -> Iterator[tuple[str, bytes]]:
    """Yield Python's documentation topics, and the licences, READMEs and texts that installed packages carry."""
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError:  # some distributions leave it out
        topics = {}
    for name, text in sorted(topics.items()):
        yield f"topics/{name}.txt", text.encode()
    packages = Path(sysconfig.get_paths()["purelib"])
    for path in sorted(packages.rglob("*")):
        name = path.relative_to(packages)
        if path.suffix in {".md", ".rst", ".txt"} or path.name.lower().startswith(("licen", "copying", "notice")):
            if path.is_file() and path.stat().st_size > 400:
                yield f"packages/{name}", path.read_bytes()
        elif path.name == "METADATA":  # its body is the package's README
            yield f"readmes/{path.parent.stem}.md", path.read_bytes().partition(b"\n\n")[2]


def collect(texts: Iterator[tuple[str, bytes]], folder: Path) -> None:
    """Write the distinct texts among these into a folder, one file each."""
    seen: set[bytes] = set()
    size = 0
    for name, text in texts:
        if not text.strip() or text in seen:
            continue
        seen.add(text)
        size += len(text)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)
    print(f"{folder.relative_to(ROOT)}: {len(seen):,} files, {size / 1e6:.1f} MB")


def descendants(pid: int) -> list[int]:
    """Return a process and all that stem from it (torchrun puts every rank into a session of its own)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):  # gone since the folder was listed
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    family = [pid]
    for member in family:
        family += children.get(member, [])
    return family


def is_alive(pid: int) -> bool:
    """Tell whether a process still runs (one that only waits to be reaped does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """Return what a training run has logged so far, in the order it was written."""
    log = folder / "steps.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def training(folder: Path, ranks: int, steps: int, *options: str) -> list[str]:
    """Return the command that trains on so many ranks."""
    words = ["torchrun", "--standalone", "--nproc-per-node", str(ranks), "examples/train.py"]
    return [*words, "--config", CONFIG, "--out", str(folder.relative_to(ROOT)), "--steps", str(steps), *options]


def train_and_kill(folder: Path, ranks: int, steps: int, kill_after: int) -> None:
    """Train, and send SIGKILL to every process of the run once step `kill_after` is done."""
    run = command(*training(folder, ranks, steps))
    while not any(line["step"] >= kill_after for line in steps_of(folder)):
        if run.poll() is not None:
            sys.exit(f"the demo stopped: training ended by itself, with code {run.returncode}")
        time.sleep(0.05)
    family = descendants(run.pid)
    for pid in family:
        with suppress(ProcessLookupError):  # ended by itself since we looked
            os.kill(pid, signal.SIGKILL)
    run.wait()
    while any(is_alive(pid) for pid in family):
        time.sleep(0.05)
    print(
        f"SIGKILL to all {len(family)} processes of the run (torchrun and {ranks} ranks): nothing of it is left alive"
    )


def compare(first: list[dict[str, Any]], second: list[dict[str, Any]], tool: dict[int, str], steps: int) -> bool:
    """Print both runs side by side; tell whether every step was fed the same."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for line in first:
        by_step.setdefault(line["step"], []).append(line)
    reference = {line["step"]: line for line in second}
    if sorted(by_step) != list(range(steps)) or sorted(reference) != list(range(steps)):
        print("a run did not log every step")
        return False
    print(f"{'step':>4}  {'killed and resumed':<36}  {'unbroken, 1 rank':<24}  same data")
    equal, twice, gap = 0, 0, 0.0
    for step in range(steps):
        one = reference[step]
        same = all(line["sha256"] == one["sha256"] == tool[step] for line in by_step[step])
        equal += same
        twice += len(by_step[step]) > 1
        gap = max(gap, *(abs(line["loss"] - one["loss"]) for line in by_step[step]))
        if step % 5 == 0 or len(by_step[step]) > 1 or not same:
            for line in by_step[step]:
                left = f"{line['sha256'][:12]}  loss {line['loss']:.4f}  {line['ranks']} ranks"
                right = f"{one['sha256'][:12]}  loss {one['loss']:.4f}"
                print(f"{step:4d}  {left:<36}  {right:<24}  {'yes' if same else 'NO'}")
    print(f"\n{twice} steps were done twice, before the kill and again after it; losses differ by at most {gap:.1e}")
    print(f"the digests of {equal} of {steps} steps equal those of the uninterrupted run on 1 rank")
    return equal == steps


def main() -> None:
    """Tell the whole story; end with code 1 where a digest differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--kill-after", type=int, default=17)
    args = parser.parse_args()
    shutil.rmtree(RUN, ignore_errors=True)
    text, data, tokenizer = Path("demo-run/text"), Path("demo-run/data"), Path("demo-run/tokenizer.json")

    chapter("Text: what every machine with Python has")
    collect(python_sources(), ROOT / text / "code")
    collect(prose(), ROOT / text / "prose")

    chapter("A tokenizer, and both sources as shards")
    run("shardtools", "train-tokenizer", text / "code", text / "prose", "--vocab-size", "8192", "--output", tokenizer)
    for source, pattern in (("code", "*.py"), ("prose", "*")):
        options = ["--include", pattern, "--tokenizer", tokenizer, "--frame-tokens", "8192", "--shard-tokens", "500000"]
        run("shardtools", "build", text / source, *options, "--output", data / source)
        run("shardtools", "verify", data / source)
    run("shardtools", "stats", data / "code")

    chapter(f"Training on 2 ranks, killed after step {args.kill_after}")
    train_and_kill(RUN / "killed", ranks=2, steps=args.steps, kill_after=args.kill_after)

    chapter("Going on from the last checkpoint, on 4 ranks")
    run(*training(RUN / "killed", 4, args.steps))

    chapter("The same run, uninterrupted, on 1 rank with twice the micro batch")
    run(*training(RUN / "unbroken", 1, args.steps, "--micro-batch-size", "4"))

    chapter("Were they fed the same?")
    words = ["digest", "--config", CONFIG, "--steps", str(args.steps), "--dp-size", "4", "--json"]
    print("$ streampipe " + " ".join(words))
    answer = subprocess.run([BIN / "streampipe", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    tool = {line["step"]: line["sha256"] for line in json.loads(answer)["steps"]}
    same = compare(steps_of(RUN / "killed"), steps_of(RUN / "unbroken"), tool, args.steps)
    print(f"the demo took {time.monotonic() - STARTED:.0f} s")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
