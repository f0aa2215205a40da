"""The index: hostile or damaged ones are refused, and version 1 has room for the kinds to come."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampipe.errors import FormatVersionError, ShardCorruptError
from streampipe.shards import (
    Document,
    EncodedShard,
    FrameIndex,
    Origins,
    Ragged,
    ShardEntry,
    decode_index,
    decode_origins,
    encode_index,
    encode_shard,
)

URL = "s3://bucket/web"


@pytest.fixture
def shard(documents: list[Document]) -> EncodedShard:
    return encode_shard(documents, "train-00000", token_dtype="uint16", frame_tokens=1_000)


def _listing(entry: ShardEntry, data: bytes, **fields: int) -> ShardEntry:
    return msgspec.structs.replace(entry, index_bytes=len(data), index_hash=hashlib.sha256(data).hexdigest(), **fields)


def _equal(first: FrameIndex, second: FrameIndex) -> bool:
    def flat(index: FrameIndex) -> list[Any]:
        parts = []
        for name in FrameIndex.__dataclass_fields__:
            part = getattr(index, name)
            parts += [part.offsets, part.values] if isinstance(part, Ragged) else [part]
        return parts

    return all(
        (a is None and b is None) or (a.dtype == b.dtype and np.array_equal(a, b))
        for a, b in zip(flat(first), flat(second), strict=True)
    )


def test_what_is_encoded_is_decoded(shard: EncodedShard) -> None:
    assert _equal(decode_index(shard.index_bytes, shard.entry, URL), shard.index)
    assert shard.index.nbytes == sum(
        array.nbytes for array in vars(shard.index).values() if isinstance(array, np.ndarray)
    )


def _of_pairs(shard: EncodedShard) -> tuple[FrameIndex, ShardEntry, Origins]:
    """An index of preference pairs with all optional columns: every document of `shard` is chosen and rejected."""
    index, documents = shard.index, shard.entry.documents
    spans = np.arange(documents * 2 + 1)
    pairs = replace(
        index,
        raw_bytes=index.raw_bytes * 2,
        tokens=index.tokens * 2,
        lengths=np.repeat(index.lengths, 2),
        payload_offsets=np.repeat(index.payload_offsets, 2),
        loss_tokens=np.ones(documents * 2, np.int32),
        loss_spans=Ragged(2 * spans, np.tile(np.array([0, 1], np.int32), documents * 2)),
        fragments=Ragged(np.arange(documents + 1) // 2, np.zeros(documents // 2, np.int32)),
    )
    origins = Origins(np.zeros(documents, np.int32), np.arange(documents) * 10**10)
    changes = {"tokens": 2 * shard.entry.tokens, "loss_tokens": 2 * documents, "longest": 2 * shard.entry.longest}
    return pairs, _listing(shard.entry, encode_index(pairs, origins), **changes), origins


def test_version_1_holds_what_later_kinds_need(shard: EncodedShard, tmp_path: Path) -> None:
    pairs, entry, origins = _of_pairs(shard)
    data = encode_index(pairs, origins)
    decoded = decode_index(data, entry, URL, kind="preference")
    assert _equal(decoded, pairs)
    assert decoded.members == 2
    assert decoded.document_lengths.tolist() == (2 * shard.index.document_lengths).tolist()
    found = decode_origins(data, entry, URL)
    assert found is not None
    assert (found.file.tolist(), found.row.tolist()) == (origins.file.tolist(), origins.row.tolist())
    (tmp_path / "a.index.parquet").write_bytes(data)
    query = f"select sum(list_sum(loss_tokens)), sum(len(flatten(loss_spans))) from '{tmp_path}/*.index.parquet'"
    assert duckdb.sql(query).fetchall() == [(entry.loss_tokens, 2 * entry.loss_tokens)]


def test_an_index_without_origins_says_so(documents: list[Document]) -> None:
    bare = [replace(document, origin_file=None, origin_row=None) for document in documents]
    shard = encode_shard(bare, "train-00000", token_dtype="uint16")
    assert decode_origins(shard.index_bytes, shard.entry, URL) is None


def _contradictions(index: FrameIndex) -> dict[str, dict[str, Any]]:
    def changed(array: np.ndarray, i: int, by: int) -> np.ndarray:
        copy = array.copy()
        copy[i] += by
        return copy

    return {
        "every frame to start where the one before it ends": {"offset": changed(index.offset, 1, -1)},
        "the manifest says .* bytes|expected frames of": {"compressed_bytes": changed(index.compressed_bytes, 0, 1)},
        "expected frames of .* bytes together": {"compressed_bytes": changed(index.compressed_bytes, 0, 2**62)},
        "raw bytes": {"raw_bytes": changed(index.raw_bytes, 0, 2**40)},
        "expected documents of at least one token, inside": {
            "payload_offsets": changed(index.payload_offsets, 3, 2**40)
        },
        "at least one token, inside their frame": {"payload_offsets": changed(index.payload_offsets, 0, -(2**40))},
        "multiples of 2, the bytes of a token": {"payload_offsets": changed(index.payload_offsets, 3, -1)},
        "the sum of its `lengths`": {"tokens": changed(index.tokens, 0, 1)},
        "the manifest says .* tokens": {"lengths": changed(index.lengths, 0, 1)},
    }


def test_an_index_that_contradicts_itself_is_refused_though_its_hash_is_right(shard: EncodedShard) -> None:
    for fault, changes in _contradictions(shard.index).items():
        data = encode_index(replace(shard.index, **changes))
        with pytest.raises(ShardCorruptError, match=fault) as caught:
            decode_index(data, _listing(shard.entry, data), URL)
        assert str(caught.value).startswith(
            f"{URL}/train-00000.index.parquet: the index of train-00000.tar.zst is damaged"
        )


@pytest.mark.parametrize("field", ["bytes", "frames", "documents", "tokens", "longest"])
def test_an_index_that_contradicts_the_manifest_is_refused(shard: EncodedShard, field: str) -> None:
    entry = msgspec.structs.replace(shard.entry, **{field: getattr(shard.entry, field) + 1})
    with pytest.raises(ShardCorruptError, match="is damaged: "):
        decode_index(shard.index_bytes, entry, URL)


def test_the_number_of_members_must_be_the_sources(shard: EncodedShard) -> None:
    with pytest.raises(ShardCorruptError, match="expected 2 token members a document, got 1"):
        decode_index(shard.index_bytes, shard.entry, URL, kind="preference")


def _rewritten(data: bytes, change: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(change(pq.read_table(pa.BufferReader(data))), sink)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("version", ["2", "", "none", None])
def test_another_version_is_refused_by_name(shard: EncodedShard, version: str | None) -> None:
    metadata = {} if version is None else {"streampipe.format_version": version}
    data = _rewritten(shard.index_bytes, lambda table: table.replace_schema_metadata(metadata))
    with pytest.raises(FormatVersionError, match=r"train-00000\.index\.parquet: format version .* is not known"):
        decode_index(data, _listing(shard.entry, data), URL)


@pytest.mark.parametrize("name", ["offset", "checksum", "lengths", "documents"])
def test_an_absent_or_retyped_column_is_refused(shard: EncodedShard, name: str) -> None:
    def null(table: pa.Table) -> pa.Table:
        i = table.column_names.index(name)
        return table.set_column(i, name, pa.nulls(len(table), table.schema.field(i).type))

    def text(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index(name), name, pa.array(["x"] * len(table)))

    for change in (lambda table: table.drop_columns([name]), null, text, lambda table: table.slice(0, 0)):
        data = _rewritten(shard.index_bytes, change)
        with pytest.raises(ShardCorruptError, match="is damaged: "):
            decode_index(data, _listing(shard.entry, data), URL)


def test_a_column_that_a_later_release_added_is_left_alone(shard: EncodedShard) -> None:
    data = _rewritten(shard.index_bytes, lambda table: table.append_column("note", pa.array(["x"] * len(table))))
    assert _equal(decode_index(data, _listing(shard.entry, data), URL), shard.index)


def test_the_hash_is_checked_before_the_bytes_are_parsed(shard: EncodedShard) -> None:
    with pytest.raises(ShardCorruptError, match="expected SHA-256"):
        decode_index(b"x" * shard.entry.index_bytes, shard.entry, URL)
    data = b"<html>not an index</html>"
    with pytest.raises(ShardCorruptError, match="is damaged: "):
        decode_index(data, _listing(shard.entry, data), URL)
