"""Threads that have ended when the interpreter does.

A thread that asks for the interpreter lock after that is torn out of whatever it is in. Inside C++ code this aborts the
process, and a training run that was complete counts as failed. Python waits for threads that are not daemons, but
before anyone tells them to stop; so these are daemons, stopped and waited for when Python calls its exit functions.
"""

import atexit
from collections.abc import Callable
from threading import Thread
from weakref import WeakKeyDictionary, WeakMethod

# Seconds. Whoever hangs longer than this in a system call does not keep the process alive.
_PATIENCE = 10.0
# Weak on both sides: what is stopped may know the thread, by the traceback of an error for one.
_stops: WeakKeyDictionary[Thread, WeakMethod[Callable[[], None]]] = WeakKeyDictionary()


def start_thread(run: Callable[[], None], name: str, stop: Callable[[], None]) -> None:
    """Start a thread.

    Args:
        run: what it does.
        name: for whoever looks at the threads of the process.
        stop: a method that makes `run` return soon; called when the interpreter ends, if the thread is still alive.
    """
    thread = Thread(target=run, name=name, daemon=True)
    _stops[thread] = WeakMethod(stop)
    thread.start()


@atexit.register
def _end_threads() -> None:
    # After a fork the threads of the parent are not alive here.
    alive = [(thread, stop) for thread, stop in list(_stops.items()) if thread.is_alive()]
    for _, known in alive:
        if (stop := known()) is not None:
            stop()
    for thread, _ in alive:
        thread.join(_PATIENCE)
