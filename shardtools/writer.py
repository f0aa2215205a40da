"""One task: texts of its units in, one shard, its index and its record out."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardtools.corpus.tally import Tally
from shardtools.corpus.tasks import Task
from shardtools.corpus.texts import Text, TextReader
from shardtools.ledger import TaskRecord, write_record
from shardtools.options import BuildOptions
from shardtools.text.tokenizer import TextTokenizer
from streampipe.errors import StreampipeError
from streampipe.rng import keyed_permutation
from streampipe.shards import Document, EncodedShard, encode_shard, length_histogram, token_dtype_for
from streampipe.storage import Store

BATCH_CHARACTERS = 1 << 19
"""Texts are encoded in batches of about so many characters, so that memory stays small."""


class StoppedError(Exception):
    """The build is being stopped; the task gives up."""


class Meter(Protocol):
    """Hears how a task goes on, and may stop it by raising."""

    def advance(self, documents: int, tokens: int) -> None:
        """Documents and tokens done since the last call."""
        ...

    def at(self, where: str) -> None:
        """The place in the input that is being encoded."""
        ...


@dataclass(frozen=True)
class TaskWriter:
    """Makes shards of a build; the same in every process.

    Attributes:
        store: the output.
        options: of the build.
        reader: of the input.
        tokenizer: of the build.
        fingerprint: of the build.
        origin_offset: how many inputs the manifest lists before those of this build.
    """

    store: Store
    options: BuildOptions
    reader: TextReader
    tokenizer: TextTokenizer
    fingerprint: str
    origin_offset: int = 0

    def run(self, task: Task, meter: Meter) -> TaskRecord:
        """Make one shard and commit it.

        The order is index, record, shard: a shard that can be seen has all that belongs to it, so a build that goes on
        after a kill never makes a shard again that was there. A task without documents leaves a record only.

        Raises:
            StreampipeError: naming the input or the output that failed.
        """
        tally = Tally(self.options.on_bad_row)
        try:
            encoded = self._encode(task, tally, meter)
            shard = self._shard(task, encoded)
        except (StreampipeError, StoppedError):
            raise
        except Exception as error:  # a fault of ours or of a library: say at least which input shows it
            first, last = task.units[0].file.address, task.units[-1].file.address
            raise StreampipeError(
                f"{first}{'' if first == last else f' to {last}'}: making shard {task.number} failed: "
                f"{type(error).__name__}: {error}; run again with --debug for the whole story"
            ) from error
        record = TaskRecord(
            fingerprint=self.fingerprint,
            number=task.number,
            entry=shard.entry if shard else None,
            histogram=length_histogram(encoded.lengths) if shard else [],
            counts=dict(sorted(tally.reasons.items())),
            examples=tally.examples,
            fields=tally.fields,
        )
        if shard:
            self.store.write(shard.index_name, shard.index_bytes)
        write_record(self.store, self.options.split, record)
        if shard:
            self.store.write(shard.shard_name, shard.shard_bytes)
        return record

    def _encode(self, task: Task, tally: Tally, meter: Meter) -> "EncodedTexts":
        tokens: list[NDArray[Any]] = []
        lengths, files, rows = array("q"), array("q"), array("q")
        origins = dict(zip((unit.file for unit in task.units), task.origins, strict=True))
        for batch in _batches(self.reader.read(task.units, tally)):
            meter.at(batch[0].where)
            before = len(tokens)
            for text, ids in zip(batch, self._ids(batch), strict=True):
                if len(ids) == 0:
                    tally.skip("no_tokens")
                    continue
                tokens.append(ids)
                lengths.append(len(ids))
                place, first_row = origins[text.file]
                files.append(self.origin_offset + place)
                rows.append(first_row + text.row)
            done = tokens[before:]
            if done:
                tokens[before:] = [np.concatenate(done)]
            meter.advance(len(done), sum(len(ids) for ids in done))
        return EncodedTexts(
            tokens=np.concatenate(tokens) if tokens else np.empty(0, self.tokenizer.dtype),
            lengths=np.array(lengths, np.int64),
            files=np.array(files, np.int64),
            rows=np.array(rows, np.int64),
        )

    def _ids(self, batch: list[Text]) -> list[NDArray[Any]]:
        try:
            return self.tokenizer.encode([text.text for text in batch])
        except StreampipeError:
            raise
        except Exception as error:  # the library raises bare Exceptions and TypeErrors
            raise StreampipeError(
                f"{batch[0].where} (or one of the {len(batch)} documents from there on): the tokenizer fails: {error}; "
                f"leave the document out or use another tokenizer"
            ) from error

    def _shard(self, task: Task, encoded: "EncodedTexts") -> EncodedShard | None:
        if not len(encoded.lengths):
            return None
        return encode_shard(
            encoded.documents(self.options.seed, task.number),
            f"{self.options.split}-{task.number:05d}",
            token_dtype=token_dtype_for(self.tokenizer.max_id),
            frame_tokens=self.options.frame_tokens,
            compression=self.options.compression,
            level=self.options.level,
        )


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """The documents of one shard in input order: tokens [T] one after the other; lengths, files, rows [D]."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    files: NDArray[np.int64]
    rows: NDArray[np.int64]

    def documents(self, seed: int, shard: int) -> Iterator[Document]:
        """Yield the documents in the shard's order: a keyed shuffle; keys count them as they came."""
        ends = np.cumsum(self.lengths)
        for i in keyed_permutation(len(self.lengths), seed, "documents", shard).tolist():
            end, length = int(ends[i]), int(self.lengths[i])
            yield Document(
                key=f"{shard:05d}-{i:07d}",
                tokens=self.tokens[end - length : end],
                origin_file=int(self.files[i]),
                origin_row=int(self.rows[i]),
            )


def _batches(texts: Iterator[Text]) -> Iterator[list[Text]]:
    batch: list[Text] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
