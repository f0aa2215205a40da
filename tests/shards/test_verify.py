"""`faults` finds what no checksum can: files that are whole, correctly hashed, and wrong."""

import json
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import msgspec
import pytest
from shards.forgeries import publish, reframed, renamed, sign

from streampipe.shards import (
    TOKENIZER_NAME,
    Document,
    Source,
    check_shard,
    faults,
    split_faults,
    tokenizer_hashes,
)
from streampipe.shards.member import END_MARKER

WriteSource = Callable[..., Source]
URL = "memory://verify/web"


@pytest.fixture
def source(documents: list[Document], write_source: WriteSource) -> Source:
    return write_source(URL, documents)


def test_a_sound_source_has_no_faults(source: Source) -> None:
    assert list(faults(source)) == []


def test_tokens_that_are_not_where_the_index_leads_are_found(source: Source) -> None:
    offsets = source.index(0).payload_offsets.copy()
    offsets[3] += 2
    offsets[5] -= 2
    wrong = publish(source, replace(source.index(0), payload_offsets=offsets))
    lines = list(faults(wrong))
    assert lines
    assert "train-00000.tar.zst: frame 0 at byte 0: 000006.tokens: its tokens are not at byte" in lines[0]


def test_lengths_that_changed_places_are_found(source: Source) -> None:
    lengths = source.index(0).lengths.copy()
    lengths[[0, 1]] = lengths[[1, 0]]
    wrong = publish(source, replace(source.index(0), lengths=lengths))
    (line,) = faults(wrong)
    assert "frame 0 at byte 0: 000000.tokens: expected uint16 [" in line


def test_frames_that_changed_places_are_found(source: Source) -> None:
    raws = source.read_frames([(0, f) for f in range(source.shards[0].frames)])
    lines = list(faults(reframed(source, [raws[0], raws[2], raws[1], *raws[3:]])))
    assert lines
    assert all(f"{URL}/train-00000" in line for line in lines)


@pytest.mark.parametrize("which", [0, -1])
def test_an_end_marker_in_the_middle_or_none_at_the_end_is_found(source: Source, which: int) -> None:
    raws = source.read_frames([(0, f) for f in range(source.shards[0].frames)])
    raws[which] = raws[which] + END_MARKER if which == 0 else raws[which].removesuffix(END_MARKER)
    (line,) = faults(reframed(source, raws))
    assert "tar end marker after the last document" in line


def test_a_key_that_is_in_two_frames_is_found(source: Source) -> None:
    raws = source.read_frames([(0, f) for f in range(source.shards[0].frames)])
    repeated = renamed(raws[1], "000000.tokens.npy")
    (line,) = faults(reframed(source, [raws[0], repeated, *raws[2:]]))
    assert "keys must be unique in a shard, but '000000' is in an earlier frame too" in line


def test_other_tokens_than_the_kind_has_are_found(source: Source) -> None:
    raws = source.read_frames([(0, f) for f in range(source.shards[0].frames)])
    (line,) = faults(reframed(source, [renamed(raws[0], "000000.loss.npy"), *raws[1:]]))
    assert "document '000000' has the members ['loss']; expected ['tokens'] (text), in this order" in line


def test_an_array_of_another_dtype_is_found(source: Source) -> None:
    raws = source.read_frames([(0, f) for f in range(source.shards[0].frames)])
    raws[0] = raws[0].replace(b"'<u2'", b"'<i2'", 1)
    (line,) = faults(reframed(source, raws))
    assert "expected uint16 [" in line
    assert "got int16" in line


def test_ids_over_the_tokenizers_are_found(source: Source) -> None:
    wrong = sign(source, tokenizer=msgspec.structs.replace(source.tokenizer, max_id=49_000))
    lines = list(faults(wrong))
    assert all("is over the tokenizer's 49000" in line for line in lines)
    assert lines


def test_a_wrong_shard_hash_or_histogram_is_found(source: Source) -> None:
    entry = msgspec.structs.replace(source.shards[0], hash="0" * 64)
    (line,) = faults(sign(source, splits={"train": [entry, source.shards[1]]}))
    assert f"train-00000.tar.zst: expected SHA-256 {'0' * 64}, got" in line
    (line,) = faults(sign(source, histogram={"train": [(256, 60)]}))
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


TOKENIZER_JSON = {"model": {"type": "BPE", "vocab": {"a": 0, "ä": 1}, "merges": []}, "normalizer": None, "version": "1"}


def _with_tokenizer(source: Source, data: bytes) -> Source:
    """Write the tokenizer that the manifest lists: `TOKENIZER_JSON`; and in its place `data`."""
    of_all, core = tokenizer_hashes(json.dumps(TOKENIZER_JSON).encode())
    source.store.write(TOKENIZER_NAME, data)
    return sign(source, tokenizer=msgspec.structs.replace(source.tokenizer, hash=of_all, core_hash=core))


def test_the_tokenizer_in_the_folder_must_be_the_one_that_made_the_ids(
    documents: list[Document], write_source: WriteSource
) -> None:
    source = write_source(f"memory://{uuid4().hex}", documents[:4])
    where = f"{source.url}/{TOKENIZER_NAME}"
    for layout in ({"indent": 2}, {"ensure_ascii": False, "sort_keys": True}):
        assert list(faults(_with_tokenizer(source, json.dumps(TOKENIZER_JSON, **layout).encode()))) == []
    more = {**TOKENIZER_JSON, "added_tokens": [{"id": 2, "content": "<x>"}]}
    (line,) = faults(_with_tokenizer(source, json.dumps(more).encode()))
    assert line.startswith(f"{where}: its hash is {tokenizer_hashes(json.dumps(more).encode())[0]}, but the manifest")
    other = {**TOKENIZER_JSON, "normalizer": {"type": "NFC"}}
    lines = list(faults(_with_tokenizer(source, json.dumps(other).encode())))
    assert [line.split(" is ")[0] for line in lines] == [f"{where}: its hash", f"{where}: its core_hash"]


@pytest.mark.parametrize("data", [b"", b"<html>", b"[1]", b"{}", b'{"model": 3}', b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_tokenizer_is_a_fault(
    documents: list[Document], write_source: WriteSource, data: bytes
) -> None:
    source = write_source(f"memory://{uuid4().hex}", documents[:4])
    (line,) = faults(_with_tokenizer(source, data))
    assert line.startswith(f"{source.url}/{TOKENIZER_NAME}: expected the tokenizer that made the ids, but ")
