"""What runs a task, in any process: every task commits itself, so who runs it, when, and how often does not matter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardtools.corpus.tally import OnBadRow, Tally
from shardtools.corpus.tasks import Task
from shardtools.ledger import CopiesRecord, Record, Seen, SliceRecord, TaskRecord, record_name, write_record
from shardtools.making import Meter, StoppedError
from shardtools.patience import PatientStore
from shardtools.shuffle.duplicates import find_duplicates
from shardtools.stages.gather import Gather, GatherTask, Scattered
from shardtools.stages.scatter import Scatter, hashes_name
from streampipe.errors import StreampipeError
from streampipe.shards import EncodedShard, length_histogram
from streampipe.storage import Range, Store


@dataclass(frozen=True)
class SliceTask:
    """Scatter one slice of the input to scratch."""

    task: Task


@dataclass(frozen=True)
class CopiesTask:
    """List the copies in one range of hashes.

    Attributes:
        number: of the list.
        ranges: of hashes: first, and one after the last.
        slices: those that have hashes.
        borders: first key of each bucket.
    """

    number: int
    ranges: tuple[int, int]
    slices: tuple[int, ...]
    borders: NDArray[np.uint64]


@dataclass(frozen=True)
class ShardTask:
    """Make one shard of what is in scratch."""

    gather: GatherTask
    scattered: Scattered


@dataclass(frozen=True)
class WholeTask:
    """Make one shard of one slice of the input, without scratch on the way: the same work in memory."""

    task: Task


BuildTask = SliceTask | CopiesTask | ShardTask | WholeTask


def slice_record_name(number: int) -> str:
    """Return where the record of a slice is in scratch."""
    return f"slice-{number:05d}.json"


def copies_record_name(number: int) -> str:
    """Return where the record of a list of copies is in scratch."""
    return f"copies-{number:05d}.json"


def drops_name(number: int) -> str:
    """Return where a list of copies is in scratch."""
    return f"drops-{number:05d}.bin"


@dataclass(frozen=True)
class BuildWorker:
    """Runs tasks of one build.

    Attributes:
        output: where shards go.
        scratch: where documents wait.
        make_scatter: makes stage one, which loads a tokenizer; called when the first slice is there.
        gather: stage two.
        on_bad_row: the rule for bad rows.
    """

    output: PatientStore
    scratch: Store
    make_scatter: Callable[[], Scatter]
    gather: Gather
    on_bad_row: OnBadRow
    fingerprint: str

    def run(self, task: BuildTask, meter: Meter) -> Record:
        """Run one task and commit it.

        Raises:
            StreampipeError: naming the input or the output that failed.
        """
        try:
            if isinstance(task, SliceTask):
                return self._slice(task.task, meter)
            if isinstance(task, CopiesTask):
                return self._copies(task)
            if isinstance(task, ShardTask):
                shard = self.gather.run(task.gather, task.scattered, self.scratch.read_ranges)
                return self._commit(shard, task.gather.split, task.gather.number, Seen())
            return self._whole(task.task, meter)
        except (StreampipeError, StoppedError):
            raise
        except FileNotFoundError as error:
            raise StreampipeError(
                f"{self.scratch.url}: {error}: scratch files were removed during the build, or the machines of the "
                f"cluster do not share the folder; name one that all of them see by --scratch"
            ) from error
        except Exception as error:  # a fault of ours or of a library: say at least where it shows
            raise StreampipeError(
                f"{_where(task)} failed: {type(error).__name__}: {error}; run again with --debug for the whole story"
            ) from error

    def _slice(self, task: Task, meter: Meter) -> SliceRecord:
        record = self.make_scatter().run(task, Tally(self.on_bad_row), self.scratch.write, meter)
        write_record(self.scratch, slice_record_name(task.number), record)
        return record

    def _copies(self, task: CopiesTask) -> CopiesRecord:
        names = [(number, hashes_name(number)) for number in task.slices]
        data, copies = find_duplicates(self.scratch.read_ranges, names, task.ranges, task.borders)
        self.scratch.write(drops_name(task.number), data)
        record = CopiesRecord(self.fingerprint, task.number, len(data), copies)
        write_record(self.scratch, copies_record_name(task.number), record)
        return record

    def _whole(self, task: Task, meter: Meter) -> TaskRecord:
        kept: dict[str, bytes] = {}
        scatter = self.make_scatter()
        record = scatter.run(task, Tally(self.on_bad_row), kept.__setitem__, meter)
        number = task.number
        chunks = tuple(len(record.chunks) if i == number else 0 for i in range(number + 1))
        scattered = Scattered(chunks, scatter.order.buckets, apart=True, threshold=None)
        split = self.gather.options.split
        shard = self.gather.run(GatherTask(split, number, (number, number + 1)), scattered, _reader(kept))
        return self._commit(shard, split, number, record.seen)

    def _commit(self, shard: EncodedShard | None, split: str, number: int, seen: Seen) -> TaskRecord:
        """Store a shard: index, record, shard.

        A shard that can be seen has all that belongs to it, so a build that goes on after a kill never makes a shard
        again that was there. A task without documents leaves a record only.
        """
        histogram = length_histogram(shard.index.document_lengths) if shard else []
        record = TaskRecord(self.fingerprint, split, number, shard.entry if shard else None, histogram, seen)
        if shard:
            self.output.put(shard.index_name, shard.index_bytes)
        write_record(self.output, record_name(split, number), record)
        if shard:
            self.output.put(shard.shard_name, shard.shard_bytes)
        return record


def _where(task: BuildTask) -> str:
    if isinstance(task, ShardTask):
        return f"making shard {task.gather.split}-{task.gather.number:05d}"
    if isinstance(task, CopiesTask):
        return f"looking for copies, part {task.number},"
    first, last = task.task.units[0].file.address, task.task.units[-1].file.address
    return f"{first}{'' if first == last else f' to {last}'}: encoding slice {task.task.number}"


def _reader(objects: Mapping[str, bytes]) -> Callable[[Sequence[Range]], list[bytes]]:
    return lambda ranges: [objects[name][offset : offset + length] for name, offset, length in ranges]
