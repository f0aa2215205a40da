"""Stage two: a bucket, or the held-out documents of several, becomes a shard."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardtools.options import BuildOptions
from shardtools.shuffle.duplicates import read_drops
from shardtools.shuffle.payload import PayloadDecoder
from shardtools.shuffle.runs import ChunkName, Part, ReadRanges, read_payloads, read_rows
from shardtools.stages.scatter import chunk_name
from streampipe.shards import AnyDocument, EncodedShard, encode_shard


@dataclass(frozen=True)
class GatherTask:
    """One shard to make.

    Attributes:
        split, number: of the shard.
        buckets: which ones: first, and one after the last.
        held_out: make the shard of the documents that are held out; otherwise of the others.
    """

    split: str
    number: int
    buckets: tuple[int, int]
    held_out: bool = False


@dataclass(frozen=True)
class Scattered:
    """What all slices together say: whatever a bucket needs to know of them.

    Attributes:
        chunks: how many each slice has [slices].
        buckets: how many there are.
        apart: whether a bucket is a slice, so that no other slice holds documents of it.
        threshold: documents with a number up to this are held out; None: none is.
        drops: the objects that list copies.
    """

    chunks: tuple[int, ...]
    buckets: int
    apart: bool
    threshold: int | None
    drops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gather:
    """Makes shards of scattered documents.

    Attributes:
        options: of the build.
        decoder: of documents.
        origin_offset: how many inputs the manifest lists before those of this build.
    """

    options: BuildOptions
    decoder: PayloadDecoder
    origin_offset: int

    def run(self, task: GatherTask, scattered: Scattered, read: ReadRanges) -> EncodedShard | None:
        """Return the shard, or None if it has no documents.

        Raises:
            StreampipeError: if the scratch files are damaged.
        """
        documents = self._documents(task, scattered, read)
        first = next(documents, None)
        if first is None:
            return None
        return encode_shard(
            _chain(first, documents),
            f"{task.split}-{task.number:05d}",
            token_dtype=self.decoder.token_dtype,
            frame_tokens=self.options.frame_tokens,
            compression=self.options.compression,
            level=self.options.level,
        )

    def _documents(self, task: GatherTask, scattered: Scattered, read: ReadRanges) -> Iterator[AnyDocument]:
        """Yield the documents in the order of their keys; equal keys in input order. A document's key counts its slice.

        The name `00003-0000012` is document 12 of slice 3.
        """
        chunks = _chunks(scattered, task.buckets)
        plain = None if task.held_out else Part(task.buckets, candidates=False)
        candidates = None if scattered.threshold is None else Part(task.buckets, candidates=True)
        parts = [read_rows(read, chunks, scattered.buckets, part) for part in (plain, candidates) if part]
        if not parts:
            return
        rows = np.concatenate([part[0] for part in parts])
        slices = np.concatenate([part[1] for part in parts])
        names = [name for part in parts for name in part[2]]
        wanted = np.ones(len(rows), bool)
        if scattered.threshold is not None:
            wanted = (rows["held"] <= np.uint64(scattered.threshold)) == task.held_out
        drops = read_drops(read, scattered.drops, scattered.buckets, task.buckets)
        if drops:
            places = zip(slices.tolist(), rows["position"].tolist(), strict=True)
            wanted &= np.array([place not in drops for place in places], bool)
        kept = np.flatnonzero(wanted)
        rows, slices, names = rows[kept], slices[kept], [names[i] for i in kept.tolist()]
        payloads = read_payloads(read, rows, names)
        for i in np.lexsort((rows["position"], slices, rows["key"])).tolist():
            origin = (self.origin_offset + int(rows["file"][i]), int(rows["row"][i]))
            key = f"{int(slices[i]):05d}-{int(rows['position'][i]):07d}"
            yield self.decoder.decode(payloads[i], key, origin)


def _chunks(scattered: Scattered, buckets: tuple[int, int]) -> Sequence[ChunkName]:
    slices = range(*buckets) if scattered.apart else range(len(scattered.chunks))
    return [
        ChunkName(chunk_name(number, chunk), number) for number in slices for chunk in range(scattered.chunks[number])
    ]


def _chain(first: AnyDocument, rest: Iterator[AnyDocument]) -> Iterator[AnyDocument]:
    yield first
    yield from rest
