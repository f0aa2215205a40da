"""Cuts inside tokens: the text comes back, and every part has the ids that it has alone."""

import json
import random
from array import array
from collections import Counter
from functools import cache
from itertools import combinations_with_replacement, product
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from fim.parts import PREFIX, fim_counts, inserted_as_metrics_tell, pieces_of
from fim.tokenizers_of import BY_WINDOWS, EVERY, LINES, WHOLE
from hypothesis import given
from hypothesis import strategies as st
from laws import same_batch, sequences_of, take, take_all_ranks
from streams import SEQ_LENGTH, raw_stream, specials_of, write_documents
from tokenizers import Tokenizer

from streampipe import ConfigError, build_loader, config_from
from streampipe.assemble.fim_cuts import Counts, Text, at_tokens
from streampipe.assemble.fim_text import TextCutter
from streampipe.encoder import open_encoder
from streampipe.rng import raw_words
from streampipe.shards import Document

HARD = [
    *"abZ _()=.,;'\"/1\n\t",
    *("  ", "\r\n", "'s", "'LL", "é", "e\u0301", "ß", "你", "好", "，", "。", "ー", "カ", "😀"),
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    *("\u200d", "\u3000", "ا", "ǅ", "123", "hello", " World", "<tool_call>", "<|endoftext|>", "<think>"),
    *(
        "7",
        "0x1f",
        "3.14",
        "'d",
        "',",
        "don't",
        "жук",
        "ёлка",
        "Ωμ",
        "한글",
        "שלום",
        "कि",
        "ﬁ",
        "\v",
        "\f",
        "\x1c",
        "\x00",
    ),
]
TEXTS = st.lists(st.sampled_from(HARD), max_size=60).map("".join)
FORM = "I"


@cache
def encoder(name):
    data = EVERY[name]()
    special = {
        token["content"]: token["id"]
        for token in json.loads(data)["added_tokens"]
        if token["special"] or token["content"].startswith(("<|", "<｜"))
    }
    return open_encoder(data, special, "$.fim")


@cache
def alone(name):
    """The library as it is, but that special tokens are text: what parts are compared with."""
    content = json.loads(EVERY[name]()) | {"post_processor": None}
    for token in content["added_tokens"]:
        token["special"] |= token["content"].startswith(("<|", "<｜"))
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.encode_special_tokens = True
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@cache
def cutter(name, level):
    return TextCutter(encoder(name), level, None, FORM)


def cut(name, level, text, word, room=10**9, counts=None):
    """Return the ids of the text, and of prefix, suffix and middle."""
    ids = encoder(name).encode(text, first=True)
    parts = cutter(name, level).parts(
        Text(memoryview(array(FORM, ids)), True, int(raw_words(1, word)[0])), room, counts or Counts()
    )
    return ids, [[i for chunk in part for i in chunk] for part in parts]


@cache
def library(name):
    return Tokenizer.from_str(EVERY[name]().decode())


def decoded(name, prefix, rest):
    """Return the text of parts. Only a prefix has the space that some tokenizers put before a document."""
    ids = prefix + rest if prefix else encoder(name).encode("a", first=True) + rest
    text = library(name).decode(ids, skip_special_tokens=False)
    return text if prefix else text.removeprefix(" ").removeprefix("a")


def same_as_alone(name, level, text, word):
    """Check that parts have the ids that they have alone; return whether some cut had room."""
    counts = Counts()
    ids, (prefix, suffix, middle) = cut(name, level, text, word, counts=counts)
    assert counts.whole == 0
    if counts.fallbacks:
        return False
    table = encoder(name).table
    whole, *texts = (b"".join(table.pieces[i] for i in part).decode() for part in (ids, prefix, middle, suffix))
    assert "".join(texts) == whole
    assert [alone(name)(part) for part in texts] == [prefix, middle, suffix]
    return True


@pytest.mark.parametrize("level", ["character", "line"])
@pytest.mark.parametrize("name", BY_WINDOWS)
@given(text=TEXTS, word=st.integers(0, 2**32))
def test_parts_of_hard_texts_have_the_ids_that_they_have_alone(name, level, text, word):
    if encoder(name).encode(text, first=True):
        assert same_as_alone(name, level, text, word)


