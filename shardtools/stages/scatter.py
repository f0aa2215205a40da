"""Stage one: a slice of the input becomes runs of documents, sorted by key."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardtools.corpus.tally import Tally
from shardtools.corpus.tasks import Task
from shardtools.held_out import HeldOutRule, Nearest
from shardtools.ledger import Seen, SliceRecord
from shardtools.making import Meter, RowMaker
from shardtools.shuffle.duplicates import encode_hashes
from shardtools.shuffle.order import Order, held_out_number
from shardtools.shuffle.payload import encode_payload
from shardtools.shuffle.runs import Chunk
from streampipe.shards import TokenDtype

CHUNK_BYTES = 1 << 27
"""A chunk is sorted and written once its documents take so much memory."""

Sink = Callable[[str, bytes], None]
"""Takes the name and the bytes of an object."""


def chunk_name(number: int, chunk: int) -> str:
    """Return where a chunk of a slice is."""
    return f"run-{number:05d}-{chunk:03d}.bin"


def hashes_name(number: int) -> str:
    """Return where the hashes of a slice are."""
    return f"hashes-{number:05d}.bin"


@dataclass(frozen=True)
class Scatter:
    """Scatters slices.

    Attributes:
        maker: makes the documents.
        order: gives each its place.
        held_out: the rule for validation, if any.
        hashes: whether to write what finding copies needs.
        token_dtype: of the ids.
        fingerprint: of the build.
    """

    maker: RowMaker
    order: Order
    held_out: HeldOutRule | None
    hashes: bool
    token_dtype: TokenDtype
    fingerprint: str

    def run(self, task: Task, tally: Tally, sink: Sink, meter: Meter) -> SliceRecord:
        """Write a slice to the sink and return its record, which the caller commits.

        Raises:
            StreampipeError: naming the input that failed.
        """
        chunk, lengths = Chunk(self.order), array("q")
        entries: list[tuple[bytes, int, int, int]] = []
        nearest: Nearest = []
        sizes: list[int] = []
        rows = documents = tokens = held_tokens = 0

        def flush() -> None:
            nonlocal chunk, lengths, nearest, held_tokens
            numbers = chunk.held()
            candidates = np.zeros(len(numbers), bool)
            if self.held_out:
                counts = np.array(lengths, np.int64)
                nearest = self.held_out.lowest(nearest, numbers, counts)
                candidates = self.held_out.may_hold(numbers, nearest)
                if self.held_out.below:
                    held_tokens += int(counts[numbers <= np.uint64(self.held_out.below - 1)].sum())
            data = chunk.encode(candidates)
            sink(chunk_name(task.number, len(sizes)), data)
            sizes.append(len(data))
            chunk, lengths = Chunk(self.order), array("q")

        for made in self.maker.make(task, tally, meter):
            for part, document in enumerate(made.documents):
                key = self.order.key(made.place, part, documents)
                chunk.add(
                    encode_payload(document, self.token_dtype),
                    key=key,
                    held=held_out_number(made.place.identity),
                    row=made.place.row,
                    file=made.place.file,
                    position=documents,
                )
                if self.hashes:
                    entries.append((made.place.identity, key, rows, documents))
                length = sum(len(ids) for ids in document.arrays() if ids.ndim == 1)
                lengths.append(length)
                documents, tokens = documents + 1, tokens + length
            rows += 1
            if chunk.bytes >= CHUNK_BYTES:
                flush()
        if lengths:
            flush()
        hashes = encode_hashes(entries) if entries else b""
        if hashes:
            sink(hashes_name(task.number), hashes)
        return SliceRecord(
            fingerprint=self.fingerprint,
            number=task.number,
            chunks=sizes,
            hashes=len(hashes),
            documents=documents,
            tokens=tokens,
            held_tokens=held_tokens,
            nearest=nearest,
            seen=Seen(
                rows=rows + tally.left_out,
                counts=dict(sorted(tally.reasons.items())),
                examples=tally.examples,
                fields=tally.fields,
                bad=sorted(tally.bad_reasons),
            ),
        )
