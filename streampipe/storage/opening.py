"""From a URL to the store that serves it."""

from collections.abc import Mapping
from typing import Any

from streampipe.storage.local import LocalStore
from streampipe.storage.remote import FsspecStore
from streampipe.storage.store import Store, is_local_url


def open_store(url: str, options: Mapping[str, Any] | None = None) -> Store:
    """Return the store of a folder. No I/O happens until the first read or write.

    Args:
        url: a local path, `file://`, or any URL that fsspec knows (`s3://bucket/web`, `gs://`, `https://`, `memory://`).
        options: handed to the fsspec filesystem as they are, e.g. `{"endpoint_url": ..., "key": ..., "secret": ...}`;
            never shown. Local folders take none.
    """
    if is_local_url(url):
        return LocalStore(url)
    return FsspecStore(url, options)