@pytest.mark.parametrize("name", BY_WINDOWS)
def test_every_cut_of_texts_full_of_near_borders_is_as_if_encoded_whole(name):
    made = []
    for text in map("".join, product(("bin", "'t", "'", "12", "3", ".", " ", "é"), repeat=3)):
        for pair in combinations_with_replacement(range(len(text) + 1), 2):
            with mock.patch("streampipe.assemble.fim_text.sorted_cut", lambda *_, pair=pair: pair):
                made.append(same_as_alone(name, "character", text, 0))
    assert sum(made) > len(made) * 0.8, "others have fewer tokens than the text, and are drawn again"


@pytest.mark.parametrize("name", BY_WINDOWS)
@given(text=TEXTS | st.text(st.characters(max_codepoint=127), max_size=40))
def test_words_have_the_ids_that_the_library_gives(name, text):
    assert encoder(name).encode(text, first=False) == alone(name)(text)


TABLES = [
    "".join(f"{number * 7919 % 100_000}, " for number in range(400)),
    "".join(f"0x{number * 7919 % 65_536:04x},\n" for number in range(400)),
    "".join(f"    'name{chr(97 + number % 26)}',\n" for number in range(300)),
    "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 40,
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, λέξη προς λέξη. " * 40,
    "모든 국민은 법 앞에 평등하다, 누구든지 성별에 의하여. " * 40,
]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", ["qwen3", "deepseek", "llama3"])
def test_only_what_is_near_a_cut_is_encoded_anew(name, table):
    """Without borders in it, a table would be read from beginning to end, at milliseconds a cut."""
    own, read, ids = encoder(name), [0], alone(name)(table)
    with mock.patch.object(own, "encode", lambda text, *, first: read.append(len(text)) or alone(name)(text)):
        for word in raw_words(50, "cuts").tolist():
            text = Text(memoryview(array(FORM, ids)), True, word)
            TextCutter(own, "character", None, FORM).parts(text, 10**9, Counts())
    assert 0 < max(read) < 60


@cache
def real_texts():
    """Python sources of the standard library, in stretches of 2,000 characters."""
    files = sorted(Path(json.__file__).parents[1].glob("*.py"))
    text = "".join(path.read_text(errors="ignore") for path in files)[:1_200_000]
    return [text[at : at + 2000] for at in range(0, len(text), 2000)]


@pytest.mark.parametrize("name", BY_WINDOWS)
def test_a_few_thousand_cuts_of_real_texts_are_as_if_encoded_whole(name):
    for number, text in enumerate(real_texts()):
        assert same_as_alone(name, "character", text, number)


@pytest.mark.parametrize("level", ["character", "line", "token"])
@pytest.mark.parametrize("name", EVERY)
@given(text=st.lists(st.sampled_from(LINES), max_size=3).map("".join), word=st.integers(0, 2**32), tail=TEXTS)
def test_parts_put_back_are_the_text(name, level, text, word, tail):
    if name != "sentencepiece":  # it has no bytes to fall back to
        text += tail
    ids, (prefix, suffix, middle) = cut(name, level, text, word) if text else ([], ([], [], []))
    assert prefix + middle + suffix == ids or decoded(name, prefix, middle + suffix) == decoded(name, ids, [])


@pytest.mark.parametrize("name", WHOLE)
def test_other_tokenizers_encode_whole_texts_and_say_so(name):
    counts = Counts()
    cut(name, "character", LINES[0], 3, counts=counts)
    assert counts.whole == 1
    assert encoder(name).table is None


def test_no_space_is_invented_before_middle_and_suffix():
    own = encoder("sentencepiece")
    whole = own.text_of(own.encode("return name", first=True), first=True)
    assert whole == "return name"
    assert own.encode("urn", first=False) != own.encode("urn", first=True)
    assert library("sentencepiece").id_to_token(own.encode("urn", first=False)[0])[0] != "▁"


def test_cuts_are_drawn_again_until_they_have_room_then_made_at_tokens():
    name, text = "cl100k", LINES[0] * 3
    tight, roomy = Counts(), Counts()
    for word in range(200):
        ids, parts = cut(name, "character", text, word, room=len(encoder(name).encode(text, first=True)), counts=tight)
        assert sum(map(len, parts)) == len(ids)
        _, parts = cut(name, "character", text, word, room=len(ids) + 4, counts=roomy)
        assert sum(map(len, parts)) <= len(ids) + 4
    assert tight.redraws > 400
    assert roomy.redraws < 40
    assert tight.fallbacks > roomy.fallbacks == 0


