"""One build at a time in an output folder.

A local folder is held by a file lock, which the system lets go of when the process dies. In a bucket the lock is an
object, made by a create-only put and rewritten every few seconds: one that no longer changes belongs to a dead build.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from shardtools.ledger import FOLDER
from streampipe.errors import ConfigError, StreampipeError
from streampipe.storage import Store, is_local_url

LOCK_NAME = f"{FOLDER}/lock"
BEAT_SECONDS = 2.0
LEASE_SECONDS = 20.0
PARTING_SECONDS = 5.0


class Hold:
    """A folder held for one build."""

    def check(self) -> None:
        """Refuse to go on if another build has taken the folder over.

        Raises:
            StreampipeError: if it has.
        """


@contextlib.contextmanager
def locked(store: Store, url: str) -> Iterator[Hold]:
    """Hold an output folder for one build.

    Raises:
        ConfigError: if another build is running there.
    """
    with _file_lock(store) if is_local_url(url) else _object_lock(store) as hold:
        yield hold


def _busy(store: Store, whose: str = "") -> ConfigError:
    return ConfigError(
        f"{store.url}: another build is writing there now{whose}; wait for it to end, or choose another --output"
    )


@contextlib.contextmanager
def _file_lock(store: Store) -> Iterator[Hold]:
    path = Path(store.url) / LOCK_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                raise BlockingIOError("the lock was removed by a build that has just ended")
        except BlockingIOError as error:
            raise _busy(store) from error
        try:
            yield Hold()
        finally:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty: the build is unfinished
                path.parent.rmdir()


@contextlib.contextmanager
def _object_lock(store: Store) -> Iterator[Hold]:
    lease = _Lease(store)
    lease.take()
    beating = threading.Thread(target=lease.beat, name="shardtools-lock", daemon=True)
    beating.start()
    try:
        yield lease
    finally:
        ending = threading.Thread(target=lease.end, args=(beating,), name="shardtools-unlock", daemon=True)
        ending.start()
        ending.join(PARTING_SECONDS)  # a server that is away would be waited for long; a lock left alone soon expires


class _Lease(Hold):
    """The lock object of a bucket."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._lost = False
        self._ended = threading.Event()

    def take(self) -> None:
        """Create the object; wait for one that is there to show whether its build lives.

        Raises:
            ConfigError: if it does.
        """
        first = self._read()
        if first is None and self._create():
            return
        since = time.monotonic()
        while (now := self._read()) is not None and not _died_here(now):
            first = first or now
            if now != first:
                raise _busy(self._store, f" ({now.get('host')}, process {now.get('process')})")
            if time.monotonic() - since > LEASE_SECONDS:
                break
            time.sleep(BEAT_SECONDS / 4)
        self._store.delete(LOCK_NAME)
        if not self._create():
            raise _busy(self._store)

    def beat(self) -> None:
        """Rewrite the object until the build ends; an outage of the server is waited for.

        The object of another is looked at twice: it may be the last, late beat of a build that has ended, which goes
        again at once.
        """
        taken = False
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(StreampipeError):
                was_taken, taken = taken, self._taken()
                if taken and was_taken:
                    self._lost = True
                    return
                if taken:
                    continue
                if self._ended.is_set():
                    return
                self._beats += 1
                self._store.write(LOCK_NAME, self._content())
                if self._ended.is_set():  # `end` did not wait for this beat
                    self._remove()

    def check(self) -> None:
        """See `Hold`."""
        if not self._lost and self._taken():
            time.sleep(BEAT_SECONDS)
            self._lost = self._taken()
        if self._lost:
            raise StreampipeError(
                f"{self._store.url}: another build took this folder over while the store could not be reached; "
                f"wait for it to end, then run again"
            )

    def end(self, beating: threading.Thread) -> None:
        """Stop beating and remove the object, if it is still ours.

        A beat that fell into an outage sleeps between its client's tries for longer than the outage lasts; the object
        is removed without it, and once more by the beat itself if that is written after all.
        """
        self._ended.set()
        beating.join(PARTING_SECONDS / 2)
        with contextlib.suppress(StreampipeError):
            self._remove()

    def _taken(self) -> bool:
        found = self._read()
        return found is not None and found.get("token") != self._token

    def _remove(self) -> None:
        found = self._read()
        if not self._lost and found is not None and found.get("token") == self._token:
            self._store.delete(LOCK_NAME)

    def _create(self) -> bool:
        return self._store.create(LOCK_NAME, self._content())

    def _content(self) -> bytes:
        content = {"token": self._token, "beats": self._beats, "process": os.getpid(), **_here()}
        return json.dumps(content).encode()

    def _read(self) -> dict[str, object] | None:
        try:
            content = json.loads(self._store.read(LOCK_NAME))
        except (FileNotFoundError, ValueError):
            return None
        return content if isinstance(content, dict) else None


def _here() -> dict[str, object]:
    """Return what names this machine and its table of processes."""
    try:
        table = str(Path("/proc/self/ns/pid").readlink()) + Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        table = ""
    return {"host": socket.gethostname(), "table": table}


def _died_here(lock: dict[str, object]) -> bool:
    """Tell whether the build was one of this machine and its process is gone."""
    here, process = _here(), lock.get("process")
    if not here["table"] or any(lock.get(key) != value for key, value in here.items()) or not isinstance(process, int):
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
