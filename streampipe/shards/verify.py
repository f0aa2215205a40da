"""Reading everything back: every byte of a split against its manifest, its indexes and the format."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.errors import ShardCorruptError, SourceError, StorageError
from streampipe.shards.frame import decode_frame, parse_frame
from streampipe.shards.frame_index import FrameIndex, Ragged
from streampipe.shards.manifest import MANIFEST_NAME, ShardEntry, length_histogram
from streampipe.shards.source import Source
from streampipe.shards.tokenizer_hash import TOKENIZER_NAME, tokenizer_hashes

READ_BYTES = 8 * 2**20
READS_IN_FLIGHT = 4


@dataclass(frozen=True)
class ShardCheck:
    """What reading one shard back found: a line per fault, and the histogram of its lengths if its index is sound."""

    faults: list[str]
    histogram: list[tuple[int, int]] | None


def faults(source: Source) -> Iterator[str]:
    """Yield one line for each fault of a split, naming file and place; nothing for a sound one.

    Opening the source has checked the manifest itself. Checked here: indexes (hash, sums, consistency), shards (size,
    hash, nothing behind the end), frames (checksums, tar and npy in full, every document complete), that the plain path
    through tar and npy gives the very tokens and loss spans that the index tells of, and the tokenizer beside them.
    """
    yield from tokenizer_faults(source)
    checks = []
    for shard in range(len(source.shards)):
        checks.append(check_shard(source, shard))
        yield from checks[-1].faults
    yield from split_faults(source, checks)


def tokenizer_faults(source: Source) -> Iterator[str]:
    """Yield what is wrong with the tokenizer in the folder: it must be the one that made the ids. It may be absent."""
    where, tokenizer = f"{source.url}/{TOKENIZER_NAME}", source.tokenizer
    cure = "put back the file of the build: another tokenizer reads other text from the same ids"
    try:
        hashes = tokenizer_hashes(source.store.read(TOKENIZER_NAME))
    except FileNotFoundError:
        return
    except ValueError as error:
        yield f"{where}: expected the tokenizer that made the ids, but {error}; {cure}"
        return
    except StorageError as error:
        yield str(error)
        return
    for name, listed, found in zip(("hash", "core_hash"), (tokenizer.hash, tokenizer.core_hash), hashes, strict=True):
        if listed != found:
            yield f"{where}: its {name} is {found}, but the manifest lists {listed}; {cure}"


def split_faults(source: Source, checks: Sequence[ShardCheck]) -> Iterator[str]:
    """Yield the faults that only the checks of all shards of a split together can show."""
    found: Counter[int] = Counter()
    for check in checks:
        if check.histogram is None:
            return  # what is wrong has been told, and the sums cannot be known
        found.update(dict(check.histogram))
    listed = {bound: documents for bound, documents in source.manifest.histogram[source.split] if documents}
    if found != listed:
        yield (
            f"{source.url}/{MANIFEST_NAME}: the histogram of split {source.split!r} is {sorted(listed.items())}, but "
            f"the indexes give {sorted(found.items())}; build the source again"
        )


def check_shard(source: Source, shard: int) -> ShardCheck:
    """Read one shard and its index back. Checks of different shards may run side by side."""
    found: list[str] = []
    index = None
    try:
        index = source.load_index(shard)
    except (SourceError, StorageError) as error:
        found.append(str(error))
    try:
        found += _shard_faults(source, shard, index)
    except (SourceError, StorageError) as error:
        found.append(str(error))
    return ShardCheck(found, length_histogram(index.document_lengths) if index else None)


def _shard_faults(source: Source, shard: int, index: FrameIndex | None) -> Iterator[str]:
    """Read one shard from end to end; without an index only its size and hash can be checked."""
    entry = source.shards[shard]
    where = f"{source.url}/{entry.path}"
    frames = _FrameCheck(source, index, where) if index else None
    digest, end, sound = hashlib.sha256(), 0, True
    for start, data in _stretches(source, entry, index):
        digest.update(data)
        end = start + len(data)
        for fault in frames.faults(start, data) if frames else ():
            sound = False
            yield fault
    if end < entry.bytes:
        yield f"{where}: ends at byte {end}, expected {entry.bytes} bytes; restore this file from where it was built"
    elif source.read_stored([(entry.path, entry.bytes, 1)])[0]:
        yield f"{where}: goes on after byte {entry.bytes}, where it should end; restore it from where it was built"
    elif sound and digest.hexdigest() != entry.hash:
        yield f"{where}: expected SHA-256 {entry.hash}, got {digest.hexdigest()}; restore it from where it was built"


def _stretches(source: Source, entry: ShardEntry, index: FrameIndex | None) -> Iterator[tuple[int, bytes]]:
    """Yield (start, bytes) of a shard in order, cut at frame borders if known; ends early where the file does."""
    borders = [*(range(0, entry.bytes, READ_BYTES) if index is None else index.offset.tolist()), entry.bytes]
    cuts = [0]
    for border, following in pairwise(borders):
        if following - cuts[-1] > READ_BYTES and border > cuts[-1]:
            cuts.append(border)
    ranges = [(entry.path, start, stop - start) for start, stop in pairwise([*cuts, entry.bytes])]
    for i in range(0, len(ranges), READS_IN_FLIGHT):
        group = ranges[i : i + READS_IN_FLIGHT]
        for (_, start, length), data in zip(group, source.read_stored(group), strict=True):
            yield start, data
            if len(data) != length:
                return


class _FrameCheck:
    """Checks the frames of one shard as its bytes come by, and that no key is there twice."""

    def __init__(self, source: Source, index: FrameIndex, where: str) -> None:
        self._source = source
        self._index = index
        self._where = where
        self._keys: set[str] = set()
        # Without a name that the manifest knows, the first one that the index lists tells which it is.
        self._separator = source.tokenizer.special_tokens.get(str(source.built.get("fragments_at")))

    def faults(self, start: int, data: bytes) -> Iterator[str]:
        """Yield the faults of the frames that lie whole in the stretch of the shard from byte `start` on."""
        index, view = self._index, memoryview(data)
        for f in range(int(np.searchsorted(index.offset, start)), len(index.offset)):
            begin = int(index.offset[f]) - start
            end = begin + int(index.compressed_bytes[f])
            if end > len(data):
                return
            try:
                raw = decode_frame(view[begin:end], f, index, self._source.manifest.compression, self._where)
                self._compare(raw, f)
            except ShardCorruptError as error:
                yield str(error)
            except ValueError as error:
                yield f"{self._where}: frame {f} at byte {start + begin}: {error}; build this source again"

    def _compare(self, raw: bytes, f: int) -> None:
        """Compare what tar and npy say with what the index says.

        Raises:
            ValueError: at the first difference.
        """
        index = self._index
        parsed = parse_frame(raw, last=f == len(index.offset) - 1, kind=self._source.manifest.kind)
        keys = list(dict.fromkeys(key for key, _, _ in parsed))
        if repeated := self._keys.intersection(keys):
            raise ValueError(f"keys must be unique in a shard, but {min(repeated)!r} is in an earlier frame too")
        self._keys.update(keys)
        first, stop = (index.first_document[f : f + 2] * index.members).tolist()
        found = [part for part in parsed if part[1].endswith("tokens")]
        if len(found) != stop - first:
            raise ValueError(f"the index lists {stop - first} token members, the frame holds {len(found)}")
        for i, (key, member, array) in enumerate(found, first):
            self._compare_tokens(raw, i, f"{key}.{member}", array)
        for i, (key, member, array) in enumerate((part for part in parsed if part[1].endswith("loss")), first):
            self._compare_loss(i, f"{key}.{member}", array)

    def _compare_tokens(self, raw: bytes, i: int, name: str, array: NDArray[Any]) -> None:
        dtype, limit = self._source.token_dtype, self._source.tokenizer.max_id
        length, offset = int(self._index.lengths[i]), int(self._index.payload_offsets[i])
        if array.shape != (length,) or array.dtype != dtype:
            raise ValueError(
                f"{name}: expected {dtype} [{length}] as the index says, got {array.dtype} {list(array.shape)}"
            )
        if not np.array_equal(np.frombuffer(raw, array.dtype, length, offset), array):
            raise ValueError(f"{name}: its tokens are not at byte {offset}, where the index says")
        if int(array.max()) > limit:
            raise ValueError(f"{name}: id {array.max()} is over the tokenizer's {limit}")
        if self._index.fragments is not None:
            self._compare_fragments(self._index.fragments, i, name, array)

    def _compare_fragments(self, fragments: Ragged, i: int, name: str, array: NDArray[Any]) -> None:
        listed = fragments.values[fragments.offsets[i] : fragments.offsets[i + 1]]
        if self._separator is None and len(listed):
            self._separator = int(array[listed[0]])
        found = np.flatnonzero(array == self._separator)
        if self._separator is not None and not np.array_equal(found, listed):
            raise ValueError(
                f"{name}: its separators (id {self._separator}) are at {found[:8].tolist()}, but the index lists "
                f"{listed[:8].tolist()}"
            )

    def _compare_loss(self, i: int, name: str, array: NDArray[Any]) -> None:
        spans = self._index.loss_spans
        if spans is None:
            raise ValueError(f"{name}: the index has no loss spans")
        listed = spans.values[spans.offsets[i] : spans.offsets[i + 1]].reshape(-1, 2)
        if array.dtype != np.dtype("<i4") or not np.array_equal(array, listed):
            raise ValueError(
                f"{name}: expected int32 [spans, 2], {_short(listed)}, as the index says, got {array.dtype} "
                f"{list(array.shape)}, {_short(array)}"
            )


def _short(spans: NDArray[Any]) -> str:
    return str(spans[:4].tolist()) + (f" and {len(spans) - 4} more" if len(spans) > 4 else "")
