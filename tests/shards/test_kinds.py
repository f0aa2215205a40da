"""Conversations and preference pairs: what is encoded is decoded, masks included, and what cannot be is refused."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import numpy as np
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from streampipe.shards import (
    AnyDocument,
    Document,
    Pair,
    Source,
    Trained,
    encode_shard,
    faults,
    parse_frame,
)
from streampipe.shards.document import ARRAYS_OF_KIND

WriteSource = Callable[..., Source]
OfKind = dict[str, Sequence[AnyDocument]]
ReadTokens = Callable[[Source], list[list[np.ndarray]]]
METAS = st.none() | st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=2),
        max_leaves=3,
    ),
    max_size=2,
)


@st.composite
def trained(draw: st.DrawFn, longest: int = 40) -> Trained:
    """Tokens and some of the intervals between random borders; spans may touch each other and both ends."""
    tokens = draw(st.lists(st.integers(0, 49_999), min_size=1, max_size=longest))
    borders = sorted(draw(st.sets(st.integers(0, len(tokens)), min_size=2, max_size=6)))
    intervals = list(pairwise(borders))
    chosen = draw(st.lists(st.sampled_from(intervals), min_size=1, unique=True))
    return Trained(np.array(tokens), np.array(sorted(chosen), draw(st.sampled_from(["int32", "int64", ">i4"]))))


def conversation(key: str, side: Trained, **fields: Any) -> Document:
    return Document(key, side.tokens, side.loss, **fields)


@st.composite
def corpora(draw: st.DrawFn) -> dict[str, Any]:
    kind, count = draw(st.sampled_from(["conversation", "preference"])), draw(st.integers(2, 12))
    documents: list[AnyDocument] = []
    for i in range(count):
        fields = {"origin_file": 0, "origin_row": i, "meta": draw(METAS)}
        side = draw(trained())
        documents.append(
            conversation(f"{i:04d}", side, **fields)
            if kind == "conversation"
            else Pair(f"{i:04d}", side, draw(trained()), **fields)
        )
    return {
        "documents": documents,
        "token_dtype": draw(st.sampled_from(["uint16", "uint32"])),
        "frame_tokens": draw(st.integers(1, 200)),
        "compression": draw(st.sampled_from(["zstd", "none"])),
        "shards": draw(st.integers(1, 2)),
    }


def _mask(spans: Sequence[Sequence[int]], length: int) -> list[bool]:
    mask = [False] * length
    for start, end in spans:
        mask[start:end] = [True] * (end - start)
    return mask


@given(corpus=corpora())
def test_random_conversations_and_pairs_come_back_by_both_paths(
    corpus: dict[str, Any], write_source: WriteSource, read_tokens: ReadTokens
) -> None:
    source = write_source(f"memory://{uuid4().hex}", **corpus)
    assert list(faults(source)) == []
    for shard, found in enumerate(read_tokens(source)):
        documents = corpus["documents"][shard :: corpus["shards"]]
        index, entry = source.index(shard), source.shards[shard]
        arrays = [array for document in documents for array in document.arrays()]
        assert [array.tolist() for array in found] == [array.tolist() for array in arrays[0::2]]
        assert index.loss_spans is not None
        assert index.loss_tokens is not None
        borders = index.loss_spans.offsets.tolist()
        for i, (tokens, loss) in enumerate(zip(arrays[0::2], arrays[1::2], strict=True)):
            spans = index.loss_spans.values[borders[i] : borders[i + 1]].reshape(-1, 2).tolist()
            assert spans == loss.tolist()
            assert index.loss_tokens[i] == sum(_mask(spans, len(tokens)))
        assert entry.loss_tokens == index.loss_tokens.sum()
        assert entry.longest == max(document.length for document in documents)
        assert index.document_lengths.tolist() == [document.length for document in documents]
        assert _parsed(source, shard) == _listed(documents)


def _parsed(source: Source, shard: int) -> list[tuple[str, str, Any]]:
    """Read a shard through tar and npy."""
    raws = source.read_frames([(shard, f) for f in range(source.shards[shard].frames)])
    members = [
        part
        for f, raw in enumerate(raws)
        for part in parse_frame(raw, last=f == len(raws) - 1, kind=source.manifest.kind)
    ]
    return [
        (key, member, json.loads(array.tobytes()) if member == "meta.json" else array.tolist())
        for key, member, array in members
    ]


def _listed(documents: Sequence[AnyDocument]) -> list[tuple[str, str, Any]]:
    listed: list[tuple[str, str, Any]] = []
    for document in documents:
        names = ARRAYS_OF_KIND[document.kind]
        listed += [(document.key, name, array.tolist()) for name, array in zip(names, document.arrays(), strict=True)]
        listed += [(document.key, "meta.json", document.meta)] if document.meta is not None else []
    return listed


@given(side=trained(), data=st.data())
@settings(max_examples=100)
def test_spans_are_taken_if_and_only_if_they_are_a_mask_in_order(side: Trained, data: st.DataObject) -> None:
    """Against the plainest rule there is: walk over the spans, each must start at or after the end of the last."""
    numbers = st.integers(-1, len(side.tokens) + 1)
    spans = data.draw(st.lists(st.tuples(numbers, numbers), max_size=3))
    end, right = 0, bool(spans)
    for start, stop in spans:
        right, end = right and end <= start < stop <= len(side.tokens), stop
    loss = np.array(spans, np.int64).reshape(-1, 2)
    if right:
        entry = encode_shard([Document("d", side.tokens, loss)], "t", token_dtype="uint16").entry
        assert entry.loss_tokens == sum(_mask(spans, len(side.tokens)))
    else:
        with pytest.raises(ValueError, match="document 'd': "):
            encode_shard([Document("d", side.tokens, loss)], "t", token_dtype="uint16")


def test_spans_may_touch_and_cover_everything() -> None:
    document = Document("d", np.arange(5), np.array([[0, 2], [2, 5]]))
    shard = encode_shard([document], "t", token_dtype="uint16")
    assert (shard.entry.loss_tokens, shard.entry.tokens) == (5, 5)
    assert shard.index.loss_spans is not None
    assert shard.index.loss_spans.values.tolist() == [0, 2, 2, 5]


def test_meta_that_is_empty_or_of_a_text_is_kept() -> None:
    for meta in ({}, {"b": 1, "a": "ä"}):
        shard = encode_shard([Document("k", np.arange(3), meta=meta)], "t", token_dtype="uint16", compression="none")
        key, member, data = parse_frame(shard.shard_bytes, kind="text")[1]
        assert (key, member, json.loads(data.tobytes())) == ("k", "meta.json", meta)
        assert list(json.loads(data.tobytes())) == sorted(meta)


@pytest.mark.parametrize("kind", ["conversation", "preference"])
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_tar_webdataset_and_duckdb_read_them(
    tmp_path: Path, of_kind: OfKind, write_source: WriteSource, kind: str, compression: str
) -> None:
    documents = of_kind[kind]
    source = write_source(str(tmp_path), documents, shards=1, compression=compression)
    path = tmp_path / source.shards[0].path
    unpack = ["zstd", "-dcq", str(path)] if compression == "zstd" else ["cat", str(path)]
    if compression == "zstd" and not shutil.which("zstd"):
        pytest.skip("needs the zstd program")
    stream = subprocess.run(unpack, check=True, capture_output=True).stdout
    listed = subprocess.run(["tar", "t"], input=stream, check=True, capture_output=True).stdout.decode().split()
    suffixes = [f"{name}.npy" for name in ARRAYS_OF_KIND[source.manifest.kind]]
    assert listed == [
        f"{document.key}.{suffix}"
        for document in documents
        for suffix in [*suffixes, *(["meta.json"] if document.meta is not None else [])]
    ]
    samples = list(webdataset.WebDataset(f"pipe:{' '.join(unpack)}", shardshuffle=False).decode())
    assert [sample["__key__"] for sample in samples] == [document.key for document in documents]
    for sample, document in zip(samples, documents, strict=True):
        for suffix, array in zip(suffixes, document.arrays(), strict=True):
            assert np.array_equal(sample[suffix], array)
        assert sample.get("meta.json") == document.meta
    query = f"select sum(tokens), sum(list_sum(loss_tokens)), sum(len(loss_spans)) from '{tmp_path}/*.index.parquet'"
    entry = source.shards[0]
    members = len(documents) * len(source.manifest.members)
    assert duckdb.sql(query).fetchall() == [(entry.tokens, entry.loss_tokens, members)]


@pytest.mark.parametrize("kind", ["conversation", "preference"])
def test_a_pair_is_never_cut_by_a_frame_and_the_same_documents_give_the_same_bytes(of_kind: OfKind, kind: str) -> None:
    documents = of_kind[kind]
    first, second = (encode_shard(iter(documents), "t", token_dtype="uint16", frame_tokens=1) for _ in range(2))
    assert first.index.documents.tolist() == [1] * len(documents)
    assert first.index.tokens.tolist() == [document.length for document in documents]
    assert (first.shard_bytes, first.index_bytes, first.entry) == (second.shard_bytes, second.index_bytes, second.entry)
