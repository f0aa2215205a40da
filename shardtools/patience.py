"""A store that goes on trying: a build of hours should outlive the restart of a server."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from streampipe.errors import StorageError
from streampipe.storage import Range, Store, is_local_url

Answer = TypeVar("Answer")
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
HOPELESS = (PermissionError, TypeError, NotImplementedError)
"""What no second try mends."""


class PatientStore:
    """Another store, each call of which is tried again after a `StorageError`.

    Args:
        store: the other one.
        seconds: when to give up.
    """

    def __init__(self, store: Store, seconds: float) -> None:
        self._store = store
        self._seconds = seconds

    @property
    def url(self) -> str:
        """The address of the other store."""
        return self._store.url

    def read(self, name: str) -> bytes:
        """See `Store`."""
        return self._try(lambda: self._store.read(name))

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        """See `Store`."""
        return self._try(lambda: self._store.read_ranges(ranges))

    def write(self, name: str, data: bytes) -> None:
        """See `Store`."""
        self._try(lambda: self._store.write(name, data))

    def create(self, name: str, data: bytes) -> bool:
        """See `Store`."""
        return self._try(lambda: self._store.create(name, data))

    def holds(self, name: str, data: bytes) -> bool:
        """See `Store`."""
        return self._try(lambda: self._store.holds(name, data))

    def names(self) -> list[str]:
        """See `Store`."""
        return self._try(self._store.names)

    def sizes(self) -> dict[str, int]:
        """See `Store`."""
        return self._try(self._store.sizes)

    def delete(self, name: str) -> None:
        """See `Store`."""
        self._try(lambda: self._store.delete(name))

    def sweep(self) -> int:
        """See `Store`."""
        return self._try(self._store.sweep)

    def put(self, name: str, data: bytes) -> None:
        """Write an object and check that the server holds what was sent; a local file was forced to disk.

        Raises:
            StorageError: if it does not, however often it is sent.
        """

        def send() -> None:
            self._store.write(name, data)
            if not is_local_url(self.url) and not self._store.holds(name, data):
                raise StorageError(
                    f"{self.url}/{name}: the store does not hold the {len(data)} bytes that were written; "
                    f"check the disk or the server"
                )

        self._try(send)

    def _try(self, call: Callable[[], Answer]) -> Answer:
        started, pause, tries = time.monotonic(), FIRST_PAUSE, 0
        while True:
            try:
                return call()
            except StorageError as error:
                tries += 1
                elapsed = time.monotonic() - started
                if isinstance(error.__cause__, HOPELESS) or elapsed + pause > self._seconds:
                    if tries > 1 and hasattr(error, "add_note"):
                        error.add_note(f"gave up after {tries} tries in {elapsed:.0f} s")
                    raise
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
