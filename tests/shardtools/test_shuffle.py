"""Law: the order of a build is a keyed hash of content and position, so shards of a sorted corpus are alike."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtools.options import BuildOptions
from shardtools.shuffle.order import Order, RowPlace, held_out_number, identity_of
from shardtools.shuffle.payload import PayloadDecoder, encode_payload
from shardtools.shuffle.runs import Chunk, ChunkName, Part, read_payloads, read_rows
from streampipe.errors import StreampipeError
from streampipe.shards import Document, Pair, Source, Trained

SMALL = ("--shard-tokens", 8_000, "--frame-tokens", 1_000)
TOPICS = ("loader", "bucket", "epoch", "frames")


@pytest.fixture
def sorted_corpus(jsonl) -> Path:
    """1,200 documents, all of one topic before all of the next."""
    return jsonl([{"text": f"{topic} {i} " + f"{topic} " * (20 + i % 40)} for topic in TOPICS for i in range(300)])


def topics_of(folder: Path, texts_of_shard) -> np.ndarray:
    """Returns documents by shard and topic."""
    counts = [Counter(text.split()[0] for text in texts_of_shard(shard)) for shard in sorted(folder.glob("*.tar.zst"))]
    return np.array([[count[topic] for topic in TOPICS] for count in counts])


def chi_square(table: np.ndarray) -> float:
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    return float(((table - expected) ** 2 / expected).sum())


def far_beyond_chance(freedom: int) -> float:
    """Returns the chi-square that chance exceeds less than once in a million times (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 4.75 * (2 / (9 * freedom)) ** 0.5) ** 3


@pytest.fixture
def texts_of_shard(tokenizer, documents, tmp_path):
    from tokenizers import Tokenizer  # noqa: PLC0415

    decoder = Tokenizer.from_file(str(tokenizer))

    def read(shard: Path) -> list[str]:
        alone = tmp_path / "alone"
        alone.mkdir(exist_ok=True)
        for old in alone.iterdir():
            old.unlink()
        (alone / shard.name).write_bytes(shard.read_bytes())
        return [decoder.decode(ids.tolist()) for ids in documents(alone).values()]

    return read


def test_topic_shares_of_shards_differ_no_more_than_chance_allows(build, sorted_corpus, texts_of_shard, tmp_path):
    freedom = lambda table: (table.shape[0] - 1) * (table.shape[1] - 1)  # noqa: E731
    alike = topics_of(build(sorted_corpus, *SMALL), texts_of_shard)
    assert alike.shape[0] > 4
    assert alike.sum() == 1200
    assert chi_square(alike) < far_beyond_chance(freedom(alike))
    apart = topics_of(build(sorted_corpus, *SMALL, "--shuffle", "shard", output=tmp_path / "apart"), texts_of_shard)
    assert chi_square(apart) > 10 * far_beyond_chance(freedom(apart)), "the test would see a sorted corpus"


def test_inside_a_shard_topics_are_mixed_too(build, sorted_corpus, texts_of_shard):
    shard = sorted(build(sorted_corpus, *SMALL).glob("*.tar.zst"))[0]
    found = [text.split()[0] for text in texts_of_shard(shard)]
    changes = sum(a != b for a, b in pairwise(found))
    assert changes > len(found) / 2


def test_shards_come_out_about_as_large_as_asked_for(build, sorted_corpus):
    tokens = Source.open("c", str(build(sorted_corpus, *SMALL))).shard_tokens
    assert 0.6 * 8_000 < tokens.mean() < 1.2 * 8_000
    assert tokens.min() > 0.7 * tokens.mean()


@pytest.mark.parametrize("shuffle", ["global", "shard"])
def test_the_seed_decides_the_order(build, corpus, documents, tmp_path, shuffle):
    orders = [
        list(documents(build(corpus, *SMALL, "--shuffle", shuffle, "--seed", seed, output=tmp_path / f"{i}")))
        for i, seed in enumerate((0, 0, 1))
    ]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])
    assert orders[0] != sorted(orders[0])


def test_without_a_shuffle_documents_stay_in_input_order(build, corpus, documents, texts):
    folder = build(corpus, *SMALL, "--shuffle", "none")
    assert list(documents(folder)) == sorted(documents(folder))
    assert texts(folder) == [json.loads(line)["text"] for line in corpus.read_text().splitlines()]


@pytest.mark.parametrize("shuffle", ["shard", "none"])
def test_shards_made_at_once_are_those_made_in_stages(build, corpus, contents, tmp_path, monkeypatch, shuffle):
    at_once = contents(build(corpus, *SMALL, "--shuffle", shuffle, output=tmp_path / "at_once"))
    monkeypatch.setattr(BuildOptions, "in_stages", True)
    assert contents(build(corpus, *SMALL, "--shuffle", shuffle, output=tmp_path / "in_stages")) == at_once


def test_scratch_may_be_elsewhere_and_is_left_empty(build, corpus, contents, tmp_path):
    scratch = tmp_path / "scratch"
    elsewhere = contents(build(corpus, *SMALL, "--scratch", scratch, output=tmp_path / "a"))
    assert list(scratch.rglob("*")) == []
    assert contents(build(corpus, *SMALL, output=tmp_path / "b")) == elsewhere


