"""Law 4 for the format: what is encoded is decoded, by the fast path, the plain path, and other people's tools."""

import io
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import numpy as np
import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from streampipe.shards import Document, Source, encode_shard, faults, length_histogram, parse_frame, token_dtype_for

WriteSource = Callable[..., Source]
ReadTokens = Callable[[Source], list[list[np.ndarray]]]


@st.composite
def corpora(draw: st.DrawFn) -> dict[str, Any]:
    token_dtype = draw(st.sampled_from(["uint16", "uint32"]))
    given_dtype = draw(st.sampled_from([token_dtype, "int64", ">u4", ">i8"]))
    arrays = st_numpy.arrays(given_dtype, st.integers(1, 60), elements=st.integers(0, 49_999))
    tokens = draw(st.lists(arrays, min_size=2, max_size=30))
    return {
        "documents": [Document(f"{i:04d}", array, origin_file=0, origin_row=i) for i, array in enumerate(tokens)],
        "token_dtype": token_dtype,
        "frame_tokens": draw(st.integers(1, 300)),
        "compression": draw(st.sampled_from(["zstd", "none"])),
        "shards": draw(st.integers(1, 2)),
    }


@given(corpus=corpora())
def test_random_documents_come_back_by_both_paths(
    corpus: dict[str, Any], write_source: WriteSource, read_tokens: ReadTokens
) -> None:
    source = write_source(f"memory://{uuid4().hex}", **corpus)
    dealt = [corpus["documents"][i :: corpus["shards"]] for i in range(corpus["shards"])]
    assert list(faults(source)) == []
    for shard, (documents, tokens) in enumerate(zip(dealt, read_tokens(source), strict=True)):
        index = source.index(shard)
        assert [array.tolist() for array in tokens] == [document.tokens.tolist() for document in documents]
        assert all(array.dtype == source.token_dtype for array in tokens)
        parsed = [
            member
            for f, raw in enumerate(source.read_frames([(shard, f) for f in range(len(index.offset))]))
            for member in parse_frame(raw, last=f == len(index.offset) - 1)
        ]
        assert [(key, member, array.tolist()) for key, member, array in parsed] == [
            (document.key, "tokens", document.tokens.tolist()) for document in documents
        ]
        origins = source.origins(shard)
        assert origins is not None
        assert origins.row.tolist() == [document.origin_row for document in documents]
        # Whole documents, until a frame holds enough tokens: all but the last do, none did before its last document.
        last_lengths = index.lengths[index.first_document[1:] - 1]
        assert (index.tokens[:-1] >= corpus["frame_tokens"]).all()
        assert (index.tokens - last_lengths < corpus["frame_tokens"]).all()


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_the_same_documents_give_the_same_bytes(documents: list[Document], compression: Any) -> None:
    first, second = (
        encode_shard(iter(documents), "train-00000", token_dtype="uint16", frame_tokens=999, compression=compression)
        for _ in range(2)
    )
    assert first.shard_bytes == second.shard_bytes
    assert first.index_bytes == second.index_bytes
    assert first.entry == second.entry


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_tar_lists_the_shard_and_webdataset_yields_its_documents(
    tmp_path: Path, documents: list[Document], write_source: WriteSource, compression: str
) -> None:
    source = write_source(str(tmp_path), documents, shards=1, compression=compression)
    path = tmp_path / source.shards[0].path
    unpack = ["zstd", "-dcq", str(path)] if compression == "zstd" else ["cat", str(path)]
    if compression == "zstd" and not shutil.which("zstd"):
        pytest.skip("needs the zstd program")
    stream = subprocess.run(unpack, check=True, capture_output=True).stdout
    listed = subprocess.run(["tar", "t"], input=stream, check=True, capture_output=True)
    assert listed.stdout.decode().split() == [f"{document.key}.tokens.npy" for document in documents]
    assert listed.stderr == b""
    with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
        assert len(archive.getmembers()) == len(documents)
    samples = list(webdataset.WebDataset(f"pipe:{' '.join(unpack)}", shardshuffle=False).decode())
    assert [sample["__key__"] for sample in samples] == [document.key for document in documents]
    assert all(
        np.array_equal(sample["tokens.npy"], document.tokens)
        for sample, document in zip(samples, documents, strict=True)
    )


def test_duckdb_reads_every_column_of_the_indexes(
    tmp_path: Path, documents: list[Document], write_source: WriteSource
) -> None:
    source = write_source(str(tmp_path), documents)
    indexes = f"'{tmp_path}/*.index.parquet'"
    assert duckdb.sql(f"select sum(tokens) from {indexes}").fetchall() == [(int(source.shard_tokens.sum()),)]
    assert duckdb.sql(f"select sum(len(lengths)) from {indexes}").fetchall() == [(len(documents),)]
    rows = duckdb.sql(f"select * from {indexes} ").fetchall()
    assert len(rows) == sum(entry.frames for entry in source.shards)
    columns = duckdb.sql(f"select * from {indexes}").columns
    assert columns == [
        *("offset", "compressed_bytes", "raw_bytes", "checksum", "documents", "tokens", "lengths", "payload_offsets"),
        *("origin_file", "origin_row"),
    ]


def test_an_id_that_does_not_fit_is_an_error_and_never_wraps() -> None:
    for tokens in ([1, 65_536], [-1, 5]):
        with pytest.raises(ValueError, match="'d': token ids must be within 0 and 65535"):
            encode_shard([Document("d", np.array(tokens))], "train-00000", token_dtype="uint16")
    with pytest.raises(ValueError, match="4294967295"):
        encode_shard([Document("d", np.array([2**32]))], "train-00000", token_dtype="uint32")
    assert encode_shard([Document("d", np.array([65_535]))], "t", token_dtype="uint16").entry.tokens == 1


@pytest.mark.parametrize("tokens", [[], [[1, 2]], [1.5], [True]])
def test_only_integers_in_one_row_are_a_document(tokens: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"'d': tokens must be integers \[1 or more\]"):
        encode_shard([Document("d", np.array(tokens))], "train-00000", token_dtype="uint16")


@pytest.mark.parametrize("key", ["", "a.b", "a/b", "../a", "-a", "__a__", "ä", "k" * 65, "a\n"])
def test_keys_that_tar_or_webdataset_would_take_apart_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match="a key must match"):
        encode_shard([Document(key, np.array([1]))], "train-00000", token_dtype="uint16")


def test_a_repeated_key_is_refused() -> None:
    documents = [Document("a", np.array([1]))] * 2
    for frame_tokens in (1, 100):
        with pytest.raises(ValueError, match="key 'a' is there twice"):
            encode_shard(documents, "train-00000", token_dtype="uint16", frame_tokens=frame_tokens)


def test_no_documents_are_no_shard() -> None:
    with pytest.raises(ValueError, match="there is no document"):
        encode_shard([], "train-00000", token_dtype="uint16")


def test_the_dtype_follows_the_largest_id() -> None:
    assert [token_dtype_for(i) for i in (0, 65_535, 65_536, 2**32 - 1)] == ["uint16", "uint16", "uint32", "uint32"]
    for too_large in (2**32, -1):
        with pytest.raises(ValueError, match="largest token id"):
            token_dtype_for(too_large)


@given(st.lists(st.integers(1, 2**40), max_size=50))
def test_the_histogram_counts_every_length_under_its_power_of_two(lengths: list[int]) -> None:
    histogram = length_histogram(lengths)
    assert [bound for bound, _ in histogram] == sorted({1 << (length - 1).bit_length() for length in lengths})
    for bound, documents in histogram:
        assert documents == sum(bound // 2 < length <= bound for length in lengths)
