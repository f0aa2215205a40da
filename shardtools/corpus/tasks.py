"""Dealing the input to tasks, one shard each, before the work begins.

A task's number, its units and so its bytes depend on the contents and the options alone; who runs it, when, and beside
whom does not matter.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction

from shardtools.corpus.corpus import Options
from shardtools.corpus.files import FileKind, InputFile
from shardtools.corpus.known import corpus_of
from shardtools.corpus.origins import Origin, origins_of
from shardtools.corpus.scan import Scan, Unit, scan

UNITS_PER_TASK = 16
"""How finely files are cut: a task is full to within one part in so many."""

SAMPLE_FILES = SAMPLE_SPOTS = 8


@dataclass(frozen=True)
class Task:
    """What makes one shard.

    Attributes:
        number: of the shard.
        units: what to read, in order.
        origins: where each unit's file is in the manifest's inputs.
        tokens: how many it will give, about (for progress).
    """

    number: int
    units: tuple[Unit, ...]
    origins: tuple[Origin, ...]
    tokens: int


@dataclass(frozen=True)
class TaskPlan:
    """All tasks of a build, and what was seen of its inputs.

    Attributes:
        tasks: numbered from 0 without gaps.
        scans: of the input files, in their order.
    """

    tasks: tuple[Task, ...]
    scans: tuple[Scan, ...]


Measure = Callable[[InputFile, int], tuple[int, int]]
"""Returns how long (bytes or rows) a sample of a file is, and its tokens; the number: in how many places to look."""


def plan_tasks(
    files: Sequence[InputFile], shard_tokens: int, measure: Measure, options: Options, threads: int = 1
) -> TaskPlan:
    """Scan all files and deal them to tasks of about `shard_tokens` tokens.

    Tokens are estimated from a sample of the first files of each kind: tokens per byte of lines and plain text,
    tokens per row of Parquet. Tasks are made equal, so that the last shard is no stub.

    Raises:
        SourceError: if an input cannot be read.
    """
    rates = {kind: _rate(files, kind, measure) for kind in dict.fromkeys(file.kind for file in files)}
    lengths = {kind: max(1, int(shard_tokens / UNITS_PER_TASK / rate)) for kind, rate in rates.items()}
    with ThreadPoolExecutor(threads) as pool:
        scans = tuple(pool.map(lambda file: scan(file, lengths[file.kind], options), files))
    return TaskPlan(tuple(_deal(scans, rates, shard_tokens)), scans)


def _deal(scans: Sequence[Scan], rates: Mapping[FileKind, Fraction], shard_tokens: int) -> list[Task]:
    """Give each unit to the task in which its middle falls when all estimated tokens are cut into equal parts."""
    units = [(unit, origin) for seen, origin in zip(scans, origins_of(scans), strict=True) for unit in seen.units]
    tokens = [max(1, _times(unit.length, rates[unit.file.kind])) for unit, _ in units]
    total = sum(tokens)
    parts = max(1, -(-total // shard_tokens))
    tasks: dict[int, list[int]] = {}
    before = 0
    for i, count in enumerate(tokens):
        tasks.setdefault((2 * before + count) * parts // (2 * total), []).append(i)
        before += count
    return [
        Task(
            number,
            tuple(units[i][0] for i in members),
            tuple(units[i][1] for i in members),
            sum(tokens[i] for i in members),
        )
        for number, members in enumerate(tasks.values())
    ]


def _times(length: int, rate: Fraction) -> int:
    return length * rate.numerator // rate.denominator


def _rate(files: Sequence[InputFile], kind: FileKind, measure: Measure) -> Fraction:
    """Return tokens per unit of length (a byte, or a row of Parquet), from a sample that depends on contents only."""
    corpus = corpus_of(kind)
    of_kind = [file for file in files if file.kind == kind and (file.bytes or corpus.prefix)]
    count = min(len(of_kind), SAMPLE_FILES)
    sample = [of_kind[i * len(of_kind) // count] for i in range(count)]
    length = tokens = 0
    for file in sample:
        here, found = measure(file, -(-SAMPLE_SPOTS // count))
        length += here
        tokens += found
    return Fraction(tokens, length) if tokens and length else corpus.guess
