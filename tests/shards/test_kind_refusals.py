"""Conversations and pairs that cannot be: refused when written, and again when an index or a manifest claims them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pytest
from shards.forgeries import publish

from streampipe.errors import ManifestError, ShardCorruptError
from streampipe.shards import (
    AnyDocument,
    Document,
    Pair,
    Ragged,
    Source,
    Trained,
    decode_index,
    encode_shard,
    faults,
    write_manifest,
)
from streampipe.shards.manifest import MEMBERS_OF_KIND

WriteSource = Callable[..., Source]
OfKind = dict[str, Sequence[AnyDocument]]


@pytest.mark.parametrize(
    ("loss", "fault"),
    [
        ([[3, 5], [0, 2]], "must be ascending, disjoint"),
        ([[0, 3], [2, 5]], r"got \[2, 5\] where the next may start at 3"),
        ([[2, 2]], "not empty"),
        ([[3, 2]], "not empty"),
        ([[0, 6]], "within the 5 tokens of their member"),
        ([[-1, 2]], "within"),
        ([[0, 2**32 + 2]], "within"),
        (np.empty((0, 2), np.int32), "every member must have a trained token"),
        ([], r"loss must be integers \[spans, 2\]"),
        ([0, 5], r"loss must be integers \[spans, 2\], but got int64 \[2\]"),
        ([[0, 2, 4]], r"loss must be integers \[spans, 2\]"),
        ([[0.0, 2.0]], r"loss must be integers \[spans, 2\], but got float64"),
        ([[False, True]], r"loss must be integers \[spans, 2\], but got bool"),
    ],
)
def test_loss_spans_that_are_no_mask_are_refused_by_key_and_side(loss: Any, fault: str) -> None:
    tokens, sound = np.arange(5), Trained(np.arange(5), np.array([[0, 5]]))
    wrong = Trained(tokens, np.array(loss))
    for document, where in (
        (Document("k7", wrong.tokens, wrong.loss), "document 'k7': "),
        (Pair("k7", wrong, sound), "document 'k7', chosen: "),
        (Pair("k7", sound, wrong), "document 'k7', rejected: "),
    ):
        with pytest.raises(ValueError, match=where + ".*" + fault):
            encode_shard([document], "train-00000", token_dtype="uint16")


def test_ids_and_lengths_of_both_sides_are_checked() -> None:
    sound = Trained(np.arange(5), np.array([[0, 5]]))
    with pytest.raises(ValueError, match="document 'k', rejected: token ids must be within 0 and 65535"):
        encode_shard([Pair("k", sound, Trained(np.array([65_536]), np.array([[0, 1]])))], "t", token_dtype="uint16")
    with pytest.raises(ValueError, match=r"document 'k', chosen: tokens must be integers \[1 or more\]"):
        encode_shard([Pair("k", Trained(np.array([], int), np.array([[0, 1]])), sound)], "t", token_dtype="uint16")


def test_one_shard_holds_one_kind(of_kind: OfKind) -> None:
    text, chat, pair = (replace(documents[0], key=kind) for kind, documents in of_kind.items())
    for documents in ([text, chat], [chat, text], [pair, text], [chat, pair]):
        with pytest.raises(ValueError, match=r"is of kind .*, but those before it are of kind"):
            encode_shard(documents, "train-00000", token_dtype="uint16")


@pytest.mark.parametrize(
    "meta",
    [
        {"a": float("nan")},
        {"a": float("-inf")},
        {"a": {1, 2}},
        {1: "a"},
        {"a": (1, 2)},
        {"a": "\ud800"},
        {"a": {None: 1}},
        {"a": b"x"},
    ],
)
def test_meta_that_json_would_change_is_refused_by_key(meta: Any) -> None:
    with pytest.raises(ValueError, match="document 'k': meta must be a JSON object"):
        encode_shard([Document("k", np.arange(3), meta=meta)], "t", token_dtype="uint16")


def _contradictions(index: Any) -> dict[str, dict[str, Any]]:
    spans, trained_tokens = index.loss_spans, index.loss_tokens

    def changed(i: int, value: int) -> dict[str, Any]:
        values = spans.values.copy()
        values[i] = value
        return {"loss_spans": replace(spans, values=values)}

    offsets = spans.offsets.copy()
    offsets[1] += 1
    fewer = trained_tokens.copy()
    fewer[[0, 1]] += [1, -1]
    return {
        "loss spans must be ascending": changed(0, -1),
        "loss spans must be ascending,": changed(1, 2**31 - 1),
        "loss spans must be ascending, disjoint": changed(1, 0),
        "pairs of start and end": {"loss_spans": replace(spans, offsets=offsets)},
        "to be the sum of its `loss_spans`": {"loss_tokens": fewer},
        "the manifest says .* loss_tokens, the index": {"loss_tokens": trained_tokens + 1},
        "expected columns 'loss_tokens' and 'loss_spans' in a source of kind": {"loss_spans": None},
    }


@pytest.mark.parametrize("kind", ["conversation", "preference"])
def test_an_index_whose_masks_contradict_themselves_is_refused_though_its_hash_is_right(
    write_source: WriteSource, of_kind: OfKind, kind: str
) -> None:
    source = write_source(f"memory://{uuid4().hex}", of_kind[kind])
    index = source.index(0)
    for fault, changes in _contradictions(index).items():
        wrong = publish(source, replace(index, **changes))
        with pytest.raises(ShardCorruptError, match="train-00000.index.parquet: .* is damaged: .*" + fault):
            wrong.index(0)
        assert any("is damaged" in line for line in faults(wrong))


def test_a_source_of_one_kind_with_an_index_of_another_is_refused(write_source: WriteSource, of_kind: OfKind) -> None:
    text, chats = (write_source(f"memory://{uuid4().hex}", of_kind[kind]) for kind in ("text", "conversation"))
    index = text.index(0)
    spans = replace(index, loss_tokens=index.lengths, loss_spans=_whole(index.lengths))  # nothing wrong but that
    with pytest.raises(ShardCorruptError, match="expected no columns 'loss_tokens' and 'loss_spans' in a"):
        publish(text, spans).index(0)
    entry = chats.shards[0]
    data = chats.store.read(entry.index_path)
    for kind, fault in (("text", "expected no columns"), ("preference", "expected 2 token members a document, got 1")):
        with pytest.raises(ShardCorruptError, match=fault):
            decode_index(data, entry, chats.url, kind=kind)  # type: ignore[arg-type]


def _whole(lengths: np.ndarray) -> Any:
    return Ragged(2 * np.arange(len(lengths) + 1), np.stack([np.zeros_like(lengths), lengths], 1).ravel())


@pytest.mark.parametrize("kind", ["text", "conversation", "preference"])
def test_kind_members_and_trained_tokens_of_a_manifest_must_agree(
    write_source: WriteSource, of_kind: OfKind, kind: str
) -> None:
    source = write_source(f"memory://{uuid4().hex}", of_kind[kind])
    manifest, entry = source.manifest, source.shards[0]
    assert (manifest.kind, manifest.members) == (kind, MEMBERS_OF_KIND[manifest.kind])
    other = ["tokens"] if kind == "preference" else ["chosen.tokens", "rejected.tokens"]
    with pytest.raises(ManifestError, match=f"members of kind {kind} must be"):
        write_manifest(source.store, msgspec.structs.replace(manifest, members=other))
    fewest = entry.tokens if kind == "text" else entry.documents * len(manifest.members)
    for loss_tokens in (fewest - 1, entry.tokens + 1):
        wrong = msgspec.structs.replace(entry, loss_tokens=loss_tokens)
        with pytest.raises(ManifestError, match=f"trained tokens of .* documents of kind {kind}"):
            write_manifest(source.store, msgspec.structs.replace(manifest, splits={"train": [wrong, source.shards[1]]}))
