"""Conversations and preference pairs stream like text: masks from spans, pairs whole."""

import re
from pathlib import Path

import numpy as np
import pytest
from streams import SEQ_LENGTH, drawn_lengths, spelled, write_documents, write_source

from streampipe import ConfigError, DocumentTooLongError, Topology, build_loader, config_from
from streampipe.shards import Document, Pair
from streampipe.shards.document import Trained
from streampipe.tools.digest import digest_steps


def spans_in(length, document):
    """A user's turn of three tokens, then an assistant's of four, over and over; the last one open."""
    starts = np.arange(3 + document % 2, length, 7)
    return np.array([(start, min(length, start + 4)) for start in starts.tolist()] or [(0, length)], np.int32)


def conversations(count=80, longest=300, number=2):
    lengths = drawn_lengths(count, 50, "chat", longest=longest)
    return [Document(f"{i:06d}", spelled(number, i, n), spans_in(n, i)) for i, n in enumerate(lengths)]


def pairs(count=60, number=3, longest=60):
    lengths = drawn_lengths(2 * count, 25, "pairs", longest=longest)
    sides = [Trained(tokens := spelled(number, i, n), spans_in(len(tokens), i)) for i, n in enumerate(lengths)]
    return [Pair(f"{i:06d}", sides[2 * i], sides[2 * i + 1]) for i in range(count)]


def stream(folder, batch=None, **changes):
    raw = {
        "seed": 7,
        "seq_length": SEQ_LENGTH,
        "sources": [{"name": "chat", "path": str(folder), "epochs": 1}],
        "plan": {"windows": 4, "window_tokens": 1024},
        "batch": {"global_batch_size": 8, "micro_batch_size": 2} | (batch or {}),
    }
    return config_from(raw | changes)


def batches_of(config, topology=None):
    with build_loader(config, topology or Topology()) as loader:
        yield from loader


def trained_tokens_of(documents, split=True):
    """(document, place) of every token that some label must be; a first token has nothing that predicts it."""
    return {
        (number, place)
        for number, document in enumerate(documents)
        for begin, end in document.loss.tolist()
        for place in range(begin, end)
        if place
    }


@pytest.mark.parametrize("labels", ["aligned", "unshifted"])
@pytest.mark.parametrize("overlong", ["split", "truncate", "drop"])
def test_exactly_the_trained_tokens_of_conversations_are_labels(tmp_path, labels, overlong):
    documents = conversations()
    write_documents(tmp_path, documents)
    seen, steps = [], {}
    for batch in batches_of(stream(tmp_path, {"labels": labels}, packing={"overlong": overlong})):
        label, mask = batch["labels"].numpy(), batch["loss_mask"].numpy()
        assert ((label >= 0) == (mask == 1)).all()
        assert batch["loss_tokens"] == mask.sum()
        steps.setdefault(batch["step"], []).append((batch["loss_tokens"], batch["step_loss_tokens"]))
        seen += [(value >> 12 & 0xFFFF, value & 0xFFF) for value in label[label >= 0].tolist()]
    due = trained_tokens_of(documents)
    if overlong == "drop":
        due = {(d, p) for d, p in due if len(documents[d].tokens) <= SEQ_LENGTH}
    if overlong == "truncate":
        due = {(d, p) for d, p in due if p < SEQ_LENGTH}
    if labels == "unshifted" and overlong == "split":
        due = {(d, p) for d, p in due if p % SEQ_LENGTH}  # the border target is lost
    assert len(seen) == len(set(seen))
    assert set(seen) == due
    for counts in steps.values():
        assert sum(own for own, _ in counts) == counts[0][1]


def test_conversations_give_the_same_batches_on_any_topology(tmp_path):
    write_documents(tmp_path, conversations())
    config = stream(tmp_path, packing={"overlong": "split"})
    one = [step["sha256"] for step in digest_steps(config, 50, 1)]
    assert one == [step["sha256"] for step in digest_steps(config, 50, 4)]
    assert len(one) > 3


def test_text_and_conversations_blend(tmp_path):
    write_documents(tmp_path / "chat", conversations(longest=100))
    write_source(tmp_path / "web", 0, drawn_lengths(60, 50, "web", longest=SEQ_LENGTH + 50))
    sources = [{"name": name, "path": str(tmp_path / name), "epochs": 1} for name in ("chat", "web")]
    trained = {0: 0, 1: 0}
    for batch in batches_of(stream(tmp_path, sources=sources)):
        source = np.repeat(batch["source_ids"].numpy(), np.diff(batch["cu_seqlens_padded"].numpy()))
        for number in trained:
            trained[number] += int(batch["loss_mask"].numpy()[source == number].sum())
    web = drawn_lengths(60, 50, "web", longest=SEQ_LENGTH + 50)
    assert trained == {0: len(trained_tokens_of(conversations(longest=100))), 1: sum(web) - len(web)}


def test_pairs_stay_pairs(tmp_path):
    made = pairs()
    write_documents(tmp_path, made)
    met = []
    for batch in batches_of(stream(tmp_path)):
        ids, borders = batch["pair_ids"].tolist(), batch["cu_seqlens_padded"].tolist()
        real = [(i, a, b) for i, a, b in zip(ids, borders[:-1], borders[1:], strict=True) if i >= 0]
        for (one, a, b), (other, c, d) in zip(real[::2], real[1::2], strict=True):
            assert one == other, "chosen and rejected are neighbours"
            assert b == c and a // SEQ_LENGTH == (d - 1) // SEQ_LENGTH, "in one sequence"
            tokens = batch["tokens"].numpy()
            assert tokens[a:b].tolist() == made[one].chosen.tokens.tolist()
            assert tokens[c:d].tolist() == made[one].rejected.tokens.tolist()
            met.append(one)
    assert sorted(met) == list(range(len(made)))


