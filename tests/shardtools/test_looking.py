"""What people see of a finished source: inspect and export."""

import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from looked_at import END, START, Stage
from rich.console import Console

from shardtools.cli import main
from shardtools.looking.decoder import Decoder
from shardtools.looking.documents import Member, document, documents, origin_of
from shardtools.looking.segments import segments, visible
from shardtools.looking.terminal import show_document

CHATS = [
    (("system", "Be brief."), ("user", "What is 2+2? 二加二 🙂"), ("assistant", "4, 四 🙂🙂")),
    (("user", "one"), ("assistant", "a\n\nb"), ("user", "two"), ("assistant", "user says <|im_end|> here")),
    (("user", "<b>&amp; \x1b[31mred\u202e"), ("assistant", "ok")),
]
PAIRS = [([("user", "Say hi")], "hi there", "no"), ([("user", "Zwei?")], "zwei ä", "drei 三")]


@pytest.fixture(scope="session")
def stage(tmp_path_factory, corpus):
    path = tmp_path_factory.mktemp("chat") / "tokenizer.json"
    arguments = ["--vocab-size", "500", "--special-tokens", f"{START},{END}", "--output", str(path)]
    assert main(["train-tokenizer", str(corpus), *arguments]) == 0
    return Stage(path)


@pytest.fixture
def chats(stage, tmp_path):
    documents = [
        stage.conversation(f"{i:03}", *turns, origin_file=0, origin_row=i + 10) for i, turns in enumerate(CHATS * 5)
    ]
    return stage.write(tmp_path / "chats", documents, shards=3, frame_tokens=100)


@pytest.fixture
def pairs(stage, tmp_path):
    return stage.write(tmp_path / "pairs", [stage.pair(f"{i}", *pair, meta={"n": i}) for i, pair in enumerate(PAIRS)])


def exported(url, tmp_path, *arguments):
    path = tmp_path / "out.jsonl"
    assert main(["export", str(url), "--jsonl", str(path), "--overwrite", *arguments]) == 0
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]


# Decoding


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30), data=st.data())
def test_pieces_are_the_text_wherever_it_is_cut(stage, text, data):
    ids = np.array(stage.ids(text), np.int64)
    if not len(ids):
        return
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids)))) | {len(ids)})
    decoder = Decoder(stage.file.data, frozenset())
    pieces = decoder.pieces(ids, cuts)
    assert "".join(pieces) == text
    assert len(pieces) == len(cuts)


def test_a_character_of_several_tokens_belongs_to_the_one_that_ends_it(stage):
    ids = np.array(stage.ids("a🙂b"))
    pieces = Decoder(stage.file.data, frozenset()).pieces(ids, list(range(1, len(ids) + 1)))
    assert pieces[0] == "a"
    assert not any(pieces[1:-2])
    assert pieces[-2:] == ["🙂", "b"]


def test_documents_are_found_by_number_over_shards_and_frames(chats):
    listed = list(documents(chats))
    assert [one.number for one in listed] == list(range(15))
    for number in range(15):
        assert [one.number for one in documents(chats, number)] == list(range(number, 15))
        one = document(chats, number)
        assert (one.key, one.shard, one.frame) == (listed[number].key, listed[number].shard, listed[number].frame)
        assert origin_of(chats, number) == f"chats.jsonl:{number + 11}"


# Export


def test_a_text_source_is_exported_as_its_input(build, corpus, tmp_path):
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    quoting = [{"text": "<|endoftext|> quoted"}, {"text": " leading and trailing \n"}, {"text": "二加二 🙂\u2028x\x00"}]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *quoting]))
    for options in ([], ["--no-eos"], ["--bos", "<|fim_prefix|>"]):
        url = build(path, *options, "--overwrite")
        found = exported(url, tmp_path)
        assert sorted(map(str, found)) == sorted(map(str, [*rows, *quoting]))


def test_a_conversation_is_exported_with_what_is_trained_in_characters(stage, chats, tmp_path):
    found = exported(chats.url, tmp_path)
    for row, turns in zip(found, CHATS * 5, strict=True):
        _, _, text, trained = stage.chat(*turns)
        assert row == {"text": text, "trained": trained}
        answers = [content + END for role, content in turns if role == "assistant"]
        assert [row["text"][start:end] for start, end in row["trained"]] == answers


def test_a_pair_is_exported_with_both_sides(pairs, tmp_path):
    for row, (_, chosen, rejected) in zip(exported(pairs.url, tmp_path), PAIRS, strict=True):
        for side, answer in (("chosen", chosen), ("rejected", rejected)):
            ((start, end),) = row[side]["trained"]
            assert row[side]["text"][start:end] == answer + END
        assert row.keys() == {"chosen", "rejected"}


def test_an_export_replaces_nothing_unasked_and_leaves_no_half_file(stage, chats, tmp_path, capsys):
    path = tmp_path / "out.jsonl"
    path.write_text("mine")
    assert main(["export", chats.url, "--jsonl", str(path)]) == 2
    assert path.read_text() == "mine"
    shard = tmp_path / "chats" / chats.shards[2].path
    shard.write_bytes(shard.read_bytes()[:-20])
    assert main(["export", chats.url, "--jsonl", str(tmp_path / "new.jsonl")]) == 1
    assert chats.shards[2].path in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir() if "new" in each.name] == []


