"""What `stats` says of a source, and what `verify --deep` finds in a whole one."""

import json
from dataclasses import replace

import numpy as np
import pytest
from looked_at import END, START, Stage

from shardtools.cli import main
from shardtools.looking.documents import documents
from shardtools.looking.spread import spread
from shardtools.looking.token_counts import count_tokens, evenly
from shardtools.stats import measure
from shardtools.verify import verify
from streampipe.shards import Document, Source

TOPICS = ["loader reads frames", "bucket packs tokens", "every epoch and the", "of a document from"]


@pytest.fixture(scope="session")
def stage(tmp_path_factory, corpus):
    path = tmp_path_factory.mktemp("stats") / "tokenizer.json"
    arguments = ["--vocab-size", "500", "--special-tokens", f"{START},{END}", "--output", str(path)]
    assert main(["train-tokenizer", str(corpus), *arguments]) == 0
    return Stage(path)


@pytest.fixture(scope="session")
def sorted_by_topic(tmp_path_factory):
    """1,600 texts, first all of one topic, then all of the next; a topic has its own words, or its own length."""

    def write(*, words, lengths):
        path = tmp_path_factory.mktemp("topics") / "in.jsonl"
        draw = np.random.Generator(np.random.Philox(5))
        with path.open("w") as file:
            for i in range(1_600):
                topic = i // 400
                vocabulary = (TOPICS[topic] if words else " ".join(TOPICS)).split()
                count = int(draw.integers(10, 60)) * (topic + 1 if lengths else 1)
                text = " ".join(vocabulary[j] for j in draw.integers(0, len(vocabulary), count))
                file.write(json.dumps({"text": text}) + "\n")
        return path

    return write


@pytest.mark.parametrize(
    ("words", "lengths", "told"), [(True, False, "in common"), (False, True, "mean length"), (False, False, "")]
)
def test_order_that_shows_through_is_told_of_and_a_global_shuffle_hides_it(
    sorted_by_topic, build, tmp_path, words, lengths, told
):
    path = sorted_by_topic(words=words, lengths=lengths)
    for shuffle in ("none", "shard", "global"):
        url = build(
            path, "--shuffle", shuffle, "--shard-tokens", "20000", "--frame-tokens", "4000", output=tmp_path / shuffle
        )
        found = measure(str(url), [512]).spread
        assert found.shards > 2
        warned = " ".join(found.warnings)
        assert (told in warned if told else not warned) if shuffle != "global" else not warned, shuffle


@pytest.mark.parametrize("shards", [2, 3, 8, 40])
def test_alike_shards_are_not_told_of(stage, tmp_path, shards):
    for seed in range(4):
        draw = np.random.Generator(np.random.Philox(seed))
        texts = [np.minimum(draw.zipf(1.3, max(1, int(draw.lognormal(3, 1)))), 400) for _ in range(shards * 60)]
        source = stage.write(
            tmp_path / f"{seed}", [Document(f"{i}", ids) for i, ids in enumerate(texts)], shards=shards
        )
        assert spread([source], count_tokens([source], whole=True).shards).warnings == []


def test_counts_are_those_of_all_documents_or_of_an_even_sample(stage, tmp_path):
    draw = np.random.Generator(np.random.Philox(1))
    source = stage.write(tmp_path / "s", [Document(f"{i}", draw.integers(0, 300, 50)) for i in range(200)], shards=4)
    ids = np.concatenate([one.members[0].tokens for one in documents(source)])
    whole = count_tokens([source], whole=True)
    assert whole.whole
    assert whole.counts.tolist() == np.bincount(ids, minlength=len(whole.counts)).tolist()
    some = count_tokens([source], whole=False)
    assert not some.whole
    assert 0 < some.counts.sum() < len(ids)
    assert (some.counts <= whole.counts).all()
    assert [evenly(10, 3), evenly(2, 3), evenly(0, 3)] == [[1, 5, 8], [0, 1], []]


def test_the_vocabulary_is_compared_with_what_came(stage, tmp_path):
    ids = [np.array([300] * 12 + [301] * 3 + [302]), np.array([300, stage.special[END]])]
    stage.write(tmp_path / "s", [Document(f"{i}", each) for i, each in enumerate(ids)])
    use = measure(str(tmp_path / "s"), [512], read="all").use
    size = stage.tokenizer.info().vocab_size
    assert (use.read, use.whole, use.vocabulary, use.never_seen) == (18, True, size, size - 4)
    assert [(number, share) for number, _, share in use.most_frequent[:2]] == [
        (300, round(13 / 18, 6)),
        (301, round(3 / 18, 6)),
    ]
    assert use.special[END] == 1
    assert use.special[START] == 0
    assert [row[:3] for row in use.histogram] == [(1, 9, 3), (10, 99, 1)]
    assert sum(row[3] for row in use.histogram) == pytest.approx(1, abs=1e-5)
    assert measure(str(tmp_path / "s"), [512], read="none").use is None


