"""An opened source: one split of one corpus, read frame by frame."""

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampipe.errors import ConfigError, ShardMissingError
from streampipe.shards.buffers import FrameBuffers
from streampipe.shards.frame import StoredFrame
from streampipe.shards.frame_index import FrameIndex, Origins
from streampipe.shards.index import decode_index, decode_origins
from streampipe.shards.index_cache import IndexCache
from streampipe.shards.manifest import Manifest, ShardEntry, TokenizerInfo, read_manifest
from streampipe.storage import Range, Store, open_store
from streampipe.storage.local import LocalStore

INDEX_CACHE_BYTES = 512 * 2**20
MAX_READ_BYTES = 8 * 2**20
"""Adjacent frames are fetched together up to this size, so that long runs still are several requests in flight."""


class Source:
    """One split of a source. May be pickled, shared by threads, and used in a forked child.

    Args:
        name: what the stream calls it.
        store: its folder.
        manifest: what `read_manifest(store)` returned.
        split: one of the manifest's.
        index_cache_bytes: how much memory the indexes may take.

    Raises:
        ConfigError: if there is no such split.
    """

    def __init__(
        self, name: str, store: Store, manifest: Manifest, split: str, *, index_cache_bytes: int = INDEX_CACHE_BYTES
    ) -> None:
        if split not in manifest.splits:
            raise ConfigError(f"{store.url}: there is no split {split!r}; choose one of {sorted(manifest.splits)}")
        self.name = name
        self.store = store
        self.manifest = manifest
        self.split = split
        self.shards: list[ShardEntry] = manifest.splits[split]
        self._indexes = IndexCache(index_cache_bytes)

    @classmethod
    def open(
        cls, name: str, url: str, split: str = "train", storage_options: Mapping[str, Any] | None = None
    ) -> "Source":
        """Read the manifest, and nothing else, of the source at `url`.

        Raises:
            ManifestError, FormatVersionError: as `read_manifest` does.
            ConfigError: if there is no such split.
        """
        store = open_store(url, storage_options)
        return cls(name, store, read_manifest(store), split)

    def __repr__(self) -> str:
        return f"Source({self.name!r}, {self.url!r}, {self.split!r})"

    @property
    def url(self) -> str:
        """The address of the source, without credentials."""
        return self.store.url

    @property
    def tokenizer(self) -> TokenizerInfo:
        """The tokenizer that made the ids."""
        return self.manifest.tokenizer

    @property
    def token_dtype(self) -> "np.dtype[Any]":
        """How ids are stored: little-endian uint16 or uint32."""
        return np.dtype(self.manifest.token_dtype).newbyteorder("<")

    @property
    def is_local(self) -> bool:
        """Whether its bytes are on this machine."""
        return isinstance(self.store, LocalStore)

    @property
    def kind(self) -> str:
        """What a document is: text, conversation or preference."""
        return self.manifest.kind

    @property
    def built(self) -> dict[str, Any]:
        """How the documents of this split were built, such as their `eos`; empty if the manifest does not say."""
        recorded = self.manifest.build.get(self.split)
        return recorded if isinstance(recorded, dict) else {}

    @property
    def members(self) -> int:
        """Token members of a document: 2 for pairs, else 1."""
        return len(self.manifest.members)

    def longest_document(self) -> int:
        """Return the tokens of the longest document, all its members together."""
        return max((entry.longest for entry in self.shards), default=0)

    def mean_document(self, shards: int | None = None) -> Fraction:
        """Return the mean length of a document of the first shards, or of all, in tokens of all its members."""
        return Fraction(int(self.shard_tokens[:shards].sum()), int(self.shard_documents[:shards].sum()))

    @cached_property
    def shard_tokens(self) -> NDArray[np.int64]:
        """Tokens of each shard: int64 [S]."""
        return np.array([entry.tokens for entry in self.shards], np.int64)

    @cached_property
    def shard_documents(self) -> NDArray[np.int64]:
        """Documents of each shard: int64 [S]."""
        return np.array([entry.documents for entry in self.shards], np.int64)

    @cached_property
    def content_hash(self) -> str:
        """16 hex digits of what the split holds, wherever it lies: kind, dtype, and its files' hashes in order."""
        return self.content_of(len(self.shards))

    def content_of(self, shards: int) -> str:
        """Return the `content_hash` of the first shards alone: what a source held before it grew."""
        files = [[entry.hash, entry.index_hash] for entry in self.shards[:shards]]
        content = msgspec.json.encode([self.manifest.kind, self.manifest.token_dtype, files])
        return hashlib.sha256(content).hexdigest()[:16]

    def index(self, shard: int) -> FrameIndex:
        """Return the checked index of a shard, read at its first use.

        Raises:
            ShardMissingError, ShardCorruptError, FormatVersionError: if it is not what the manifest lists.
        """
        return self._indexes.get(shard, self.load_index)

    def load_index(self, shard: int) -> FrameIndex:
        """Read and check the index of a shard afresh."""
        entry = self._entry(shard)
        kind, itemsize = self.manifest.kind, self.token_dtype.itemsize
        return decode_index(self._index_bytes(entry), entry, self.url, kind=kind, itemsize=itemsize)

    def origins(self, shard: int) -> Origins | None:
        """Return where the documents of a shard came from, or None if its index does not say."""
        entry = self._entry(shard)
        return decode_origins(self._index_bytes(entry), entry, self.url)

    def read_frames(
        self, frames: Sequence[tuple[int, int]], buffers: FrameBuffers | None = None
    ) -> list[bytes | memoryview]:
        """Return the raw bytes of frames (shard, frame), checked and decoded, in the order asked for.

        Args:
            frames: (shard, frame) pairs.
            buffers: memory to decode into; without it each frame is bytes of its own.

        Raises:
            ShardMissingError, ShardCorruptError, StorageError: naming shard, frame and byte.
        """
        stored = dict(zip(frames, self.fetch_frames(frames), strict=True))
        raw = {frame: own.decoded(buffers) for frame, own in stored.items()}
        return [raw[frame] for frame in frames]

    def fetch_frames(self, frames: Sequence[tuple[int, int]]) -> list[StoredFrame]:
        """Return frames (shard, frame) as they are stored, checked against the index, in the order asked for.

        One bulk read; adjacent frames of one shard are fetched together, a frame asked for twice once.

        Raises:
            ShardMissingError, ShardCorruptError, StorageError: naming shard, frame and byte.
        """
        runs = self._runs(sorted(set(frames)))
        ranges: list[Range] = []
        for shard, first, stop in runs:
            index = self.index(shard)
            start, end = int(index.offset[first]), int(index.offset[stop - 1] + index.compressed_bytes[stop - 1])
            ranges.append((self.shards[shard].path, start, end - start))
        stored: dict[tuple[int, int], StoredFrame] = {}
        compression = self.manifest.compression
        for (shard, first, stop), data in zip(runs, self.read_stored(ranges), strict=True):
            index, where, view = self.index(shard), f"{self.url}/{self.shards[shard].path}", memoryview(data)
            for f in range(first, stop):
                start = int(index.offset[f] - index.offset[first])
                # The last frame takes all that is left, so that a server that sends too much is noticed.
                own = view[start : start + int(index.compressed_bytes[f])] if f < stop - 1 else view[start:]
                stored[shard, f] = StoredFrame(own, f, index, compression, where)
        return [stored[frame] for frame in frames]

    def read_stored(self, ranges: Sequence[Range]) -> list[bytes]:
        """Return bytes of this source's files as they are stored, unchecked; short at the end of a file.

        Raises:
            ShardMissingError: if a file is not there.
        """
        try:
            return self.store.read_ranges(ranges)
        except FileNotFoundError as error:
            raise self._missing(str(error.filename or "").rpartition("/")[2], error) from error

    def _runs(self, frames: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """Join adjacent frames, in ascending order, to (shard, first, stop)."""
        runs: list[tuple[int, int, int]] = []
        room = 0
        for shard, f in frames:
            index = self.index(shard)
            if not 0 <= f < len(index.offset):
                raise IndexError(f"{self.shards[shard].path} has frames 0 to {len(index.offset) - 1}, but got {f}")
            room -= int(index.compressed_bytes[f])
            if runs and runs[-1][0] == shard and runs[-1][2] == f and room >= 0:
                runs[-1] = (shard, runs[-1][1], f + 1)
            else:
                runs.append((shard, f, f + 1))
                room = MAX_READ_BYTES - int(index.compressed_bytes[f])
        return runs

    def _entry(self, shard: int) -> ShardEntry:
        if not 0 <= shard < len(self.shards):
            raise IndexError(
                f"{self.url}: split {self.split!r} has shards 0 to {len(self.shards) - 1}, but got {shard}"
            )
        return self.shards[shard]

    def _index_bytes(self, entry: ShardEntry) -> bytes:
        try:
            return self.store.read(entry.index_path)
        except FileNotFoundError as error:
            raise self._missing(entry.index_path, error) from error

    def _missing(self, path: str, error: FileNotFoundError) -> ShardMissingError:
        return ShardMissingError(
            f"{self.url}/{path}: expected this file, which the manifest lists, but it is not there ({error.strerror}); "
            f"restore it from where it was built; `shardtools verify {self.url}` lists all faults",
            self.url,
            path,
        )