def test_without_its_tokenizer_a_source_cannot_be_decoded_and_says_so(chats, tmp_path, capsys):
    (tmp_path / "chats" / "tokenizer.json").unlink()
    for command in (["inspect", chats.url], ["export", chats.url, "--jsonl", str(tmp_path / "x")]):
        assert main(command) == 1
        assert "tokenizer.json" in capsys.readouterr().err


# Inspect


def coloured(source, number, stage, most=10_000):
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=200)
    decoder = Decoder.of(source.store, source.manifest)
    show_document(console, decoder, document(source, number), "here", most=most, found="")
    return console.file.getvalue()


def test_segments_are_the_text_and_know_what_is_trained(stage, chats):
    decoder = Decoder.of(chats.store, chats.manifest)
    for single in (False, True):
        for stored, turns in zip(documents(chats), CHATS, strict=False):
            (member,) = stored.members
            parts = segments(decoder, member, 10_000, single=single)
            _, _, text, _ = stage.chat(*turns)
            assert "".join(part.text for part in parts) == visible(text)
            trained = "".join(part.text for part in parts if part.trained)
            assert trained == visible("".join(content + END for role, content in turns if role == "assistant"))
            names = ["".join(p.text for p in parts if p.sort == "role")]
            assert names == ["".join(role for role, _ in turns)]
            special = [part.text for part in parts if part.sort == "special"]
            assert special == [START, END] * len(turns), "a quoted one is text"


def test_trained_tokens_have_their_own_colour_and_nothing_steers_the_terminal(stage, chats):
    shown = coloured(chats, 2, stage)
    assert "\x1b[32mok" in shown, "green"
    assert "\x1b[31m" not in shown
    assert "␛[31mred[U+202E]" in shown
    assert "33% " not in shown
    assert "trained" in shown


def test_inspect_shows_one_document_or_those_that_contain_a_text(chats, pairs, capsys):
    assert main(["inspect", chats.url, "--document", "4"]) == 0
    assert "document 4" in capsys.readouterr().out
    assert main(["inspect", chats.url, "--grep", "四", "--count", "100", "--json"]) == 0
    assert [one["document"] for one in json.loads(capsys.readouterr().out)] == [0, 3, 6, 9, 12]
    assert main(["inspect", chats.url, "--grep", "nowhere"]) == 1
    assert "no document" in capsys.readouterr().out
    assert main(["inspect", chats.url, "--document", "15"]) == 2
    assert "0 to 14" in capsys.readouterr().err
    assert main(["inspect", pairs.url]) == 0
    shown = capsys.readouterr().out
    assert shown.index("chosen: ") < shown.index("hi there") < shown.index("rejected: ")
    assert main(["inspect", chats.url, "--tokens", "3", "--count", "1"]) == 0
    assert "more tokens" in capsys.readouterr().out


class Page(HTMLParser):
    """Collects the text in <pre>, and everything that would load or run something."""

    def __init__(self):
        super().__init__()
        self.texts, self.outside, self.inside = [], [], False

    def handle_starttag(self, tag, attributes):
        names = dict(attributes)
        if tag in ("script", "link", "img", "iframe") or {"src", "href", "onclick"} & names.keys():
            self.outside.append(tag)
        if tag == "pre":
            self.inside = True
            self.texts.append("")

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "pre"

    def handle_data(self, data):
        if self.inside:
            self.texts[-1] += data


def test_the_page_holds_the_text_and_needs_nothing_else(stage, chats, pairs, tmp_path):
    for url, count in ((chats.url, 3), (pairs.url, 4)):
        path = tmp_path / "page.html"
        assert main(["inspect", url, "--html", str(path)]) == 0
        page = Page()
        page.feed(path.read_text("utf-8"))
        assert page.outside == []
        assert len(page.texts) == count
    assert main(["inspect", chats.url, "--document", "2", "--html", str(path)]) == 0
    page = Page()
    page.feed(path.read_text("utf-8"))
    _, _, text, _ = stage.chat(*CHATS[2])
    assert page.texts == [visible(text).replace("\n", "↵\n")]


def test_a_text_asked_for_is_marked_where_it_stands_over_tokens(chats, tmp_path):
    path = tmp_path / "page.html"
    assert main(["inspect", chats.url, "--grep", "user says <|", "--count", "1", "--html", str(path)]) == 0
    marked = re.findall("<mark>(.*?)</mark>", path.read_text("utf-8"))
    assert "".join(marked) == "user says &lt;|"


def test_an_id_without_a_meaning_is_shown_as_such(stage):
    decoder = Decoder(stage.file.data, frozenset())
    parts = segments(decoder, Member("", np.array([*stage.ids("ab"), 60_000]), None), 100)
    assert parts[-1].text == "[id 60000]"
    assert parts[-1].sort == "unknown"
