"""Tasks on this machine: in this process, or in worker processes with one thread each."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

from shardtools.corpus.tasks import Task
from shardtools.engines.board import Board, SlotMeter
from shardtools.ledger import TaskRecord
from shardtools.writer import StoppedError, TaskWriter
from streampipe.errors import StreampipeError

MakeWriter = Callable[[], TaskWriter]
"""Picklable; called once in each worker."""

Report = Callable[[Board, list[TaskRecord]], None]
"""Called a few times a second with the board and the records of tasks that ended since the last call."""

REPORT_SECONDS = 0.25


def run_tasks(tasks: Sequence[Task], make_writer: MakeWriter, workers: int, report: Report) -> None:
    """Run all tasks.

    Worker processes are spawned, not forked, so that no lock of a tokenizer's thread pool is inherited, and leave when
    this process dies. The bytes written do not depend on `workers`.

    Raises:
        StreampipeError: the first error of a task; the other tasks are stopped before it is raised.
    """
    if workers == 1 or len(tasks) <= 1:
        _run_here(tasks, make_writer, report)
    else:
        _run_in_processes(tasks, make_writer, min(workers, len(tasks)), report)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep the tokenizers library to the calling thread; its pool would also be unsafe to fork."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def _run_here(tasks: Sequence[Task], make_writer: MakeWriter, report: Report) -> None:
    board = Board(multiprocessing.get_context("spawn"), 1)
    done: list[TaskRecord] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(REPORT_SECONDS):
            report(board, [])

    watcher = threading.Thread(target=watch, name="shardtools-progress", daemon=True)
    with one_thread():
        writer, meter = make_writer(), SlotMeter(board, 0)
        watcher.start()
        try:
            for task in tasks:
                done.append(writer.run(task, meter))
        finally:
            ended.set()
            watcher.join()
            report(board, done)


def _run_in_processes(tasks: Sequence[Task], make_writer: MakeWriter, workers: int, report: Report) -> None:
    context = multiprocessing.get_context("spawn")
    board = Board(context, workers)
    next_slot = context.Value("i", 0)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (make_writer, board, next_slot))
    waiting: set[Future[TaskRecord]] = set()
    failure: BaseException | None = None
    try:
        with _interrupts_held():
            waiting = {pool.submit(_run_in_worker, task) for task in tasks}
        while waiting and failure is None:
            ended, waiting = wait(waiting, REPORT_SECONDS, FIRST_COMPLETED)
            records = [future.result() for future in ended if future.exception() is None]
            failure = next((error for future in ended if (error := future.exception())), None)
            report(board, records)
    finally:
        if waiting:
            board.stop()
        pool.shutdown(wait=True, cancel_futures=True)
    if isinstance(failure, BrokenProcessPool):
        raise StreampipeError(
            "a worker process died without a word (killed, or out of memory?); "
            "run the same command again to go on, with fewer --workers or a smaller --shard-tokens if memory is short"
        ) from failure
    if failure is not None:
        raise failure


@dataclass
class _Worker:
    writer: TaskWriter
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


def _start_worker(make_writer: MakeWriter, board: Board, next_slot: Any) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, name="shardtools-parent-watch", daemon=True).start()
    with next_slot.get_lock():
        slot = next_slot.value
        next_slot.value += 1
    _worker.append(_Worker(make_writer(), SlotMeter(board, slot)))


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _run_in_worker(task: Task) -> TaskRecord:
    worker = _worker[0]
    try:
        return worker.writer.run(task, worker.meter)
    except StoppedError as error:
        raise StreampipeError("stopped, because another task failed or the build was interrupted") from error
    finally:
        worker.meter.idle()
