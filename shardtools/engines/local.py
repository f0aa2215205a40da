"""Tasks on this machine: in this process, or in worker processes with one thread each."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

from shardtools.engines.board import Board, SlotMeter
from shardtools.engines.engine import MakeWorker, Report, Worker
from shardtools.ledger import Record
from shardtools.making import StoppedError
from shardtools.worker import BuildTask
from streampipe.errors import StreampipeError

REPORT_SECONDS = 0.25

ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",  # a pool of threads would also be unsafe to fork
    "OMP_NUM_THREADS": "1",  # numpy's BLAS
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # Arrow's allocator
}
"""What keeps libraries to the calling thread.

A process that never had a second thread needs no locks to allocate memory, which is 6 to 8 % of encoding.
"""

PR_SET_PDEATHSIG = 1


class LocalEngine:
    """Runs tasks in this process, or in processes that live as long as the engine.

    Worker processes are spawned, not forked, so that no lock of a tokenizer's thread pool is inherited, and leave when
    this process dies.

    Args:
        make_worker: makes the worker of a process.
        workers: how many processes.
        here: run tasks in this process, one after the other.
    """

    def __init__(self, make_worker: MakeWorker, workers: int, *, here: bool) -> None:
        self._make_worker = make_worker
        self._workers = workers
        self._runs_here = here
        self._here: Worker | None = None
        self._board: Board | None = None
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, tasks: Sequence[BuildTask], report: Report) -> None:
        """Run all tasks; see `Engine`."""
        context = multiprocessing.get_context("spawn")
        self._board = self._board or Board(context, self._workers)
        if self._runs_here:
            self._run_here(tasks, self._board, report)
        else:
            self._run_in_processes(tasks, self._board, report)

    def _run_here(self, tasks: Sequence[BuildTask], board: Board, report: Report) -> None:
        ended = threading.Event()
        meter = SlotMeter(board, 0)

        def watch() -> None:
            while not ended.wait(REPORT_SECONDS):
                report(board, [])

        watcher = threading.Thread(target=watch, name="shardtools-progress", daemon=True)
        with one_thread():
            worker = self._here = self._here or self._make_worker()
            watcher.start()
            try:
                for task in tasks:
                    report(board, [worker.run(task, meter)])
            finally:
                meter.idle()
                ended.set()
                watcher.join()

    def _run_in_processes(self, tasks: Sequence[BuildTask], board: Board, report: Report) -> None:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            arguments = (self._make_worker, board, context.Value("i", 0))
            self._pool = ProcessPoolExecutor(self._workers, context, _start_worker, arguments)
        waiting: set[Future[Record]] = set()
        failure: BaseException | None = None
        try:
            with _interrupts_held(), one_thread():  # a new process reads the environment before it runs any of ours
                waiting = {self._pool.submit(_run_in_worker, task) for task in tasks}
            while waiting and failure is None:
                ended, waiting = wait(waiting, REPORT_SECONDS, FIRST_COMPLETED)
                records = [future.result() for future in ended if future.exception() is None]
                failure = next((error for future in ended if (error := future.exception())), None)
                report(board, records)
        finally:
            if waiting:
                board.stop()
                self._pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(failure, BrokenProcessPool):
            raise StreampipeError(
                "a worker process died without a word (killed, or out of memory?); run the same command again to go "
                "on, with fewer --workers or a smaller --shard-tokens if memory is short"
            ) from failure
        if failure is not None:
            raise failure


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep libraries to one thread: those that ask as they work here, all of them in processes that start meanwhile."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass
class _Worker:
    worker: Worker
    meter: SlotMeter


_worker: list[_Worker] = []
"""This process's own worker; empty in the parent."""


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let processes that start now never see Ctrl-C, which a terminal sends to all; the parent stops them."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(make_worker: MakeWorker, board: Board, next_slot: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _leave_with_parent()
    with next_slot.get_lock():
        slot = next_slot.value
        next_slot.value += 1
    _worker.append(_Worker(make_worker(), SlotMeter(board, slot)))


def _leave_with_parent() -> None:
    """End this process when its parent ends, without a thread that waits for it where the system can do that."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0:
        if connection.wait([parent.sentinel], 0):  # it ended before
            os._exit(1)
        return

    def wait_for_parent() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait_for_parent, name="shardtools-parent-watch", daemon=True).start()


def _run_in_worker(task: BuildTask) -> Record:
    worker = _worker[0]
    try:
        return worker.worker.run(task, worker.meter)
    except StoppedError as error:
        raise StreampipeError("stopped, because another task failed or the build was interrupted") from error
    finally:
        worker.meter.idle()