def test_pairs_are_counted_once_and_trained_by_their_masks(tmp_path):
    made = pairs()
    write_documents(tmp_path, made)
    with build_loader(stream(tmp_path), Topology()) as loader:
        trained = sum(batch["loss_tokens"] for batch in loader)
        metrics = loader.metrics()["sources"]["chat"]
    sides = [side for pair in made for side in (pair.chosen, pair.rejected)]
    assert trained == len(trained_tokens_of(sides))
    assert metrics["documents"] == len(made)
    assert metrics["tokens"] == sum(len(side.tokens) for side in sides)


def test_conversations_that_are_too_long_are_an_error_at_the_start_that_names_counts_and_shards(tmp_path):
    documents = conversations()
    write_documents(tmp_path, documents)
    count = sum(len(document.tokens) > SEQ_LENGTH for document in documents)
    with pytest.raises(
        DocumentTooLongError, match=rf"{count} of 80 documents, in train-0.*choose split, truncate or drop"
    ):
        build_loader(stream(tmp_path), Topology())


def test_pairs_that_are_too_long_are_an_error_at_the_start(tmp_path):
    write_documents(tmp_path, pairs(longest=100))
    with pytest.raises(DocumentTooLongError, match="choose drop or truncate"):
        build_loader(stream(tmp_path), Topology())
    assert list(batches_of(stream(tmp_path, packing={"overlong": "truncate"})))


def one_pair(*lengths):
    return Pair("one", *(Trained(spelled(3, 0, n), spans_in(n, 0)) for n in lengths))


def test_pairs_that_rounding_makes_too_long_are_an_error_at_the_start_that_names_the_source(tmp_path):
    write_documents(tmp_path, [one_pair(40, 40), one_pair(57, 71)], shards=2)
    packing = {"document_multiple": 16}
    told = (
        r"\$\.sources\[0\]: 'chat' .*: 1 of 2 documents, in train-00001\.tar\.zst, are longer than seq_length 128 "
        r"\(either member takes a multiple of packing\.document_multiple 16\).*choose drop or truncate, or .* smaller"
    )
    with pytest.raises(DocumentTooLongError, match=told):
        build_loader(stream(tmp_path, packing=packing), Topology())
    accepted = [{"name": "chat", "path": str(tmp_path), "epochs": 1, "accept_loss": True}]
    for overlong, tokens in (("drop", 80), ("truncate", 80 + 57 + 64)):
        batches = batches_of(stream(tmp_path, packing={**packing, "overlong": overlong}, sources=accepted))
        assert sum(int(batch["cu_seqlens"].diff()[batch["document_ids"] >= 0].sum()) for batch in batches) == tokens


def test_pairs_that_fit_to_the_last_position_stream(tmp_path):
    write_documents(tmp_path, [one_pair(57, 64), one_pair(64, 64)])
    batches = list(batches_of(stream(tmp_path, packing={"document_multiple": 16})))
    assert sum(int((batch["document_ids"] >= 0).sum()) for batch in batches) == 4


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        ({"policy": "concat"}, "concat cuts anywhere"),
        ({"policy": "none"}, "a pair is two"),
        ({"overlong": "split"}, "pairs are never split"),
    ],
)
def test_packings_without_meaning_for_pairs_are_refused(tmp_path, packing, message):
    write_documents(tmp_path, pairs())
    with pytest.raises(ConfigError, match=message):
        build_loader(stream(tmp_path, packing=packing), Topology())


def test_pairs_do_not_mix_with_other_kinds(tmp_path):
    write_documents(tmp_path / "pairs", pairs())
    write_documents(tmp_path / "chat", conversations())
    sources = [{"name": name, "path": str(tmp_path / name)} for name in ("chat", "pairs")]
    with pytest.raises(ConfigError, match="give them a stream of their own"):
        build_loader(stream(tmp_path, sources=sources), Topology())


def test_padded_rows_of_conversations_carry_their_masks(tmp_path):
    documents = conversations(longest=100)
    write_documents(tmp_path, documents)
    seen = set()
    for batch in batches_of(stream(tmp_path, {"layout": "sbhd"}, packing={"policy": "none"})):
        assert batch["labels"].shape == (2, SEQ_LENGTH)
        label = batch["labels"].numpy()
        seen |= {(value >> 12 & 0xFFFF, value & 0xFFF) for value in label[label >= 0].tolist()}
    assert seen == trained_tokens_of(documents)


def test_the_readme_names_every_key_of_a_batch(tmp_path):
    readme = (Path(__file__).parents[2] / "README.md").read_text().partition("## What a training loop does")[2]
    named = set(re.findall(r"`(\w+)`", readme.partition("\n## ")[0]))
    write_documents(tmp_path / "pairs", pairs())
    write_documents(tmp_path / "chat", conversations(longest=100))
    fields = ["tokens", "labels", "position_ids", "loss_mask", "padding_mask"]
    of_pairs = next(batches_of(stream(tmp_path / "pairs", {"fields": fields})))
    of_rows = next(batches_of(stream(tmp_path / "chat", {"layout": "sbhd"}, packing={"policy": "none"})))
    assert of_pairs.keys() | of_rows.keys() <= named
    assert {"pair_ids", "padding_mask", "sequence_ids"} <= of_pairs.keys()
    assert of_pairs["padding_mask"].shape == of_pairs["tokens"].shape
    assert of_pairs["pair_ids"].shape == of_pairs["source_ids"].shape
    assert of_pairs["sequence_ids"].shape == (2,)
