"""Threads that have ended when the interpreter does.

A thread that asks for the interpreter lock after that is torn out of whatever it is in. Inside C++ code this aborts the
process, and a training run that was complete counts as failed. Python waits for threads that are not daemons, but
before anyone tells them to stop; so these are daemons, stopped and waited for when Python calls its exit functions.
Pools of `concurrent.futures` are not among them: Python waits until whatever was submitted to them is done.
"""

import atexit
import time
from collections.abc import Callable
from threading import Thread
from weakref import WeakKeyDictionary, WeakMethod

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
