"""StreamDataset: micro batches of one rank as torch tensors, under any loader that takes an IterableDataset."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from streampipe.config import StreamConfig
from streampipe.cursor import Cursor, read_cursor
from streampipe.jobs import Stride
from streampipe.parallel import Topology
from streampipe.run_ahead import MicroBatches
from streampipe.step_size import step_size
from streampipe.stream import Stream, open_stream
from streampipe.within import delivered_of_step


class StreamDataset(IterableDataset[dict[str, Any]]):
    """Micro batches of one rank, ready made: use `batch_size=None`.

    Under a plain `DataLoader` with any `num_workers` it delivers the same sequence (worker w of W makes every W-th
    micro batch), and `batch["cursor"]` is the state to save. Under torchdata's `StatefulDataLoader` its `state_dict` is
    used. Small micro batches are made many at once and share memory, 7 MiB or so: `clone()` what is kept for long.

    Args:
        config: the stream.
        topology: the rank.

    Raises:
        ConfigError: when the batch sizes do not fit the topology. Sources are opened at the first use.
    """

    def __init__(self, config: StreamConfig, topology: Topology | None = None) -> None:
        super().__init__()
        self.config = config
        self.topology = topology or Topology()
        batch = config.batch
        for size in step_size(batch).sizes([phase.seq_length for _, phase in config.in_phases()]):
            self.topology.check_batch(size, batch.micro_batch_size, batch.batch_by, batch.global_batch_tokens)
        self._stream: Stream | None = None
        self._cursor: Cursor | None = None

    @property
    def stream(self) -> Stream:
        """The opened stream."""
        if self._stream is None:
            opened = open_stream(self.config)
            self._stream = opened if self._cursor is None else opened.resumed(self._cursor)
        return self._stream

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None}  # a worker opens its own

    def __iter__(self) -> "TensorBatches":
        info = get_worker_info()
        stride = Stride(info.id, info.num_workers) if info is not None else Stride()
        # A loaded cursor is for one iterator: the epoch after a resumed one is whole again. The stream is told of it
        # first: a copy in another process opens its own, which must go on from there.
        stream, cursor = self.stream, self._cursor
        self._cursor = None
        if cursor is None or stream.ended(cursor):
            stream, cursor = stream.afresh(), stream.start()
        self._stream = stream
        return TensorBatches(stream, self.topology, cursor, stride)

    def state_dict(self) -> dict[str, Any]:
        """Return where the next iterator begins: a cursor."""
        return (self._cursor or self.stream.start()).to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iterator begin at a cursor, `batch["cursor"]` for one.

        Worker processes of a plain `DataLoader` copy the dataset each time that it is iterated, so there load the start
        again before a second epoch; `StreamLoader` and `StatefulDataLoader` do without.

        Raises:
            CursorMismatchError: when it belongs to another stream, or stands inside a step that was cut otherwise.
        """
        cursor = read_cursor(state)
        stream = self.stream.resumed(cursor)
        delivered_of_step(cursor, stream, self.topology)
        self._stream, self._cursor = stream, cursor


class TensorBatches(Iterator[dict[str, Any]]):
    """An iterator over a worker's micro batches as tensors, with the state after the last one delivered."""

    def __init__(self, stream: Stream, topology: Topology, cursor: Cursor, stride: Stride) -> None:
        self._stream = stream
        self._topology = topology
        self._workers = stride.workers
        self._batches = MicroBatches(stream, topology, cursor, stride)
        self._made: deque[dict[str, Any]] = deque()
        self._state = {"cursor": cursor.to_dict(), "skip": stride.worker}

    def __next__(self) -> dict[str, Any]:
        if not self._made:
            self._made.extend(next(self._batches))
        batch = as_tensors(self._made.popleft())
        self._state = {"cursor": batch["cursor"], "skip": self._workers - 1}
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch, and how many batches of other workers come before this one's next."""
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of `state_dict`, under the same number of workers.

        Raises:
            CursorMismatchError: when it belongs to another stream.
        """
        cursor = read_cursor(state["cursor"])
        stream, stride = self._stream.resumed(cursor), Stride(int(state["skip"]), self._workers)
        self.close()
        self._stream, self._batches = stream, MicroBatches(stream, self._topology, cursor, stride)
        self._state = state

    def close(self) -> None:
        """Stop the threads."""
        self._batches.close()
        self._made.clear()


def as_tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """Turn the arrays of a batch into tensors that share their memory; one twice in a row becomes the same tensor."""
    tensors: dict[str, Any] = {}
    latest = tensor = None
    for name, value in batch.items():
        if value.__class__ is not np.ndarray:
            tensors[name] = value
            continue
        if value is not latest:
            latest, tensor = value, torch.from_numpy(value)
        tensors[name] = tensor
    return tensors
