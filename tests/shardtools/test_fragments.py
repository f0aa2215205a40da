"""`--fragments-at`: a separator is one token wherever it stands in a text, and the index tells where."""

import json
from dataclasses import replace

import duckdb
import numpy as np
import pytest
from fim.parts import fim_counts
from shards.forgeries import publish
from tokenizers import AddedToken, Tokenizer

from shardtools.cli import main
from shardtools.text.cutting import cut_long_text
from shardtools.text.tokenizer import TextTokenizer, TokenizerFile
from streampipe import build_loader, config_from
from streampipe.shards import Source, faults
from streampipe.shards.frame_index import Ragged

SEP = "<|file_sep|>"
PARTS = ["def main():\n    return 1\n", "", "import os\n", "x", "# <|pad|> is text\n", " "]


@pytest.fixture
def tok(tokenizer, tmp_path):
    """The tokenizer with a separator."""
    grown = Tokenizer.from_file(str(tokenizer))
    grown.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (SEP, "<|pad|>")])
    path = tmp_path / "tok" / "tokenizer.json"
    path.parent.mkdir()
    grown.save(str(path))
    return path


def repositories(count=200):
    return [SEP.join(PARTS[(i * j + j) % 6] for j in range(i % 7)) or f"file {i}" for i in range(count)]


@pytest.fixture
def rows(jsonl):
    return jsonl([{"text": text} for text in repositories()])


SMALL = ("--shard-tokens", 1_500, "--frame-tokens", 300)


def separators(source):
    """What the indexes list, by key of the document, which counts the rows of the input."""
    found = {}
    for shard in range(len(source.shards)):
        fragments, row = source.index(shard).fragments, source.origins(shard).row
        for document, line in enumerate(row.tolist()):
            found[line] = fragments.values[fragments.offsets[document] : fragments.offsets[document + 1]].tolist()
    return found


@pytest.mark.parametrize("shuffle", ["global", "shard", "none"])
def test_the_index_lists_where_the_separators_of_every_text_are(build, rows, tok, documents, texts, *, shuffle, capsys):
    folder = build(rows, *SMALL, "--fragments-at", SEP, "--shuffle", shuffle, tok=tok, workers=2)
    source, ids = Source.open("c", str(folder)), documents(folder)
    number = Tokenizer.from_file(str(tok)).token_to_id(SEP)
    listed, wanted = separators(source), repositories()
    assert sorted(listed) == list(range(200))
    assert [len(listed[i]) for i in range(200)] == [text.count(SEP) for text in wanted]
    by_content = sorted(tuple(np.flatnonzero(tokens == number)) for tokens in ids.values())
    assert by_content == sorted(map(tuple, listed.values()))
    assert texts(folder, special=True, tok=tok) == [text + "<|endoftext|>" for text in wanted]
    assert sum((tokens == source.tokenizer.special_tokens["<|pad|>"]).sum() for tokens in ids.values()) == 0
    assert source.manifest.build["train"]["fragments_at"] == SEP
    separated = sum(SEP in text for text in wanted)
    assert source.manifest.counts == {"with_separators": separated}
    assert f"{SEP} stands in {separated} texts" in capsys.readouterr().out
    query = f"select sum(len(flatten(fragments))) from '{folder}/*.index.parquet'"
    assert duckdb.sql(query).fetchall() == [(sum(map(len, listed.values())),)]
    assert main(["verify", str(folder), "--deep"]) == 0


def test_without_the_option_a_separator_is_text_and_nothing_is_recorded(build, rows, tok, documents):
    folder = build(rows, *SMALL, tok=tok)
    source = Source.open("c", str(folder))
    assert source.index(0).fragments is None
    assert "fragments_at" not in source.manifest.build["train"]
    number = source.tokenizer.special_tokens[SEP]
    assert not any((ids == number).any() for ids in documents(folder).values())


def test_the_option_is_part_of_what_the_build_is(build, rows, tok, capsys, contents, tmp_path):
    folder = build(rows, *SMALL, "--fragments-at", SEP, tok=tok)
    before = contents(folder)
    build(rows, *SMALL, "--fragments-at", SEP, tok=tok)
    assert "already built" in capsys.readouterr().out
    build(rows, *SMALL, tok=tok, code=2)
    build(rows, *SMALL, "--fragments-at", "<|pad|>", tok=tok, code=2)
    assert contents(folder) == before
    build(rows, *SMALL, "--overwrite", "--fragments-at", "<|pad|>", tok=tok)
    assert contents(folder) == contents(
        build(rows, *SMALL, "--fragments-at", "<|pad|>", tok=tok, output=tmp_path / "fresh", workers=2)
    )


