"""`faults` finds what no checksum can: files that are whole, correctly hashed, and wrong."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from streampipe.shards import (
    Document,
    FrameIndex,
    Manifest,
    Source,
    check_shard,
    codec_for,
    encode_index,
    faults,
    split_faults,
    write_manifest,
)
from streampipe.shards.member import END_MARKER

WriteSource = Callable[..., Source]
URL = "memory://verify/web"


@pytest.fixture
def source(documents: list[Document], write_source: WriteSource) -> Source:
    return write_source(URL, documents)


def _publish(source: Source, index: FrameIndex, data: bytes | None = None, **changes: Any) -> Source:
    """Put another index (and shard) in place of shard 0's, with hashes and sizes that are right."""
    entry = source.shards[0]
    index_bytes = encode_index(index)
    source.store.write(entry.index_path, index_bytes)
    fields: dict[str, Any] = {"index_bytes": len(index_bytes), "index_hash": hashlib.sha256(index_bytes).hexdigest()}
    if data is not None:
        source.store.write(entry.path, data)
        fields |= {"bytes": len(data), "hash": hashlib.sha256(data).hexdigest()}
    return _sign(source, splits={"train": [msgspec.structs.replace(entry, **fields, **changes), source.shards[1]]})


def _sign(source: Source, **changes: Any) -> Source:
    manifest: Manifest = msgspec.structs.replace(source.manifest, **changes)
    write_manifest(source.store, manifest)
    return Source.open("web", URL)


def _reframed(source: Source, raws: Sequence[bytes]) -> Source:
    """Replace the raw bytes of shard 0's frames, keeping everything that the index says of their documents."""
    codec = codec_for("zstd")
    stored = [codec.compress(raw) for raw in raws]
    sizes = np.array([len(data) for data in stored])
    index = replace(
        source.index(0),
        offset=np.cumsum(sizes) - sizes,
        compressed_bytes=sizes,
        raw_bytes=np.array([len(raw) for raw in raws]),
        checksum=np.array([xxhash.xxh3_64_intdigest(data) for data in stored], np.uint64),
    )
    return _publish(source, index, b"".join(stored))


def test_a_sound_source_has_no_faults(source: Source) -> None:
    assert list(faults(source)) == []


def test_tokens_that_are_not_where_the_index_leads_are_found(source: Source) -> None:
    offsets = source.index(0).payload_offsets.copy()
    offsets[3] += 2
    offsets[5] -= 2
    wrong = _publish(source, replace(source.index(0), payload_offsets=offsets))
    lines = list(faults(wrong))
    assert lines
    assert "train-00000.tar.zst: frame 0 at byte 0: 000006.tokens: its tokens are not at byte" in lines[0]


def test_lengths_that_changed_places_are_found(source: Source) -> None:
    lengths = source.index(0).lengths.copy()
    lengths[[0, 1]] = lengths[[1, 0]]
    wrong = _publish(source, replace(source.index(0), lengths=lengths))
    (line,) = faults(wrong)
    assert "frame 0 at byte 0: 000000.tokens: expected uint16 [" in line


def test_frames_that_changed_places_are_found(source: Source) -> None:
    raws = source.read_frames([(0, f) for f in range(source.shards[0].frames)])
    lines = list(faults(_reframed(source, [raws[0], raws[2], raws[1], *raws[3:]])))
    assert lines
    assert all(f"{URL}/train-00000" in line for line in lines)


@pytest.mark.parametrize("which", [0, -1])
def test_an_end_marker_in_the_middle_or_none_at_the_end_is_found(source: Source, which: int) -> None:
    raws = source.read_frames([(0, f) for f in range(source.shards[0].frames)])
    raws[which] = raws[which] + END_MARKER if which == 0 else raws[which].removesuffix(END_MARKER)
    (line,) = faults(_reframed(source, raws))
    assert "tar end marker after the last document" in line


def test_a_key_that_is_in_two_frames_is_found(source: Source) -> None:
    raws = source.read_frames([(0, f) for f in range(source.shards[0].frames)])
    first, documents = raws[0][:512], raws[1]
    renamed = _renamed(documents, first[:6])
    (line,) = faults(_reframed(source, [raws[0], renamed, *raws[2:]]))
    assert "keys must be unique in a shard, but '000000' is in an earlier frame too" in line


def _renamed(raw: bytes, key: bytes) -> bytes:
    """Give the first document of a raw frame another key, with the checksum that belongs to it."""
    head = bytearray(raw[:512])
    head[: len(key)] = key
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + raw[512:]


def test_other_tokens_than_the_kind_has_are_found(source: Source) -> None:
    raws = source.read_frames([(0, f) for f in range(source.shards[0].frames)])
    raws[0] = raws[0].replace(b".tokens.npy", b".loss.npy\0\0", 1)
    head = bytearray(raws[0][:512])
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    (line,) = faults(_reframed(source, [bytes(head) + raws[0][512:], *raws[1:]]))
    assert "document '000000' has the members ['loss']; expected ['tokens'] (text), in this order" in line


def test_an_array_of_another_dtype_is_found(source: Source) -> None:
    raws = source.read_frames([(0, f) for f in range(source.shards[0].frames)])
    raws[0] = raws[0].replace(b"'<u2'", b"'<i2'", 1)
    (line,) = faults(_reframed(source, raws))
    assert "expected uint16 [" in line
    assert "got int16" in line


def test_ids_over_the_tokenizers_are_found(source: Source) -> None:
    wrong = _sign(source, tokenizer=msgspec.structs.replace(source.tokenizer, max_id=49_000))
    lines = list(faults(wrong))
    assert all("is over the tokenizer's 49000" in line for line in lines)
    assert lines


def test_a_wrong_shard_hash_or_histogram_is_found(source: Source) -> None:
    entry = msgspec.structs.replace(source.shards[0], hash="0" * 64)
    (line,) = faults(_sign(source, splits={"train": [entry, source.shards[1]]}))
    assert f"train-00000.tar.zst: expected SHA-256 {'0' * 64}, got" in line
    (line,) = faults(_sign(source, histogram={"train": [(256, 60)]}))
    assert f"{URL}/manifest.json: the histogram of split 'train' is [(256, 60)]" in line


def test_an_index_that_cannot_be_read_does_not_hide_a_damaged_shard(source: Source) -> None:
    source.store.delete(source.shards[0].index_path)
    data = source.store.read(source.shards[0].path)
    source.store.write(source.shards[0].path, data[:-1] + bytes([data[-1] ^ 1]))
    lines = list(faults(source))
    assert len(lines) == 2
    assert "train-00000.index.parquet: expected this file" in lines[0]
    assert "train-00000.tar.zst: expected SHA-256" in lines[1]


def test_shards_may_be_checked_one_by_one_in_any_order(source: Source) -> None:
    checks = [check_shard(source, shard) for shard in (1, 0)]
    assert [check.faults for check in checks] == [[], []]
    assert list(split_faults(source, checks)) == []
    assert list(split_faults(source, checks[:1]))


def test_a_frame_longer_than_one_read_is_checked_whole(
    documents: list[Document], write_source: WriteSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streampipe.shards.verify.READ_BYTES", 700)
    source = write_source(URL, documents)
    assert list(faults(source)) == []
    data = source.store.read(source.shards[1].path)
    source.store.write(source.shards[1].path, data[: len(data) // 2])
    (line,) = faults(source)
    assert f"ends at byte {len(data) // 2}, expected {len(data)} bytes" in line
