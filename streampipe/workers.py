"""Worker processes of a loader: torch's, ended at once, and a death of one told as what it is."""

import contextlib
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar, cast

from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, IterableDataset

from streampipe.dataset import StreamDataset
from streampipe.errors import StreampipeError

T = TypeVar("T")

# Seconds between the end of a process's files, which its reader sees, and its end, which its parent sees.
_DYING = 2.0


class WorkerBatches(Iterator[dict[str, Any]]):
    """An iterator over the micro batches that worker processes make, in their order.

    Args:
        dataset: copied into each worker.
        workers: how many processes, at least 1.
        prefetch: micro batches made ahead, all workers together; at least 2 each.
    """

    def __init__(self, dataset: StreamDataset, workers: int, prefetch: int) -> None:
        loader = DataLoader(
            _Carrier(dataset), batch_size=None, num_workers=workers, prefetch_factor=max(2, prefetch // workers)
        )
        self._batches = cast(Any, iter(loader))
        # A worker that is killed while it asks whether it is to end takes the lock of that event with it, and whoever
        # asks or tells afterwards waits for ever. Workers are killed here, so nobody need tell them.
        self._batches._workers_done_event = threading.Event()
        self._abandoned = weakref.finalize(self, _end, self._batches, os.getpid())

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes."""
        return list(self._batches._workers)

    def __next__(self) -> dict[str, Any]:
        """Return the next micro batch.

        Raises:
            StreampipeError: as it was raised in a worker.
            RuntimeError: a worker died, or raised anything else.
        """
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            # A batch that is half handed over ends as a broken connection, an end of file or an absent socket.
            patience = _DYING if isinstance(error, (OSError, EOFError)) else 0.0
            deaths = _undisturbed(lambda: _deaths(self.processes, patience))
            if not deaths:
                raise
            raise RuntimeError(
                f"a worker process of the loader died: {', '.join(deaths)}; look for what ended it (memory that ran "
                f"out is in the kernel's log; `loader.num_workers` and `loader.prefetch` say how much is held), and go "
                f"on from the last saved state"
            ) from error
        if isinstance(batch, StreampipeError):
            raise batch
        return batch  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the processes. They only read, so they are killed: asked to end, each takes seconds."""
        self._abandoned()


def _deaths(processes: list[BaseProcess], patience: float) -> list[str]:
    """Say of each process that did not end by itself how it ended; wait for the first one, in seconds."""
    for sentinel in connection.wait([process.sentinel for process in processes], patience):
        next(process for process in processes if process.sentinel == sentinel).join(_DYING)
    return [
        f"process {process.pid} {_how(process.exitcode)}" for process in processes if process.exitcode not in (None, 0)
    ]


def _how(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"exited with status {exitcode}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"was killed by signal {-exitcode}"


def _undisturbed(do: Callable[[], T]) -> T:
    """Do something again that is interrupted: torch raises, once, wherever the main thread is when a worker dies."""
    try:
        return do()
    except RuntimeError:
        return do()


def _end(batches: Any, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork of the process that has the workers, such as a worker of another loader
        _undisturbed(lambda: _kill(batches))


def _kill(batches: Any) -> None:
    if batches._worker_pids_set:
        _remove_worker_pids(id(batches))
        batches._worker_pids_set = False
    for process in batches._workers:
        process.kill()
    batches._shutdown_workers()


class _Carrier(IterableDataset[Any]):
    """Lets an error of ours arrive from a worker as it was raised; torch would make the text of a traceback of it."""

    def __init__(self, dataset: StreamDataset) -> None:
        super().__init__()
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._dataset
        except StreampipeError as error:
            yield error
