"""SEQUENCE OF A BUILD. Which tasks there are, which of them an earlier run has done, and what they say together.

    slices of the input -> runs in scratch -> (lists of copies) -> summary -> shards

Without a global shuffle, held-out documents and duplicates the slices become shards at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from shardtools.engines.engine import Board, Engine
from shardtools.job import Job
from shardtools.ledger import (
    SUMMARY_NAME,
    CopiesRecord,
    Record,
    Seen,
    SliceRecord,
    Summary,
    TaskRecord,
    finished_shards,
    has_bad_rows,
    read_record,
    together,
    write_record,
)
from shardtools.options import VALIDATION
from shardtools.progress import SLOW_SECONDS, Progress
from shardtools.scratch import Scratch
from shardtools.shuffle.duplicates import RANGES
from shardtools.stages.gather import GatherTask, Scattered
from shardtools.tolerance import refuse_too_many_bad_rows
from shardtools.worker import BuildTask, CopiesTask, ShardTask, SliceTask, WholeTask, drops_name
from streampipe.errors import StreampipeError

DOCUMENTS_AT_ONCE = 1 << 22
"""About how many hashes are compared at once: 32 bytes each, and as much again to sort them."""


@dataclass(frozen=True)
class Made:
    """All shards of a build.

    Attributes:
        records: of each shard, by split and number.
        kept: how many shards an earlier run had made.
        kept_tokens: in them, and those of slices that an earlier run had encoded.
        seen: of the input.
    """

    records: list[TaskRecord]
    kept: int
    kept_tokens: int
    seen: Seen


@dataclass(frozen=True)
class BuildSequence:
    """Runs what is left of a build.

    Attributes:
        job: the build.
        engine: where tasks run.
        progress: told of all of it.
        scratch: of the build.
    """

    job: Job
    engine: Engine
    progress: Progress
    scratch: Scratch

    def run(self) -> Made:
        """Make all shards.

        Raises:
            StreampipeError: naming the input or the output that failed, or if there are too many bad rows.
        """
        return self._in_stages() if self.job.request.options.in_stages else self._at_once()

    def _at_once(self) -> Made:
        job, tasks = self.job, self.job.tasks.tasks
        kept = self._finished(job.request.options.split, len(tasks))
        self._say_kept(len(kept), len(tasks), "shards")
        todo = [WholeTask(task) for task in tasks if task.number not in kept]
        self.progress.start(sum(task.task.tokens for task in todo))
        made = [record for record in self._run_tasks(todo) if isinstance(record, TaskRecord)]
        records = sorted([*kept.values(), *made], key=lambda record: record.number)
        seen = together(record.seen for record in records)
        refuse_too_many_bad_rows(job.request.options, seen)
        return Made(records, _shards(kept.values()), _tokens(kept.values()), seen)

    def _in_stages(self) -> Made:
        job = self.job
        summary = read_record(job.output, SUMMARY_NAME, Summary, job.plan.fingerprint)
        if summary is not None and not self._counts_bad_rows and has_bad_rows(summary.seen):
            summary = None
        kept_tokens = 0
        if summary is None or self._left(summary)[0]:
            slices, kept_tokens = self._slices()
            summary = self._summary(slices)
        left, kept = self._left(summary)
        self._say_kept(len(kept), len(kept) + len(left), "shards")
        self.progress.note(f"writing {len(left):,} shards")
        made = [record for record in self._run_tasks(left) if isinstance(record, TaskRecord)]
        splits = job.request.options.splits
        records = sorted([*kept, *made], key=lambda record: (splits.index(record.split), record.number))
        return Made(records, _shards(kept), max(kept_tokens, _tokens(kept)), summary.seen)

    def _slices(self) -> tuple[list[SliceRecord], int]:
        """Scatter the slices that are not in scratch yet; return the records of all, and the tokens of those kept."""
        tasks = self.job.tasks.tasks
        kept = self.scratch.slices(len(tasks), bad_rows=self._counts_bad_rows)
        self._say_kept(len(kept), len(tasks), "slices")
        todo = [SliceTask(task) for task in tasks if task.number not in kept]
        self.progress.start(sum(task.task.tokens for task in todo))
        made = [record for record in self._run_tasks(todo) if isinstance(record, SliceRecord)]
        records = sorted([*kept.values(), *made], key=lambda record: record.number)
        refuse_too_many_bad_rows(self.job.request.options, together(record.seen for record in records))
        return records, sum(record.tokens for record in kept.values())

    def _summary(self, slices: Sequence[SliceRecord]) -> Summary:
        """Decide what is held out, list the copies, and store what all slices say together."""
        options, rule = self.job.request.options, self.job.request.options.held_out_rule
        documents = sum(record.documents for record in slices)
        threshold, shards = None, 0
        if rule is not None:
            threshold = rule.resolve([record.nearest for record in slices], documents)
            nearest = [entry for record in slices for entry in record.nearest]
            fewest = sum(tokens for number, tokens in nearest if number <= threshold)
            tokens = max(fewest, sum(record.held_tokens for record in slices))
            shards = min(-(-tokens // options.shard_tokens), self.job.order.buckets)
        copies = self._copies(slices, documents) if options.dedup == "exact" else []
        seen = together(record.seen for record in slices)
        if found := sum(record.copies for record in copies):
            counts = dict(sorted({**seen.counts, "duplicate": found}.items()))
            seen = msgspec.structs.replace(seen, counts=counts)
        summary = Summary(
            fingerprint=self.job.plan.fingerprint,
            chunks=[len(record.chunks) for record in slices],
            threshold=threshold,
            held_out_shards=shards,
            copies_parts=len(copies),
            copies=found,
            seen=seen,
        )
        write_record(self.job.output, SUMMARY_NAME, summary)
        return summary

    def _copies(self, slices: Sequence[SliceRecord], documents: int) -> list[CopiesRecord]:
        parts = min(-(-documents // DOCUMENTS_AT_ONCE), RANGES)
        kept = self.scratch.copies(parts)
        numbers = tuple(record.number for record in slices if record.hashes)
        todo = [
            CopiesTask(part, (RANGES * part // parts, RANGES * (part + 1) // parts), numbers, self.job.order.borders())
            for part in range(parts)
            if part not in kept
        ]
        if todo:
            self.progress.note(f"looking for copies among {documents:,} documents")
        made = [record for record in self._run_tasks(todo) if isinstance(record, CopiesRecord)]
        return sorted([*kept.values(), *made], key=lambda record: record.number)

    def _left(self, summary: Summary) -> tuple[list[ShardTask], list[TaskRecord]]:
        """Return the shards to make, and the records of those that are there."""
        options, buckets = self.job.request.options, self.job.order.buckets
        scattered = Scattered(
            chunks=tuple(summary.chunks),
            buckets=buckets,
            apart=options.shuffle != "global",
            threshold=summary.threshold,
            drops=tuple(drops_name(part) for part in range(summary.copies_parts)),
        )
        gathers = [GatherTask(options.split, number, (number, number + 1)) for number in range(buckets)]
        held, count = [], summary.held_out_shards
        for number in range(count):
            span = (buckets * number // count, buckets * (number + 1) // count)
            held.append(GatherTask(VALIDATION, number, span, held_out=True))
        kept = {
            split: self._finished(split, len(tasks))
            for split, tasks in ((options.split, gathers), (VALIDATION, held))
            if tasks
        }
        left = [ShardTask(task, scattered) for task in (*gathers, *held) if task.number not in kept[task.split]]
        return left, [record for records in kept.values() for record in records.values()]

    @property
    def _counts_bad_rows(self) -> bool:
        return self.job.request.options.on_bad_row == "count"

    def _finished(self, split: str, count: int) -> Mapping[int, TaskRecord]:
        return finished_shards(self.job.output, self.job.plan, split, count, bad_rows=self._counts_bad_rows)

    def _say_kept(self, kept: int, all_of_them: int, what: str) -> None:
        if kept:
            self.progress.note(f"going on: {kept} of {all_of_them} {what} are there from an earlier run")

    def _run_tasks(self, tasks: Sequence[BuildTask]) -> list[Record]:
        """Run tasks and return their records."""
        records: list[Record] = []

        def report(board: Board, ended: list[Record]) -> None:
            records.extend(ended)
            self.progress.update(*board.totals(), board.slow(SLOW_SECONDS))
            if any(not isinstance(record, CopiesRecord) and record.seen.counts for record in ended):
                seen = together(record.seen for record in records if not isinstance(record, CopiesRecord))
                refuse_too_many_bad_rows(self.job.request.options, seen, so_far=True)

        if tasks:
            self.engine.run(tasks, report)
            if len(records) != len(tasks):
                raise StreampipeError(
                    f"{len(tasks) - len(records)} of {len(tasks)} tasks left no record: the engine lost them; "
                    f"run the same command again to go on"
                )
        examples = [line for record in records if not isinstance(record, CopiesRecord) for line in record.seen.examples]
        for example in examples[:20]:
            self.progress.note(f"left out: {example}")
        return records


def _shards(records: Iterable[TaskRecord]) -> int:
    return sum(record.entry is not None for record in records)


def _tokens(records: Iterable[TaskRecord]) -> int:
    return sum(record.entry.tokens for record in records if record.entry)