def test_ids_that_are_no_text_are_cut_between_tokens():
    table = encoder("gpt2").table
    half = table.pieces.index(b"\xe4")
    text = Text(memoryview(array(FORM, [half] * 9)), False, 12345)
    counts = Counts()
    assert cutter("gpt2", "character").parts(text, 20, counts) == at_tokens(text)
    assert counts.fallbacks == 1


@pytest.fixture(scope="module", params=["cl100k", "sentencepiece"])
def corpus(request, tmp_path_factory):
    """A source of real text with its tokenizer."""
    folder, name = tmp_path_factory.mktemp("text"), request.param
    rng = random.Random(5)
    texts = ["".join(rng.choice(LINES) for _ in range(rng.randrange(1, 5))) for _ in range(150)]
    data = EVERY[name]()
    end = json.loads(data)["added_tokens"]
    end = next(token["id"] for token in end if token["content"] == "<|endoftext|>")
    own = open_encoder(data, specials_of(data), "$")
    documents = [np.array([*own.encode(text, first=True), end], np.uint16) for text in texts]
    write_documents(
        folder / "code",
        [Document(f"{i:06d}", ids) for i, ids in enumerate(documents)],
        token_dtype="uint16",
        tokenizer=data,
        build={"eos": "<|endoftext|>", "bos": None},
    )
    return folder, name, documents


def stream(folder, changes=None, epochs=1, **fim):
    fields = ["tokens", "labels", "position_ids", "loss_mask", "fim_parts"]
    raw = raw_stream(folder, {"batch.fields": fields} | (changes or {}))
    fim = {"rate": 0.6, "sentinels": "starcoder"} | fim
    raw["sources"] = [{"name": "code", "path": f"{folder}/code", "epochs": epochs, "fim": fim}]
    return config_from(raw)


@pytest.mark.parametrize("level", ["character", "line"])
def test_a_stream_gives_every_text_back(corpus, level):
    folder, name, documents = corpus
    parts = {}
    for batch in take(stream(folder, level=level), None):
        assert batch["loss_tokens"] == batch["loss_mask"].sum()
        for piece in pieces_of(batch):
            parts.setdefault(piece.document, []).append(piece)
            if piece.transformed and len(documents[piece.document]) <= SEQ_LENGTH:
                assert piece.tokens[-1] == documents[piece.document][-1], "the end token stays last"
    for document, ids in enumerate(documents):
        if len(parts[document]) == 1:
            (piece,), whole = parts[document], ids.tolist()
            split = len(piece.of(PREFIX)) if piece.transformed else len(whole)
            assert piece.restored() == whole or (
                decoded(name, piece.restored()[:split], piece.restored()[split:]) == decoded(name, whole, [])
            )
    assert sum(piece.transformed for own in parts.values() for piece in own) > 40


def test_trained_tokens_are_known_before_the_text_is(corpus):
    """A cut at a character adds tokens; as many are left without loss before the middle, so a step's count is exact."""
    steps = {}
    for batches in take_all_ranks(stream(corpus[0], {"batch.global_batch_size": 4}), 2):
        for batch in batches:
            steps.setdefault((batch["step"], batch["step_loss_tokens"]), []).append(batch["loss_tokens"])
    assert all(sum(counts) == due for (_, due), counts in steps.items())


@pytest.mark.parametrize("labels", ["aligned", "unshifted"])
def test_exempt_texts_are_left_alone_and_the_count_stays_exact(corpus, labels):
    folder, name, documents = corpus
    config = stream(folder, {"batch.labels": labels}, rate=1, no_prefix="def main")
    counts, steps = Counter(), {}
    for batch in take(config, None):
        steps.setdefault((batch["step"], batch["step_loss_tokens"]), []).append(batch["loss_tokens"])
        assert batch["loss_tokens"] == batch["loss_mask"].sum()
        counts += fim_counts(batch)
        for piece in pieces_of(batch):
            if piece.transformed and piece.restored() == documents[piece.document].tolist():
                text = encoder(name).text_of(documents[piece.document][:-1].tolist(), first=True)
                assert not text.startswith("def main")
    assert all(sum(found) == due for (_, due), found in steps.items())
    assert counts["exempt"] > 10


