"""Worker processes of a loader: torch's, and a death of one told as what it is and never waited for."""

import contextlib
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from typing import Any, TypeVar

import torch.multiprocessing
from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, IterableDataset

from streampipe.dataset import StreamDataset
from streampipe.errors import StreampipeError

T = TypeVar("T")

# Seconds between the end of a process's files, which its reader sees, and its end, which its parent sees.
_DYING = 2.0
# How often something is done again that the deaths of workers interrupt: as many loaders may lose one at a time.
_ATTEMPTS = 10
# Bytes of the path of a folder with Unix sockets: 107 for all, of which Python takes 18 for `/listener-` and 8 letters.
_LONGEST_FOLDER = 89


class WorkerBatches(Iterator[dict[str, Any]]):
    """An iterator over the micro batches that worker processes make, in their order.

    A worker that is killed while it asks torch's event whether to end takes the lock of that event with it, and whoever
    asks or tells afterwards waits for ever. So the parent asks another one, and tells nobody once a worker has died: it
    kills the others.

    Args:
        batches: torch's iterator, whose workers have been started; `start_workers` makes one.
    """

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        shared, batches._workers_done_event = batches._workers_done_event, threading.Event()
        self._end = weakref.finalize(self, _end, batches, shared, os.getpid())
        self._end.atexit = False  # then multiprocessing ends what is left

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes."""
        return list(self._batches._workers)

    def __next__(self) -> dict[str, Any]:
        """Return the next micro batch.

        Raises:
            StreampipeError: as it was raised in a worker.
            RuntimeError: a worker died.
            Exception: whatever else a worker raised, of its own type.
        """
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            # A batch that is half handed over ends as a broken connection, an end of file or an absent socket.
            broken = isinstance(error, (OSError, EOFError)) and "in DataLoader worker process" not in str(error)
            deaths = _undisturbed(lambda: _deaths(self._batches, _DYING if broken else 0.0))
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
        """End the processes."""
        self._end()


def start_workers(dataset: StreamDataset, workers: int, prefetch: int) -> WorkerBatches:
    """Start worker processes.

    Args:
        dataset: copied into each worker.
        workers: how many processes, at least 1.
        prefetch: micro batches made ahead, all workers together; at least 2 each.

    Raises:
        StreampipeError: when they could not hand anything over.
    """
    ahead = max(2, prefetch // workers)
    loader = DataLoader(_Carrier(dataset), batch_size=None, num_workers=workers, prefetch_factor=ahead)
    _make_room_for_sockets()
    return WorkerBatches(iter(loader))


def _make_room_for_sockets() -> None:
    """Make the folder of the sockets over which workers hand over tensors.

    It is this process's, which removes it: a worker that is killed would leave one of its own behind.

    Raises:
        StreampipeError: when its path is too long for a socket; workers would wait for ever.
    """
    folder = get_temp_dir()
    strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    if strategy == "file_descriptor" and len(os.fsencode(folder)) > _LONGEST_FOLDER:
        raise StreampipeError(
            f"{folder}: worker processes hand over batches through sockets in this folder, whose path may have "
            f"{_LONGEST_FOLDER} bytes, but has {len(os.fsencode(folder))}; set TMPDIR to a folder with a shorter path"
        )


def _deaths(batches: Any, patience: float) -> list[str]:
    """Say how the workers ended that should not have; wait for the first one to do so, in seconds."""
    active = [process for process, busy in zip(batches._workers, batches._workers_status, strict=True) if busy]
    ended = connection.wait([process.sentinel for process in active], patience)
    for process in active:
        if process.sentinel in ended:
            process.join(_DYING)
    return [
        f"process {process.pid} {_how(process.exitcode)}"
        for process in batches._workers
        if process.exitcode is not None and (process.exitcode or process in active)
    ]


def _how(exitcode: int) -> str:
    if exitcode >= 0:
        return f"exited with status {exitcode}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"was killed by signal {-exitcode}"


def _undisturbed(do: Callable[[], T]) -> T:
    """Do something again that is interrupted: torch raises wherever the main thread is when a worker dies.

    It does so once for each loader.
    """
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(RuntimeError):
            return do()
    return do()


def _end(batches: Any, shared: Any, owner: int) -> None:
    """End the workers.

    Args:
        batches: torch's iterator.
        shared: the event that tells them to end.
        owner: the process that has them; in a fork of it, such as a worker of another loader, they are left alone.
    """
    if os.getpid() != owner:
        batches._shutdown = True
        return
    _undisturbed(lambda: _shut_down(batches, shared))


def _shut_down(batches: Any, shared: Any) -> None:
    if batches._worker_pids_set:
        _remove_worker_pids(id(batches))
        batches._worker_pids_set = False
    if _deaths(batches, 0.0):
        for process in batches._workers:
            process.kill()
    else:
        batches._workers_done_event = shared
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
