"""StreamLoader: what a training script iterates, saves and resumes."""

import hashlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import torch

from streampipe.config import StreamConfig
from streampipe.cursor import Cursor, read_cursor
from streampipe.dataset import StreamDataset, TensorBatches
from streampipe.errors import StreampipeError
from streampipe.forecast import check_memory, check_shares, doubts_of_balance, forecast
from streampipe.meter import Meter, tokens_of
from streampipe.parallel import Topology
from streampipe.stream import Stream
from streampipe.workers import WorkerBatches, start_workers

log = logging.getLogger("streampipe")


def build_loader(config: StreamConfig, topology: Topology | None = None) -> "StreamLoader":
    """Return the loader of one rank.

    Args:
        config: the stream, from `load_config`.
        topology: the rank; a single rank if left out.

    Raises:
        ConfigError: when config and topology do not fit together.
        SourceError: when a source cannot be read.
    """
    dataset = StreamDataset(config, topology)
    _ = dataset.stream  # a config that cannot be streamed fails here, not at the first step
    return StreamLoader(dataset)


class StreamLoader(Iterator[dict[str, Any]]):
    """An iterator of micro batches that knows how far it has got.

    `iter()` goes on from the cursor, after an error too; after a finite run has ended it starts anew. The state counts
    what was delivered, not what was prefetched; it is the same on every rank, and taking it is free and needs no other
    rank. It can be used in a `with` statement.

    Args:
        dataset: of this rank.
    """

    def __init__(self, dataset: StreamDataset) -> None:
        self.dataset = dataset
        self.config = dataset.config
        self.topology = dataset.topology
        self._state: dict[str, Any] | None = None  # the cursor after the last delivered batch; at first the dataset's
        self._batches: TensorBatches | WorkerBatches | None = None
        self._ended = False
        self._error: Exception | None = None
        self._announced = False
        self._meter = Meter()

    @property
    def stream(self) -> Stream:
        """The opened stream."""
        return self.dataset.stream

    def __iter__(self) -> "StreamLoader":
        if self._ended:
            self._ended, self._state = False, self.stream.start().to_dict()
        self._error = None
        return self

    def __next__(self) -> dict[str, Any]:
        if self._ended:
            raise StopIteration
        if self._error is not None:
            raise self._error
        before = self._state
        try:
            if self._batches is None:
                self._batches = self._start()
                before = self._state
            return self._deliver(self._batches)
        except StopIteration:
            self.close()
            self._ended = True
            raise
        except BaseException as error:
            # Nothing comes any more until someone asks anew, since other workers may still give later batches; then
            # what was not handed over is made again. An interrupt is no error of the stream, which just goes on.
            self.close()
            self._state = before
            self._error = error if isinstance(error, Exception) else None
            raise

    def _deliver(self, batches: TensorBatches | WorkerBatches) -> dict[str, Any]:
        began = time.perf_counter()
        batch = next(batches)
        tokens = tokens_of(batch) if self.config.batch.batch_by == "documents" else 0
        positions = int(batch["tokens"].numel())
        self._meter.count(time.perf_counter() - began, positions, tokens, batch.get("fim_counts"))
        self._state = batch["cursor"]
        self._log(batch)
        return batch

    def __enter__(self) -> "StreamLoader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor after the last delivered batch: JSON types, under 4 KiB, the same on every rank."""
        return self._cursor().to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a cursor, at once: what was prefetched is forgotten.

        Raises:
            CursorMismatchError: naming the fields, when the cursor belongs to another stream.
        """
        self.dataset.load_state_dict(state)
        self.close()
        self._state, self._ended, self._error = read_cursor(state).to_dict(), False, None

    def _cursor(self) -> Cursor:
        return read_cursor(self._state if self._state is not None else self.dataset.state_dict())

    def metrics(self) -> dict[str, Any]:
        """Return how the run stands: planned facts over all ranks, and this rank's waiting.

        `tokens, sequences, steps, padding` (share of positions without a token; what fill-in-the-middle inserts is
        known of this rank only, since the loader began; with `batch_by: documents` all of it is, and `sequences` are
        documents), `sources: {name: {tokens, documents, epochs, share, truncated_tokens, dropped_documents,
        dropped_tokens}}`; of this process: `batches`,
        `positions_per_second`, `wait_seconds`, and with fill-in-the-middle `fim: {rate, spm_rate, fragments, fallbacks,
        redraws, whole, too_long, exempt, inserted, sources}`: shares of the pieces that were delivered, and counts (see
        `assemble.fim_cuts.Counts`), the same for each source.
        """
        cursor = self._cursor()
        tokens = sum(past.tokens for past in cursor.sources.values())
        sources = {
            source.name: {
                "tokens": past.tokens,
                "documents": past.documents,
                "epochs": axis.epochs_until(past.tokens + past.truncated_tokens + past.dropped_tokens),
                "share": past.tokens / tokens if tokens else 0.0,
                "truncated_tokens": past.truncated_tokens,
                "dropped_documents": past.dropped_documents,
                "dropped_tokens": past.dropped_tokens,
            }
            for source, axis in zip(self.stream.sources, self.stream.planner.axes, strict=True)
            for past in (cursor.sources[source.name],)
        }
        without = 1 - tokens / cursor.positions if cursor.positions else 0.0
        padding = max(0.0, without - self._meter.inserted())
        if self.config.batch.batch_by == "documents":
            padding = self._meter.padding()
        planned = {"steps": cursor.step, "sequences": cursor.sequences, "tokens": tokens}
        return planned | {"padding": padding, "sources": sources} | self._meter.read(self.stream.fim_names.values())

    def close(self) -> None:
        """Stop threads and workers. The loader can be iterated again and goes on from its cursor."""
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()

    def _start(self) -> TensorBatches | WorkerBatches:
        cursor = self._cursor()
        if self.stream.ended(cursor):
            cursor = self.stream.start()
        self._state = cursor.to_dict()  # from here on the dataset's is used up
        self.dataset.load_state_dict(cursor.to_dict())
        if not self._announced:
            self._announce(cursor)
        workers = self.config.loader.num_workers
        if not workers:
            return iter(self.dataset)
        return start_workers(self.dataset, workers, self.config.loader.prefetch)

    def _announce(self, cursor: Cursor) -> None:
        """Compare the ranks, refuse what cannot fit, and say what is coming."""
        expected = forecast(self.stream, self.topology, cursor)
        check_memory(expected)
        for told in check_shares(self.stream, cursor):
            log.warning("%s", told)
        batch, topology = self.config.batch, self.topology
        compare_ranks(
            {
                "fingerprint": _short_hash(self.stream.start().to_json()),
                "topology": f"dp {topology.dp_size} tp {topology.tp_size} pp {topology.pp_size} cp {topology.cp_size}",
                "batch": f"{batch.global_batch_size}, {batch.global_batch_tokens} {batch.batch_by} by "
                f"{batch.micro_batch_size}, {batch.layout}, {batch.labels}",
                "cursor": _short_hash(cursor.to_json()),
                "first plan": expected.plan_hash,
            },
            topology.world_size,
        )
        log.log(
            logging.INFO if self.topology == Topology(dp_size=self.topology.dp_size) else logging.DEBUG, "%s", expected
        )
        if self.topology == Topology(dp_size=self.topology.dp_size):
            for doubt in doubts_of_balance(self.stream, self.topology, cursor):
                log.warning("plan.balance: %s", doubt)
        self._announced = True

    def _log(self, batch: dict[str, Any]) -> None:
        every = self.config.loader.log_every
        last_of_step = batch["micro_batch"] + 1 == batch["num_micro_batches"]
        if not every or not last_of_step or (batch["step"] + 1) % every or self.topology.dp_rank:
            return
        metrics = self.metrics()
        blend = ", ".join(
            f"{name} {of['share']:.2%} (epoch {of['epochs']:.2f})" for name, of in metrics["sources"].items()
        )
        log.info(
            "step %d: %d tokens, padding %.2f%%, %s; %.0f positions/s on this rank, waited %.2f s",
            *(
                metrics["steps"],
                metrics["tokens"],
                100 * metrics["padding"],
                blend,
                metrics["positions_per_second"],
                metrics["wait_seconds"],
            ),
        )


def compare_ranks(mine: dict[str, str], ranks: int) -> None:
    """Check that all ranks read the same stream from the same place and made the same plan.

    One all-gather, when torch.distributed is up. A loader that is not of all its ranks, such as one that rank 0 alone
    evaluates with, compares nothing: the others would never answer.

    Args:
        ranks: of the loader's topology.
        mine: what must be the same on every rank, by what it is called in the error; the same keys on every rank.

    Raises:
        StreampipeError: on every rank, naming those that differ from rank 0.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    if distributed.get_world_size() != ranks:
        log.warning(
            "torch.distributed has %d ranks, the topology of this loader %d: whether all read the same is not checked",
            *(distributed.get_world_size(), ranks),
        )
        return
    gathered: list[dict[str, str]] = [{} for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(gathered, mine)
    for what in mine:
        differing = [rank for rank, theirs in enumerate(gathered) if theirs[what] != gathered[0][what]]
        if differing:
            raise StreampipeError(
                f"the {what} of rank {differing[0]} differs from rank 0's ({gathered[differing[0]][what]} and "
                f"{gathered[0][what]}; differing ranks: {differing}); all ranks must have the same config, the same "
                "state loaded, the same data and the same release of streampipe and numpy"
            )


def _short_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
