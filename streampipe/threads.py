"""Threads that have ended when the interpreter does.

A thread that asks for the interpreter lock after that is torn out of whatever it is in. Inside C++ code this aborts the
process, and a training run that was complete counts as failed. Python waits for threads that are not daemons, but
before anyone tells them to stop; so these are daemons, stopped and waited for when Python calls its exit functions.
Nor do they keep a process that ends when what they do hangs. Pools of `concurrent.futures` first do whatever was
submitted to them, which takes minutes where a server has stopped to answer; all ranks wait for one that failed so.
"""

import atexit
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import RLock, Thread
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakMethod

T = TypeVar("T")

# Seconds for all of them together, so that a hanging system call does not keep the process alive.
_PATIENCE = 10.0
# State of the process, as exit functions are. Weak on both sides, since what is stopped may know the thread, by the
# traceback of an error for one.
_stops: WeakKeyDictionary[Thread, WeakMethod[Callable[[], None]]] = WeakKeyDictionary()


def start_thread(run: Callable[[], None], name: str, stop: Callable[[], None]) -> None:
    """Start a thread.

    Args:
        run: what it does.
        name: for whoever looks at the threads of the process.
        stop: a method that makes `run` return soon, and does not raise; called when the interpreter ends, if the thread
            is still alive.
    """
    thread = Thread(target=run, name=name, daemon=True)
    _stops[thread] = WeakMethod(stop)
    thread.start()


class TaskThreads:
    """Threads that do what is submitted, first come, first served, until they are closed.

    Args:
        threads: how many at most; each starts when something is submitted.
        name: of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._started = 0
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        # So that nothing is put behind the end of the queue; the garbage collector may close this in `submit`.
        self._lock = RLock()
        self._closed = False

    def submit(self, task: Callable[[], T]) -> "Future[T]":
        """Let something be done; what it returns or raises is the future's. Cancelled if this is closed."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
                return future
            self._waiting.put((future, task))
            if self._started < self._most:
                self._started += 1
                start_thread(self._run, f"{self._name}-{self._started}", self.close)
        return future

    def close(self) -> None:
        """Stop: what has not begun is cancelled."""
        with self._lock:
            self._closed = True
            while (waiting := self._next()) is not None:
                waiting[0].cancel()
            for _ in range(self._started):
                self._waiting.put(None)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        try:
            return self._waiting.get_nowait()
        except Empty:
            return None

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            future, task = work
            if future.set_running_or_notify_cancel():
                try:
                    result = task()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del work, future, task  # what was done is not kept until something else is


def _alive() -> list[Thread]:
    # `keyrefs` copies at once: a thread may start another one meanwhile. Those of a parent are not alive after a fork.
    threads = [ref() for ref in _stops.keyrefs()]
    return [thread for thread in threads if thread is not None and thread.is_alive()]


@atexit.register
def _end_threads() -> None:
    deadline = time.monotonic() + _PATIENCE
    while (threads := _alive()) and time.monotonic() < deadline:
        for thread in threads:
            known = _stops.get(thread)
            if known is not None and (stop := known()) is not None:
                stop()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
