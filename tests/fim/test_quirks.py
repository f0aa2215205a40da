"""What Megatron's fill-in-the-middle does to documents and the default mode must not."""

import numpy as np
import pytest
from fim.parts import MIDDLE, NONE, PREFIX, SENTINEL, SUFFIX, pieces_of
from fim.tokenizers_of import EVERY, LINES
from laws import take
from streams import SEQ_LENGTH, raw_stream, specials_of, write_documents
from tokenizers import Tokenizer

from streampipe import config_from
from streampipe.encoder import open_encoder
from streampipe.shards import Document

FIELDS = ["tokens", "labels", "position_ids", "loss_mask", "fim_parts"]


def pieces(folder, documents, tokenizer, **fim):
    """Stream documents once with every one of them hit; return the pieces by document, and the special tokens."""
    write_documents(
        folder / "code",
        [Document(f"{i:06d}", np.array(ids, np.uint16)) for i, ids in enumerate(documents)],
        token_dtype="uint16",
        tokenizer=tokenizer,
        build={"eos": "<|endoftext|>", "bos": None},
    )
    raw = raw_stream(folder, {"batch.fields": FIELDS})
    fim = {"rate": 1, "sentinels": "starcoder"} | fim
    raw["sources"] = [{"name": "code", "path": f"{folder}/code", "epochs": 1, "fim": fim}]
    batches = take(config_from(raw), None)
    return {piece.document: piece for batch in batches for piece in pieces_of(batch)}


def encoded(tokenizer, text):
    return open_encoder(tokenizer, specials_of(tokenizer), "$").encode(text, first=True)


@pytest.mark.parametrize("inner", ["<|endoftext|>", "<file_sep>", "<s>"])
def test_tokens_inside_a_document_stay_where_they_are(tmp_path, inner):
    """Megatron drops end tokens that follow each other, and every special token of a text that is hit."""
    data = EVERY["cl100k"]()
    ids = specials_of(data)
    text = encoded(data, LINES[0])
    documents = [[ids[inner], ids[inner], *text, ids[inner], ids[inner], ids["<|endoftext|>"]]] * 30
    met = pieces(tmp_path, documents, data)
    assert sum(piece.transformed for piece in met.values()) == 30
    decode = Tokenizer.from_str(data.decode()).decode
    for piece in met.values():
        assert decode(piece.restored(), skip_special_tokens=False) == decode(documents[0], skip_special_tokens=False)


def test_no_start_token_comes_before_the_parts(tmp_path):
    data = EVERY["gpt2"]()
    ids = specials_of(data)
    assert "post_processor" in data.decode()
    met = pieces(tmp_path, [[*encoded(data, LINES[0]), ids["<|endoftext|>"]]] * 30, data)
    assert all(piece.transformed and ids["<s>"] not in piece.tokens for piece in met.values())


def test_no_token_is_lost_at_the_end_and_nothing_is_filled_up(tmp_path):
    """The middle and the end token come last, trained; a document that its sentinels would push out stays whole."""
    data = EVERY["cl100k"]()
    ids = specials_of(data)
    text = encoded(data, "a, b. " * SEQ_LENGTH)
    lengths = [*range(1, 40), *range(SEQ_LENGTH - 12, SEQ_LENGTH)]
    met = pieces(tmp_path, [[*text[:length], ids["<|endoftext|>"]] for length in lengths], data)
    assert len(met) == len(lengths)
    for number, length in enumerate(lengths):
        piece = met[number]
        assert piece.tokens[-1] == ids["<|endoftext|>"]
        assert piece.labels[-2] == ids["<|endoftext|>"]
        assert ids["<fim_pad>"] not in piece.tokens
        assert len(piece.of(PREFIX)) + len(piece.of(MIDDLE)) + len(piece.of(SUFFIX)) >= length * piece.transformed
        assert piece.transformed == (length + 1 + 3 <= SEQ_LENGTH)
        assert (piece.kinds == SENTINEL).sum() == 3 * piece.transformed


@pytest.mark.parametrize(("spm_rate", "first"), [(0, PREFIX), (1, SUFFIX)])
def test_one_order_alone_is_possible(tmp_path, spm_rate, first):
    data = EVERY["cl100k"]()
    text = encoded(data, LINES[0] * 2)
    met = pieces(tmp_path, [[*text, specials_of(data)["<|endoftext|>"]]] * 60, data, spm_rate=spm_rate)
    sentinels = [np.flatnonzero(piece.kinds == SENTINEL) for piece in met.values()]
    second = {bool(at[1] == at[0] + 1) for at in sentinels}  # PRE SUF: the suffix comes first, or the prefix is empty
    assert (second == {True}) if first == SUFFIX else (False in second)
    orders = {tuple(kind for kind in piece.order() if kind not in (NONE, SENTINEL)) for piece in met.values()}
    whole = (PREFIX, SUFFIX, MIDDLE) if first == PREFIX else (SUFFIX, PREFIX, MIDDLE)
    assert whole in orders
    assert whole[1::-1] + whole[2:] not in orders
