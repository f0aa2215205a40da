"""Frozen sources of conversations and of pairs: version 1 of these kinds must stay readable, and be built again.

They were written with libzstd 1.5.7 and pyarrow 26.0.1.
"""

import json
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import zstandard

from streampipe.shards import (
    TOKENIZER_NAME,
    AnyDocument,
    Document,
    EncodedShard,
    InputEntry,
    Manifest,
    Pair,
    Source,
    TokenizerInfo,
    Trained,
    encode_shard,
    faults,
    length_histogram,
    parse_frame,
    tokenizer_hashes,
    write_manifest,
)
from streampipe.shards.manifest import MEMBERS_OF_KIND, Kind
from streampipe.storage import LocalStore

GOLDEN = Path(__file__).parent / "golden"
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [{"id": 257, "content": "<|im_end|>", "special": True}],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "ö": 256}, "merges": []},
}


def side(tokens: list[int], *spans: tuple[int, int]) -> Trained:
    return Trained(np.array(tokens), np.array(spans))


DOCUMENTS: dict[Kind, list[AnyDocument]] = {
    "conversation": [
        Document("000000", np.array([9, 8, 7, 257, 5, 4, 257]), np.array([[4, 7]]), 0, 0, {"id": "a"}),
        Document("000001", np.array([1, 2, 257, 3, 256, 257, 6, 257]), np.array([[0, 1], [1, 3], [6, 8]]), 0, 2),
        Document("000002", np.array([0]), np.array([[0, 1]]), 1, 0, {"ä": [1, None, "b"], "Z": {}}),
    ],
    "preference": [
        Pair("000000", side([5, 6, 7, 257], (2, 4)), side([5, 6, 8, 9, 257], (2, 5)), 0, 0),
        Pair("000001", side([1, 2], (1, 2)), side([1, 257], (1, 2)), 0, 1, {"margin": 1.5}),
        Pair("000002", side([3, 4, 0, 257], (1, 2), (3, 4)), side([3, 1, 0], (1, 3)), 0, 3),
    ],
}
KINDS = sorted(DOCUMENTS)


def build(kind: Kind) -> tuple[EncodedShard, Manifest]:
    shard = encode_shard(DOCUMENTS[kind], "train-00000", token_dtype="uint16", frame_tokens=10)
    of_all, core = tokenizer_hashes(json.dumps(TOKENIZER).encode())
    manifest = Manifest(
        kind=kind,
        compression="zstd",
        token_dtype="uint16",
        members=MEMBERS_OF_KIND[kind],
        tokenizer=TokenizerInfo(of_all, core, 258, 257, 257, None, None, {"<|im_end|>": 257}),
        chat_template_hash="c" * 64,
        splits={"train": [shard.entry]},
        histogram={"train": length_histogram(shard.index.document_lengths)},
        counts={"documents": 3},
        inputs=[InputEntry("chats.jsonl", 57, "d" * 64), InputEntry("more.jsonl", 9, "e" * 64)],
        build={"frame_tokens": 10},
    )
    return shard, manifest


def write(kind: Kind, folder: Path) -> None:
    """Write a source as it is frozen: `python tests/shards/test_frozen_kinds.py` writes both, once for a version."""
    shard, manifest = build(kind)
    store = LocalStore(str(folder))
    store.write(TOKENIZER_NAME, json.dumps(TOKENIZER, indent=1, ensure_ascii=False).encode())
    store.write(shard.shard_name, shard.shard_bytes)
    store.write(shard.index_name, shard.index_bytes)
    write_manifest(store, manifest)


@pytest.mark.parametrize("kind", KINDS)
def test_the_frozen_source_is_still_read(kind: Kind) -> None:
    source = Source.open("frozen", str(GOLDEN / f"{kind}-1"))
    assert (source.manifest.format_version, source.manifest.kind) == (1, kind)
    assert list(faults(source)) == []
    index = source.index(0)
    assert index.documents.tolist() == [2, 1]
    raws = source.read_frames([(0, 0), (0, 1)])
    arrays = [array.tolist() for document in DOCUMENTS[kind] for array in document.arrays()]
    plain = [part for raw in raws for part in parse_frame(raw, kind=kind)]
    assert [array.tolist() for _, member, array in plain if member != "meta.json"] == arrays
    metas = {key: json.loads(array.tobytes()) for key, member, array in plain if member == "meta.json"}
    assert metas == {document.key: document.meta for document in DOCUMENTS[kind] if document.meta is not None}
    assert index.loss_spans is not None
    assert index.loss_tokens is not None
    for i in range(len(index.lengths)):
        raw = raws[int(i // index.members >= 2)]
        assert np.frombuffer(raw, "<u2", index.lengths[i], index.payload_offsets[i]).tolist() == arrays[2 * i]
        spans = index.loss_spans.values[index.loss_spans.offsets[i] : index.loss_spans.offsets[i + 1]]
        assert spans.reshape(-1, 2).tolist() == arrays[2 * i + 1]
    expected = {"conversation": [3, 5, 1], "preference": [2, 3, 1, 1, 2, 2]}
    assert index.loss_tokens.tolist() == expected[kind]
    assert source.shards[0].longest == {"conversation": 8, "preference": 9}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_the_frozen_source_is_built_again(kind: Kind, tmp_path: Path) -> None:
    shard, manifest = build(kind)
    frozen = Source.open("frozen", str(GOLDEN / f"{kind}-1"))
    for f in range(2):
        stored = shard.shard_bytes[shard.index.offset[f] :][: shard.index.compressed_bytes[f]]
        assert zstandard.ZstdDecompressor().decompress(stored) == frozen.read_frames([(0, f)])[0]
    same_zstd, same_pyarrow = zstandard.ZSTD_VERSION == (1, 5, 7), pa.__version__ == "26.0.1"
    if same_zstd:
        assert shard.shard_bytes == (GOLDEN / f"{kind}-1" / shard.shard_name).read_bytes()
    if same_zstd and same_pyarrow:
        assert shard.index_bytes == (GOLDEN / f"{kind}-1" / shard.index_name).read_bytes()
    # What the compressors decide is set equal; all the rest of the manifest must be, to the byte.
    write_manifest(LocalStore(str(tmp_path)), msgspec.structs.replace(manifest, splits=frozen.manifest.splits))
    assert (tmp_path / "manifest.json").read_bytes() == (GOLDEN / f"{kind}-1" / "manifest.json").read_bytes()


if __name__ == "__main__":
    for each in KINDS:
        write(each, GOLDEN / f"{each}-1")
