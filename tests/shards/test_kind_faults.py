"""`faults` of conversations and pairs whose checksums are all right: half documents, strange order, other masks."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import gt, lt
from uuid import uuid4

import numpy as np
import pytest
from shards.forgeries import files_of, publish, reframed, renamed

from streampipe.shards import (
    AnyDocument,
    Document,
    Pair,
    Source,
    Trained,
    codec_for,
    encode_frame,
    encode_shard,
    faults,
)
from streampipe.shards.document import ARRAYS_OF_KIND
from streampipe.shards.member import END_MARKER, tar_header

WriteSource = Callable[..., Source]
Files = list[tuple[str, bytes]]


@pytest.fixture(params=["conversation", "preference"])
def source(
    request: pytest.FixtureRequest, write_source: WriteSource, of_kind: dict[str, Sequence[AnyDocument]]
) -> Source:
    return write_source(f"memory://{uuid4().hex}", of_kind[request.param], shards=1)


def _first_frame(source: Source) -> tuple[Files, list[bytes]]:
    """Return the files of frame 0, and the other raw frames."""
    raws = source.read_frames([(0, f) for f in range(source.shards[0].frames)])
    assert len(raws) > 1
    return files_of(raws[0]), raws[1:]


def _only_fault(source: Source, files: Files, rest: list[bytes]) -> str:
    (line,) = faults(reframed(source, [b"".join(data for _, data in files), *rest]))
    assert line.startswith(f"{source.url}/train-00000.tar.zst: frame 0 at byte 0: ")
    return line


def test_a_frame_taken_apart_and_put_together_is_the_frame(source: Source) -> None:
    files, rest = _first_frame(source)
    assert list(faults(reframed(source, [b"".join(data for _, data in files), *rest]))) == []


def test_members_of_two_documents_that_are_interleaved_are_found(source: Source) -> None:
    """Known failure B45: `0.ids 1.ids 0.mask 1.mask`."""
    files, rest = _first_frame(source)
    two = [file for file in files if file[0][:6] in ("000001", "000002") and not file[0].endswith("json")]
    members = len(two) // 2
    mixed = [two[i + members * which] for i in range(members) for which in range(2)]
    first, after = ([file for file in files if which(file[0][:6], "000001")] for which in (lt, gt))
    line = _only_fault(source, [*first, *mixed, *(file for file in after if file[0][:6] != "000002")], rest)
    assert "the members of document '000001' are not adjacent" in line


def test_a_document_that_lacks_a_part_is_found_whichever_it_is(source: Source) -> None:
    """Known failure B47: `000003.mask` is gone."""
    files, rest = _first_frame(source)
    for member in ARRAYS_OF_KIND[source.manifest.kind]:
        fewer = [file for file in files if file[0] != f"000003.{member}.npy"]
        assert len(fewer) == len(files) - 1
        line = _only_fault(source, fewer, rest)
        assert "document '000003' has the members [" in line
        assert f"expected {ARRAYS_OF_KIND[source.manifest.kind]} ({source.manifest.kind}), in this order" in line


def test_a_part_too_many_and_parts_in_another_order_are_found(source: Source) -> None:
    files, rest = _first_frame(source)
    at = next(i for i, (name, _) in enumerate(files) if name.startswith("000001"))
    name, data = files[at]
    other = "chosen.tokens" if source.manifest.kind == "conversation" else "tokens"
    more = [*files[: at + 1], (name, renamed(data, f"000001.{other}.npy")), *files[at + 1 :]]
    assert "document '000001' has the members" in _only_fault(source, more, rest)
    turned = [*files[:at], files[at + 1], files[at], *files[at + 2 :]]
    assert "document '000001' has the members" in _only_fault(source, turned, rest)
    meta = next(i for i, (name, _) in enumerate(files) if name == "000003.meta.json")
    early = [*files[: meta - 1], files[meta], files[meta - 1], *files[meta + 1 :]]
    assert "document '000003' has the members" in _only_fault(source, early, rest)


def test_a_document_too_many_or_too_few_is_found(source: Source) -> None:
    files, rest = _first_frame(source)
    more = [(name, renamed(data, f"more{name[6:]}")) for name, data in files if name.startswith("000001")]
    line = _only_fault(source, files + more, rest)
    members, documents = len(source.manifest.members), int(source.index(0).documents[0])
    assert f"lists {documents * members} token members, the frame holds {(documents + 1) * members}" in line
    fewer = b"".join(data for name, data in files if not name.startswith("000001"))
    assert list(faults(reframed(source, [fewer, *rest])))


@pytest.mark.parametrize("meta", [b"", b"[]", b'{"a": NaN}', b'{"a": 1', b'{"a": "\xff"}', b"[" * 100_000])
def test_meta_that_is_no_json_object_is_found(source: Source, meta: bytes) -> None:
    files, rest = _first_frame(source)
    at = next(i for i, (name, _) in enumerate(files) if name == "000003.meta.json")
    files[at] = ("", tar_header("000003.meta.json", len(meta)) + meta + bytes(-len(meta) % 512))
    assert "'000003.meta.json': expected a JSON object, but" in _only_fault(source, files, rest)


def _loss_file(name: str, loss: np.ndarray) -> tuple[str, bytes]:
    buffer = io.BytesIO()
    np.save(buffer, loss)
    body = buffer.getvalue()
    return name, tar_header(name, len(body)) + body + bytes(-len(body) % 512)


def test_a_mask_in_the_shard_that_is_not_the_one_in_the_index_is_found(source: Source) -> None:
    files, rest = _first_frame(source)
    last = ARRAYS_OF_KIND[source.manifest.kind][-1]
    name, at = f"000002.{last}.npy", next(i for i, (n, _) in enumerate(files) if n == f"000002.{last}.npy")
    body = files[at][1][512:]
    spans = np.frombuffer(body, "<i4", 2, 128).reshape(1, 2)
    for loss in (spans + 1, spans[:0], np.concatenate([spans, spans]), spans.ravel(), spans.astype(np.int64)):
        files[at] = _loss_file(name, loss)
        line = _only_fault(source, files, rest)
        assert f"000002.{last}: expected int32 [spans, 2], [[" in line
        assert "as the index says, got int" in line


def test_a_mask_in_the_index_that_is_not_the_one_in_the_shard_is_found(source: Source) -> None:
    index = source.index(0)
    assert index.loss_spans is not None
    assert index.loss_tokens is not None
    values = index.loss_spans.values.copy()
    i = next(i for i in range(len(index.lengths)) if values[index.loss_spans.offsets[i + 1] - 1] < index.lengths[i])
    last = slice(index.loss_spans.offsets[i + 1] - 2, index.loss_spans.offsets[i + 1])
    values[last] += 1  # as many trained tokens, elsewhere
    lines = list(faults(publish(source, replace(index, loss_spans=replace(index.loss_spans, values=values)))))
    assert len(lines) == 1
    assert "expected int32 [spans, 2]" in lines[0]


def test_chosen_and_rejected_that_changed_places_are_found(write_source: WriteSource, pairs: list[Pair]) -> None:
    """The worst silent fault of a pair: it trains the bad answer."""
    source = write_source(f"memory://{uuid4().hex}", pairs[:1], shards=1)
    turned = [Pair(pair.key, pair.rejected, pair.chosen, meta=pair.meta) for pair in pairs[:1]]
    shard = encode_shard(turned, "t", token_dtype="uint16", compression="none")
    (line,) = faults(reframed(source, [shard.shard_bytes]))
    assert "000000.chosen.tokens: expected uint16 [" in line


def test_a_text_in_the_place_of_a_conversation_is_found(write_source: WriteSource) -> None:
    tokens, loss = np.arange(5, dtype="<u2"), np.array([[1, 4]], "<i4")
    source = write_source(f"memory://{uuid4().hex}", [Document("a", tokens, loss)], shards=1)
    raw = encode_frame([Document("a", tokens)], codec_for("none"), last=True).data
    assert raw.endswith(END_MARKER)
    (line,) = faults(reframed(source, [raw]))
    assert "document 'a' has the members ['tokens']; expected ['tokens', 'loss'] (conversation), in this order" in line


def test_a_frame_is_made_of_stored_arrays_only() -> None:
    tokens, loss = np.arange(5, dtype="<u2"), np.array([[1, 4]])
    for document in (Document("a", tokens, loss), Document("a", tokens.astype(np.int64))):
        with pytest.raises(ValueError, match=r"a\..*\.npy: expected an array as it is stored, got <i8"):
            encode_frame([document], codec_for("none"), last=True)
    pair = Pair("a", Trained(tokens, loss), Trained(tokens, loss))
    with pytest.raises(ValueError, match=r"a\.chosen\.loss\.npy: expected an array as it is stored"):
        encode_frame([pair], codec_for("none"), last=True)