def test_what_is_exported_is_what_was_read(build, rows, tok, tmp_path):
    folder = build(rows, *SMALL, "--fragments-at", SEP, "--shuffle", "none", tok=tok)
    file = tmp_path / "back.jsonl"
    assert main(["export", str(folder), "--jsonl", str(file)]) == 0
    assert [json.loads(line)["text"] for line in file.read_text().splitlines()] == repositories()


def test_a_text_that_was_cut_short_lists_what_is_left(build, jsonl, tok, documents):
    folder = build(jsonl([{"text": SEP.join("ab") * 9}]), "--fragments-at", SEP, "--overlong", "truncate:7", tok=tok)
    ((ids,), (listed,)) = documents(folder).values(), separators(Source.open("c", str(folder))).values()
    assert len(ids) == 7
    assert listed == np.flatnonzero(ids == Source.open("c", str(folder)).tokenizer.special_tokens[SEP]).tolist()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--fragments-at", "<|file_sap|>"), "has no such token (closest are '<|file_sep|>'"),
        (("--fragments-at", "Ġthe"), "as a text it becomes"),
    ],
)
def test_a_separator_that_is_no_token_of_a_text_is_refused(build, rows, tok, options, told, capsys):
    folder = build(rows, *options, tok=tok, code=2)
    assert told in capsys.readouterr().err
    assert not folder.exists()


def test_a_separator_that_the_tokenizer_lacks_can_be_added(build, rows, tokenizer, capsys):
    folder = build(rows, "--fragments-at", SEP, "--add-special-tokens", SEP)
    assert sum(map(len, separators(Source.open("c", str(folder))).values())) == "".join(repositories()).count(SEP)
    del tokenizer


def test_conversations_have_no_separators(build, jsonl, tok, capsys):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    build(jsonl([{"messages": turns}]), "--template", "chatml", "--fragments-at", SEP, tok=tok, code=2)
    assert "--fragments-at parts texts, and conversations are none" in capsys.readouterr().err


def test_a_separator_that_stands_nowhere_is_warned_of(build, jsonl, tok, capsys):
    folder = build(jsonl([{"text": "nothing here"}]), "--fragments-at", SEP, tok=tok)
    assert f"warning: {SEP} stands in no text" in capsys.readouterr().out
    assert separators(Source.open("c", str(folder))) == {0: []}


def test_no_long_text_is_cut_inside_a_separator(tok):
    """An endless word is cut where that keeps the text; half a separator would not be one any more."""
    tokenizer = TextTokenizer(TokenizerFile.read(str(tok)), "", separator=SEP)
    for before in range(990, 1001):
        text = "-" * before + SEP + "-" * 1500
        cut = cut_long_text(text, tokenizer._raw, tokenizer._decode_but_separators, limit=1000)
        assert "".join(cut) == text
        assert sum(part.count(SEP) for part in cut) == 1


def test_places_that_are_no_separators_are_a_fault(build, rows, tok):
    source = Source.open("c", str(build(rows, *SMALL, "--fragments-at", SEP, tok=tok)))
    index = source.index(0)
    wrong = index.fragments.values.copy()
    wrong[np.flatnonzero(np.diff(wrong) > 1)[0]] += 1
    found = list(faults(publish(source, replace(index, fragments=Ragged(index.fragments.offsets, wrong)))))
    assert any("its separators (id" in line and "but the index lists" in line for line in found)


def test_a_stream_splits_what_the_build_recorded(build, rows, tok, documents):
    """From raw text to batches: separators stay, and the end token that the build put there stays last."""
    folder = build(rows, "--fragments-at", SEP, tok=tok)
    source = Source.open("c", str(folder))
    separator, end = source.tokenizer.special_tokens[SEP], source.tokenizer.eos_id
    tokens = {"prefix": "<|fim_prefix|>", "suffix": "<|pad|>"}
    fim = {"rate": 1, "split_on": SEP, "sentinels": tokens, "psm": ["PRE", "prefix", "SUF", "suffix", "middle"]}
    raw = {
        "seq_length": 256,
        "sources": [{"name": "code", "path": str(folder), "epochs": 1, "fim": fim | {"spm": fim["psm"]}}],
        "plan": {"windows": 2, "window_tokens": 2048},
        "batch": {"global_batch_size": 4, "micro_batch_size": 4},
        "loader": {"log_every": 0},
    }
    met = fragments = 0
    with build_loader(config_from(raw)) as loader:
        for batch in loader:
            ids, bounds = batch["tokens"].numpy(), batch["cu_seqlens_padded"].numpy()
            sizes = np.diff(batch["cu_seqlens"].numpy())
            for begin, size, source_id in zip(bounds[:-1], sizes, batch["source_ids"].numpy(), strict=True):
                if source_id >= 0:
                    own = ids[begin : begin + size]
                    assert own[-1] == end
                    assert (own == end).sum() == 1
                    met += int((own == separator).sum())
            fragments += fim_counts(batch)["fragments"]
    assert met == "".join(repositories()).count(SEP)
    assert fragments > 200