def test_trained_share_longest_documents_and_origins_of_all_kinds(stage, tmp_path, capsys):
    chats = [
        stage.conversation(
            f"{i}", ("user", "q" * (i % 7 + 1)), ("assistant", "the epoch " * (i + 1)), origin_file=0, origin_row=i
        )
        for i in range(30)
    ]
    pairs = [stage.pair(f"{i}", [("user", "q")], "the " * (i + 1), "no") for i in range(12)]
    for name, listed in (("chats", chats), ("pairs", pairs)):
        stage.write(tmp_path / name, listed, shards=3)
        found = measure(str(tmp_path / name), [256])
        lengths = [one.length for one in listed]
        assert [(one.tokens, one.document) for one in found.longest] == sorted(
            ((length, i) for i, length in enumerate(lengths)), key=lambda pair: (-pair[0], pair[1])
        )[:10]
        trained = sum(int((spans[:, 1] - spans[:, 0]).sum()) for one in listed for spans in one.arrays()[1::2])
        assert found.loss_tokens == trained
        assert found.loss_share == pytest.approx(trained / sum(lengths), abs=1e-6)
        assert found.skipped == {"empty": 2}
    longest = measure(str(tmp_path / "chats"), [256]).longest[0]
    assert longest.origin == f"chats.jsonl:{longest.document + 1}"
    capsys.readouterr()
    assert main(["stats", str(tmp_path / "chats"), str(tmp_path / "pairs")]) == 0
    shown = capsys.readouterr().out
    for word in ("trained", "longest documents", longest.origin, "2 empty", "most frequent", "tokens not in common"):
        assert word in shown, word
    assert main(["stats", str(tmp_path / "chats"), str(tmp_path / "pairs"), "--json"]) == 0
    assert [one["kind"] for one in json.loads(capsys.readouterr().out)] == ["conversation", "preference"]


def test_documents_of_conversations_that_are_too_long_are_not_split_in_the_forecast(stage, tmp_path):
    chats = [stage.conversation(f"{i}", ("assistant", "x" * 90)) for i in range(4)]
    stage.write(tmp_path / "s", chats)
    (row,) = measure(str(tmp_path / "s"), [40]).padding
    assert row.split_documents == 1
    assert row.best_fit == 0


# verify --deep


def test_a_sound_source_of_each_kind_is_sound_in_depth(stage, tmp_path, build, corpus, capsys):
    stage.write(tmp_path / "chats", [stage.conversation("0", ("user", "q"), ("assistant", "a"))])
    stage.write(tmp_path / "pairs", [stage.pair("0", [("user", "q")], "a", "b")])
    for url in (tmp_path / "chats", tmp_path / "pairs", build(corpus)):
        assert main(["verify", "--deep", str(url)]) == 0
        assert "sound" in capsys.readouterr().out


def test_ids_that_the_vocabulary_lacks_are_found_in_depth_only(stage, tmp_path):
    content = json.loads(stage.file.data)
    merged = {token: i for token, i in content["model"]["vocab"].items() if i == stage.tokenizer.max_id - 1}
    ((token, hole),) = merged.items()
    del content["model"]["vocab"][token]
    content["model"]["merges"] = [merge for merge in content["model"]["merges"] if "".join(merge) != token]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    gap = Stage(tmp_path / "tokenizer.json")
    assert gap.tokenizer.max_id == hole + 1
    gap.write(tmp_path / "s", [Document("good", np.array([40, 41])), Document("bad", np.array([40, hole, hole]))])
    assert verify(str(tmp_path / "s")).faults == []
    (fault,) = verify(str(tmp_path / "s"), deep=True).faults
    for part in ("train-00000.tar.zst", "frame 0", "'bad'", "2 ids", str(hole)):
        assert part in fault
    assert measure(str(tmp_path / "s"), [512]).use.unknown == [hole]
    assert main(["export", str(tmp_path / "s"), "--jsonl", str(tmp_path / "out.jsonl")]) == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_a_missing_tokenizer_is_a_fault_in_depth(stage, tmp_path):
    stage.write(tmp_path / "s", [stage.conversation("0", ("assistant", "a"))])
    (tmp_path / "s" / "tokenizer.json").unlink()
    assert verify(str(tmp_path / "s")).faults == []
    (fault,) = verify(str(tmp_path / "s"), deep=True).faults
    assert "tokenizer.json" in fault


def test_masks_and_keys_are_checked_by_themselves(stage, tmp_path, monkeypatch):
    source = stage.write(tmp_path / "s", [stage.conversation("0", ("assistant", "a"))])
    (good,) = documents(source)
    (member,) = good.members
    wrong = [
        replace(good, members=(replace(member, loss=np.array([[0, len(member.tokens) + 1]])),)),
        replace(good, members=(replace(member, loss=np.empty((0, 2), np.int32)),)),
        replace(good, members=(replace(member, tokens=np.array([60_000])),)),
    ]
    monkeypatch.setattr("shardtools.looking.deep.documents_of_shard", lambda source, shard: iter(wrong))
    faults = verify(str(tmp_path / "s"), deep=True).faults
    for part in ("within the", "trained token", "not in the vocabulary", "its key is in this shard before"):
        assert any(part in fault for fault in faults), part
    assert isinstance(source, Source)
