"""What a build leaves out, moves or changes is what the user asked for, and is counted."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtools.cli import main
from shardtools.corpus.tally import Tally
from shardtools.held_out import HeldOutRule
from shardtools.overlong import Overlong
from shardtools.share import Share
from shardtools.text.normalize import Normalizer
from streampipe.errors import ConfigError
from streampipe.shards import Document, Pair, Source, Trained

SMALL = ("--shard-tokens", 8_000, "--frame-tokens", 1_000)


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_bytes())


def split_of(folder, split, texts, tmp_path):
    """Returns the texts of one split, in input order."""
    alone = tmp_path / f"only-{split}"
    alone.mkdir(exist_ok=True)
    for path in folder.glob(f"{split}-*.tar.zst"):
        (alone / path.name).write_bytes(path.read_bytes())
    return texts(alone)


@pytest.mark.parametrize("shuffle", ["global", "shard", "none"])
def test_held_out_documents_are_moved_not_copied(build, corpus, texts, tmp_path, shuffle):
    folder = build(corpus, *SMALL, "--validation", "10%", "--shuffle", shuffle)
    train, held = (split_of(folder, split, texts, tmp_path) for split in ("train", "validation"))
    assert 20 < len(held) < 65
    assert sorted(train + held) == sorted(json.loads(line)["text"] for line in corpus.read_text().splitlines())
    assert main(["verify", str(folder)]) == 0
    assert main(["stats", str(folder)]) == 0


def test_what_is_held_out_depends_on_content_alone(build, corpus, jsonl, texts, tmp_path):
    first = build(corpus, *SMALL, "--validation", "10%", output=tmp_path / "a")
    lines = corpus.read_text().splitlines()
    grown = jsonl([{"text": f"new {i}"} for i in range(50)] + [json.loads(line) for line in reversed(lines)])
    options = ("--validation", "10%", "--seed", 5, "--shuffle", "none", "--shard-tokens", 20_000)
    second = build(grown, *options, output=tmp_path / "b", workers=2)
    held = [set(split_of(folder, "validation", texts, tmp_path / folder.name)) for folder in (first, second)]
    assert held[0] == {text for text in held[1] if not text.startswith("new")}


def test_copies_of_a_text_are_on_one_side(build, corpus, texts, tmp_path):
    twice = tmp_path / "twice.jsonl"
    twice.write_bytes(corpus.read_bytes() * 2)
    folder = build(twice, *SMALL, "--validation", "20%")
    train, held = (split_of(folder, split, texts, tmp_path) for split in ("train", "validation"))
    assert not set(train) & set(held)
    assert len(train) + len(held) == 800


@pytest.mark.parametrize("options", [("--validation", 7), ("--validation", "0.0001%", "--validation-min", 7)])
def test_a_count_or_a_least_count_is_met_exactly(build, corpus, options, tmp_path):
    folder = build(corpus, *SMALL, *options)
    assert Source.open("c", str(folder), "validation").shard_documents.sum() == 7
    assert Source.open("c", str(folder)).shard_documents.sum() == 393


def test_a_count_with_copies_counts_those_that_stay(build, corpus, tmp_path):
    twice = tmp_path / "twice.jsonl"
    twice.write_bytes(corpus.read_bytes() * 2)
    folder = build(twice, *SMALL, "--validation", 7, "--dedup", "exact")
    assert Source.open("c", str(folder), "validation").shard_documents.tolist() == [7]
    assert Source.open("c", str(folder)).shard_documents.sum() == 393
    assert manifest_of(folder)["counts"] == {"duplicate": 400}


def test_holding_out_everything_is_refused(build, corpus, capsys):
    build(corpus, *SMALL, "--validation", 400, code=2)
    assert "hold out 400 documents or more of 400" in capsys.readouterr().err
    for wrong in ("0%", "0", "101%", "x", "-1"):
        build(corpus, f"--validation={wrong}", code=2)
    build(corpus, "--validation", "1%", "--split", "validation", code=2)


def test_a_build_with_a_held_out_split_is_one_build(build, corpus, capsys, contents):
    folder = build(corpus, *SMALL, "--validation", "5%")
    before = contents(folder)
    build(corpus, *SMALL, "--validation", "5%")
    assert "already built" in capsys.readouterr().out
    build(corpus, *SMALL, "--validation", "6%", code=2)
    assert contents(folder) == before
    build(corpus, *SMALL, "--overwrite")
    assert list(manifest_of(folder)["splits"]) == ["train"]
    assert not list(folder.glob("validation-*"))


@pytest.mark.parametrize("shuffle", ["global", "none"])
@pytest.mark.parametrize("shard_tokens", [3_000, 1 << 26])
def test_of_equal_texts_the_first_stays(build, jsonl, texts, shuffle, shard_tokens):
    rows = [{"text": f"document {i % 70} " + "word " * (i % 70)} for i in range(300)]
    path = jsonl(rows)
    folder = build(path, "--dedup", "exact", "--shuffle", shuffle, "--shard-tokens", shard_tokens)
    assert texts(folder) == [row["text"] for row in rows[:70]]
    assert manifest_of(folder)["counts"] == {"duplicate": 230}
    source = Source.open("c", str(folder))
    rows_kept = np.concatenate([source.origins(shard).row for shard in range(len(source.shards))])
    assert sorted(rows_kept.tolist()) == list(range(70))


def test_looking_for_copies_in_many_parts_gives_the_same(build, jsonl, contents, tmp_path, monkeypatch):
    path = jsonl([{"text": f"document {i % 70} " + "word " * (i % 70)} for i in range(300)])
    options = (path, "--dedup", "exact", "--shard-tokens", 3_000, "--validation", "10%")
    whole = contents(build(*options, output=tmp_path / "whole"))
    monkeypatch.setattr("shardtools.sequence.DOCUMENTS_AT_ONCE", 20)
    assert contents(build(*options, output=tmp_path / "parts")) == whole


@pytest.mark.parametrize(
    ("rule", "lengths", "counts"),
    [
        ("keep", {5, 41, 101}, {}),
        ("truncate:50", {5, 41, 50}, {"truncated": 1, "truncated_tokens": 51}),
        ("drop:50", {5, 41}, {"dropped_overlong": 1}),
        ("drop:101", {5, 41, 101}, {}),
    ],
)
def test_long_documents_are_kept_cut_or_left_out(build, jsonl, documents, rule, lengths, counts):
    folder = build(jsonl([{"text": "e" + " epoch" * (n - 2)} for n in (5, 41, 101)]), "--overlong", rule)
    assert {len(ids) for ids in documents(folder).values()} == lengths
    assert manifest_of(folder)["counts"] == counts


def test_cutting_keeps_what_is_trained_and_says_when_nothing_is():
    rule, tally = Overlong.parse("truncate:5"), Tally()
    long = Document("0", np.arange(9), np.array([[1, 3], [4, 8], [8, 9]]))
    cut = rule.apply(long, tally)
    assert (cut.tokens.tolist(), cut.loss.tolist()) == ([0, 1, 2, 3, 4], [[1, 3], [4, 5]])
    assert rule.apply(Document("0", np.arange(9), np.array([[5, 9]])), tally) is None
    assert tally.reasons == {"truncated": 1, "truncated_tokens": 4, "truncated_untrained": 1}
    side = Trained(np.arange(3), np.array([[1, 2]]))
    with pytest.raises(ConfigError, match="pairs"):
        rule.apply(Pair("0", side, side), tally)
    assert Overlong.parse("drop:5").apply(Pair("0", side, side), tally) is None
    assert Overlong.parse("drop:6").apply(Pair("0", side, side), tally) is not None


def test_texts_are_changed_only_by_named_steps(build, jsonl, texts, tmp_path):
    rough = "cafe\u0301  au\u00a0lait\x00\t \n\n\n\n  indented  \x1b"
    path = jsonl([{"text": rough}, {"text": "plain"}, {"text": "\x00"}])
    assert texts(build(path, output=tmp_path / "a"))[0] == rough
    folder = build(path, "--normalize", "nfc,control,whitespace", output=tmp_path / "b")
    assert texts(folder) == ["café au lait\n\n  indented", "plain"]
    assert manifest_of(folder)["build"]["train"]["normalize"] == "nfc,control,whitespace"
    assert manifest_of(folder)["counts"] == {
        "empty": 1,
        "normalized_control": 2,
        "normalized_nfc": 1,
        "normalized_whitespace": 1,
    }
    build(path, "--normalize", "lower", output=tmp_path / "c", code=2)
    build(path, "--normalize", "nfc,nfc", output=tmp_path / "c", code=2)


@given(st.text(alphabet=" \t\n\ra\x00\u0301e\u00a0", max_size=40))
def test_a_second_normalization_changes_nothing(text):
    normalizer = Normalizer(("control", "nfc", "whitespace"))  # control characters can stand between what nfc joins
    once = normalizer.apply(text, Tally())
    assert normalizer.apply(once, Tally()) == once


@pytest.mark.parametrize("shuffle", ["global", "shard"])
def test_too_many_bad_rows_stop_the_build_with_places_and_reasons(build, jsonl, capsys, shuffle):
    good = [json.dumps({"text": f"good {i}"}) for i in range(98)]
    path = jsonl("\n".join([*good[:50], "{bad", *good[50:], '{"text": 5}']).encode())
    options = (path, "--on-bad-row", "count", "--shuffle", shuffle, "--max-bad-rows")
    folder = build(*options, "1%", code=1)
    error = capsys.readouterr().err
    assert "2 of 100 rows cannot be read (1 malformed, 1 wrong_type)" in error
    assert "in.jsonl:51" in error
    assert "in.jsonl:100" in error
    assert not (folder / "manifest.json").exists()
    build(*options, 1, code=1)
    build(*options, "2%")
    assert manifest_of(folder)["counts"] == {"malformed": 1, "wrong_type": 1}
    build(path, "--max-bad-rows", "1%", code=2)


@pytest.mark.parametrize(
    ("text", "part", "total", "more"), [("1%", 1, 100, False), ("1%", 2, 100, True), ("3", 3, 1, False)]
)
def test_a_share_is_exceeded_by_more_than_it(text, part, total, more):
    assert Share.parse(text, "--x").exceeded_by(part, total) is more


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=50),
    st.integers(1, 4),
    st.integers(0, 2**64),
    st.booleans(),
)
def test_the_threshold_does_not_depend_on_how_documents_are_sliced(numbers, least, below, distinct):
    rule = HeldOutRule(below, least, distinct)

    def threshold(slices):
        ones = [np.array(part, np.uint64) for part in slices]
        return rule.resolve([rule.lowest([], part, np.ones(len(part), np.int64)) for part in ones], len(numbers))

    if distinct and len(set(numbers)) < least:
        return
    whole = threshold([numbers])
    assert threshold([numbers[:2], numbers[2:]]) == whole
    held = sum(number <= whole for number in (set(numbers) if distinct else numbers))
    assert held >= least
    assert all(number <= whole for number in numbers if number < below)
