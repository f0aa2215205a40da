"""BYTES. A store is a folder of named byte objects: local, in memory, or behind any fsspec URL.

In: a URL and a name, or many `(name, offset, length)` ranges. Out: bytes. This room knows nothing of shards.
"""

from streampipe.storage.local import LocalStore
from streampipe.storage.opening import open_store
from streampipe.storage.remote import FsspecStore
from streampipe.storage.store import Range, Store, is_local_url, keeps_first, refuse_escape

__all__ = [
    "FsspecStore",
    "LocalStore",
    "Range",
    "Store",
    "is_local_url",
    "keeps_first",
    "open_store",
    "refuse_escape",
]