PLACE = RowPlace(identity_of(b"the text"), 3, 1, 41)


def test_keys_are_frozen():
    keys = [Order(shuffle, 7, 4).key(PLACE, 2, 5) for shuffle in ("global", "shard", "none")]
    assert keys == [KEYS_GLOBAL, 3 << 40 | KEYS_GLOBAL >> 24, 3 << 40 | 5]
    assert held_out_number(PLACE.identity) == HELD_OUT


KEYS_GLOBAL = 14406113598333999670
HELD_OUT = 10629661871490841448


def test_every_part_of_a_place_changes_the_key():
    places = [PLACE, RowPlace(identity_of(b"other"), 3, 1, 41), RowPlace(PLACE.identity, 3, 2, 41)]
    places.append(RowPlace(PLACE.identity, 3, 1, 42))
    keys = {Order("global", seed, 4).key(place, part, 0) for place in places for part in (0, 1) for seed in (0, 1)}
    assert len(keys) == 16


@given(st.integers(1, 1000))
def test_buckets_are_equal_parts_of_all_keys(buckets):
    borders = [*Order("global", 0, buckets).borders().tolist(), 2**64]
    assert borders[0] == 0
    sizes = np.diff(np.array(borders, object))
    assert max(sizes) - min(sizes) <= 1


documents_strategy = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 3), st.lists(st.integers(0, 65535), min_size=1)), max_size=30
)


@given(documents_strategy, st.integers(1, 5))
def test_what_is_put_into_a_chunk_comes_out_of_its_buckets_once_and_in_order(given_documents, buckets):
    order = Order("global", 0, buckets)
    chunk = Chunk(order)
    for position, (key, held, ids) in enumerate(given_documents):
        payload = encode_payload(Document("0", np.array(ids, "<u2")), "uint16")
        chunk.add(payload, key=key, held=held, row=position, file=0, position=position)
    candidates = chunk.held() > 1
    data = chunk.encode(candidates)
    decoder = PayloadDecoder("text", "uint16")
    found = []
    for bucket in range(buckets):
        for which in (False, True):
            part = Part((bucket, bucket + 1), which)
            rows, slices, names = read_rows(ranges_of(data), [ChunkName("c", 5)], buckets, part)
            assert set(slices.tolist()) <= {5}
            assert (np.sort(rows["key"]) == rows["key"]).all()
            assert ((rows["held"] > 1) == which).all()
            assert all(key * buckets >> 64 == bucket for key in rows["key"].tolist())
            for row, payload in zip(rows, read_payloads(ranges_of(data), rows, names), strict=True):
                document = decoder.decode(payload, "k", (0, int(row["row"])))
                found.append((int(row["position"]), int(row["key"]), document.tokens.tolist()))
    assert sorted(found) == [(i, key, ids) for i, (key, _, ids) in enumerate(given_documents)]


def ranges_of(data: bytes):
    return lambda ranges: [data[offset : offset + length] for _, offset, length in ranges]


def test_a_flipped_bit_in_scratch_is_an_error_that_names_the_file():
    chunk = Chunk(Order("none", 0, 1))
    chunk.add(
        encode_payload(Document("0", np.arange(9, dtype="<u2")), "uint16"), key=0, held=0, row=0, file=0, position=0
    )
    data = bytearray(chunk.encode(np.zeros(1, bool)))
    rows, _, names = read_rows(ranges_of(bytes(data)), [ChunkName("run-00000-000.bin", 0)], 1, Part((0, 1), False))
    data[-1] ^= 4
    with pytest.raises(StreampipeError, match=r"run-00000-000\.bin: does not hold what was written"):
        read_payloads(ranges_of(bytes(data)), rows, names)
    with pytest.raises(StreampipeError, match="too short"):
        read_rows(ranges_of(bytes(data[:60])), [ChunkName("run-00000-000.bin", 0)], 1, Part((0, 1), False))


SPANS = np.array([[1, 2], [3, 5]])


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        ("text", Document("k", np.arange(4, dtype=np.uint16), None, 2, 3)),
        ("text", Document("k", np.arange(4), None, 2, 3, {"url": "x", "n": [1, None]})),
        ("conversation", Document("k", np.arange(6), SPANS, 2, 3, {"é": 1})),
        ("preference", Pair("k", Trained(np.arange(6), SPANS), Trained(np.arange(9), SPANS[:1]), 2, 3)),
    ],
)
@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_documents_of_every_kind_come_back_from_scratch(kind, document, dtype):
    back = PayloadDecoder(kind, dtype).decode(memoryview(encode_payload(document, dtype)), "k", (2, 3))
    assert type(back) is type(document)
    assert (back.key, back.origin_file, back.origin_row, back.meta, back.kind) == ("k", 2, 3, document.meta, kind)
    for mine, theirs in zip(back.arrays(), document.arrays(), strict=True):
        assert mine.tolist() == theirs.tolist()
        assert mine.dtype == (dtype if mine.ndim == 1 else "int32")