def test_text_streams_are_the_same_on_any_topology_and_resume(corpus):
    config = stream(corpus[0])
    whole = take(config, None)
    ranks = take_all_ranks(config, 4)
    assert sequences_of([b for batches in ranks for b in batches], SEQ_LENGTH) == sequences_of(whole, SEQ_LENGTH)
    future = take(config, None, cursor=whole[3]["cursor"])
    assert len(future) >= 4
    assert all(same_batch(a, b) for a, b in zip(future, whole[4:], strict=True))
    workers = take(stream(corpus[0], {"loader.num_workers": 2}), 8)
    assert all(same_batch(a, b) for a, b in zip(workers, whole, strict=False))


def test_metrics_tell_what_was_done(corpus):
    with build_loader(stream(corpus[0], rate=1)) as loader:
        for _ in zip(range(10), loader, strict=False):
            pass
        told = loader.metrics()["fim"]
    assert told["rate"] > 0.5
    assert 0 < told["spm_rate"] < 1
    assert told["sources"]["code"]["rate"] == told["rate"]
    assert inserted_as_metrics_tell(stream(corpus[0], rate=1)) > 300


@pytest.mark.parametrize(
    ("fim", "told"),
    [
        ({"sentinels": "deepseek"}, "has no token '<｜fim▁begin｜>' for the prefix, closest are '<fim_"),
        ({"sentinels": "starcodr"}, "there is no preset 'starcodr', perhaps 'starcoder'"),
        ({"sentinels": {"prefix": 5, "suffix": 5, "middle": 6}}, "two roles share an id"),
        ({"sentinels": {"prefix": 5, "suffix": 10**6}}, "the id 1000000 of the suffix is not within"),
        ({"sentinels": {"prefix": 5, "suffix": 6}, "level": "token"}, "MID has no token"),
        ({"loss": "middle"}, "level: character does not allow"),
        ({"rate": 1.5}, "must be within 0 and 1"),
        ({"psm": ["PRE", "prefix", "middle", "suffix"]}, "a template begins with"),
        ({"psm": ["", "prefix", "suffix", "middle"]}, "fim.psm: '' is no token of 'code'"),
        (
            {"psm": ["PRE", "prefix", 10**6, "suffix", "middle"]},
            "fim.psm: the id 1000000 of the template is not within",
        ),
        ({"spm": [-5, "prefix", "suffix", "middle"]}, "fim.spm: the id -5 of the template is not within"),
        ({"psm": ["<fim_prefix>", "prefix", "suffix", "middle"]}, "letter by letter; write "),
        (
            {"psm": ["pre", "prefix", "suffix", "middle"]},
            "letter by letter; write PRE for the token",
        ),
        ({"level": "word"}, "fim.level: must be one of character, line, token, but got 'word'"),
        ({"no_prefix": ""}, "every text begins with nothing"),
        ({"split_on": "<file_sep>"}, "build the source with `shardtools build --fragments-at '<file_sep>'`"),
        ({"split_on": ""}, "names no token"),
        ({"split_on": 7}, "not its id"),
        ({"fragment_rate": 0.5}, "has a meaning with split_on only"),
        ({"split_on": "<file_sep>", "fragment_rate": -0.5}, "must be within 0 and 1"),
        ({"compat": "megatron"}, "set packing.policy: concat, or remove compat"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_cure(corpus, fim, told):
    with pytest.raises(ConfigError) as caught, build_loader(stream(corpus[0], **fim)):
        pass
    assert told in str(caught.value)


def test_an_order_that_a_phase_asks_for_is_refused_where_it_asks(corpus):
    changes = {"phases": [{"start": 4096, "fim": {"code": {"spm_rate": 0.5}}}]}
    preset = {"sentinels": "seed-coder", "spm_rate": 1}
    tokens = {"<[fim-prefix]>": 5, "<[fim-suffix]>": 6, "<[fim-middle]>": 7}
    with (
        mock.patch("streampipe.fim_sentinels.vocabulary", lambda _: tokens),
        pytest.raises(ConfigError, match=r"^\$\.phases\[0\]\.fim\.code\.spm_rate: 0\.5 asks for the order psm"),
    ):
        build_loader(stream(corpus[0], changes, **preset))
    with pytest.raises(ConfigError, match=r"keys are fragment_rate, rate, spm_rate, but got 'level'"):
        stream(corpus[0], {"phases": [{"start": 4096, "fim": {"code": {"level": 0.5}}}]})


def test_a_tokenizer_is_read_once_however_many_texts_and_phases_there_are(corpus):
    order = ["File:", "PRE", "prefix", "and:", "SUF", "suffix", "then:", "MID", "middle"]
    phases = [{"start": 4096 * number, "fim": {"code": {"rate": 0.1 * number}}} for number in range(1, 4)]
    with mock.patch("streampipe.fim_opening.open_encoder", wraps=open_encoder) as opened:
        build_loader(stream(corpus[0], {"phases": phases}, psm=order, spm=order, epochs=None)).close()
    assert opened.call_count == 1


def test_a_cut_that_would_change_the_text_is_drawn_again():
    """Cut inside `<tool_call>`, which kept them apart, its `>` and U+0338 are one character in Qwen's NFC."""
    counts = Counts()
    for word in range(300):
        text = f"x = 1 # <tool_call>\u0338 {word}"
        _, (prefix, suffix, middle) = cut("qwen3", "character", text, word, counts=counts)
        pieces = encoder("qwen3").table.pieces
        assert b"".join(pieces[i] for i in prefix + middle + suffix).decode() == text
    assert counts.redraws > 100


def stripping():
    """Sentencepiece-style, and strips what it encodes: a part that ends in spaces would lose them."""
    content = json.loads(EVERY["sentencepiece"]())
    content["normalizer"]["normalizers"].insert(0, {"type": "Strip", "strip_left": True, "strip_right": True})
    return json.dumps(content).encode()


def unsplit():
    """Byte-level after NFC, its words unknown, so texts are encoded whole; with an added token."""
    content = json.loads(EVERY["exotic"]())
    content["normalizer"] = {"type": "NFC"}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    last = max(token["id"] for token in content["added_tokens"])
    content["added_tokens"].append({"id": last + 1, "content": "<tool_call>", **plain})
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("made", "text"), [(stripping, "def main:  # the name   of a      list {}"), (unsplit, "x = <tool_call>\u0338 {}")]
)
def test_a_whole_text_that_a_cut_would_change_is_cut_elsewhere(made, text):
    data = made()
    own, tokenizer = open_encoder(data, specials_of(data), "$.fim"), Tokenizer.from_str(data.decode())
    counts, redrawn = Counts(), TextCutter(own, "character", None, FORM)
    assert own.table is None
    for word in range(200):
        numbered = text.format(word)
        ids = own.encode(numbered, first=True)
        assert own.text_of(ids, first=True) == numbered, "this text is the tokenizer's own"
        drawn = Text(memoryview(array(FORM, ids)), True, int(raw_words(1, word)[0]))
        prefix, suffix, middle = ([i for chunk in part for i in chunk] for part in redrawn.parts(drawn, 999, counts))
        back = tokenizer.decode(prefix + middle + suffix, skip_special_tokens=False)
        assert back == (numbered if prefix else numbered[1:] if numbered[0] == " " else numbered)
    assert counts.redraws > 20
    assert counts.fallbacks < counts.whole // 3


def test_documents_that_are_cut_anywhere_have_no_middle(corpus):
    with pytest.raises(ConfigError, match="concat cuts them anywhere"):
        stream(corpus[0], {"packing.policy": "concat"})


def test_a_stream_whose_texts_are_all_exempt_is_the_stream_without(tmp_path):
    data = EVERY["cl100k"]()
    own = open_encoder(data, specials_of(data), "$")
    documents = [np.array(own.encode(f"def f{i}(): pass\n" * 9, first=True), np.uint16) for i in range(40)]
    write_documents(
        tmp_path / "code",
        [Document(f"{i:06d}", ids) for i, ids in enumerate(documents)],
        token_dtype="uint16",
        tokenizer=data,
    )
    met = []
    for batch in take(stream(tmp_path, rate=1, no_prefix="def f"), None):
        met += [(piece.document, piece.tokens.tolist()) for piece in pieces_of(batch)]
        assert fim_counts(batch)["exempt"] == fim_counts(batch)["pieces"]
        assert batch["cu_seqlens"].equal(batch["cu_seqlens_padded"])
    assert sorted(met) == [(i, ids.tolist()) for i, ids in enumerate(documents)]
