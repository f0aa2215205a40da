"""Texts to ids: what the file would add or cut by itself is off, and nothing wraps."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from shardtools.cli import main
from shardtools.text.cutting import cut_long_text
from shardtools.text.tokenizer import TextTokenizer, TokenizerFile, core_hash, tokenizer_hash
from streampipe.errors import ConfigError


def load(path, **options) -> TextTokenizer:
    return TextTokenizer(TokenizerFile.read(str(path)), **options)


def byte_level(size: int) -> Tokenizer:
    """A byte-level tokenizer with `size` entries: bytes, then unreachable fillers."""
    vocab = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab.update({f"filler{i}": i for i in range(len(vocab), size)})
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def saved(made: Tokenizer, folder, config=None):
    made.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"


@settings(deadline=None, max_examples=200)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_from_its_tokens(tokenizer, text):
    loaded = load(tokenizer)
    (ids,) = loaded.encode([text])
    assert (len(ids) == 0) == (text == "")
    if text:
        assert ids[-1] == loaded.info().eos_id
        assert loaded.decode(ids.tolist()) == text


def test_text_that_quotes_special_tokens_stays_text(tokenizer):
    loaded = load(tokenizer)
    text = "a<|endoftext|>b <|fim_prefix|>"
    (ids,) = loaded.encode([text])
    assert list(ids).count(loaded.info().eos_id) == 1
    assert loaded.info().special_tokens["<|fim_prefix|>"] not in ids
    assert loaded.decode(ids.tolist()) == text


def test_control_tokens_that_the_file_forgot_to_call_special_stay_text(tmp_path):
    made = byte_level(256)
    made.add_special_tokens(["<|endoftext|>"])
    made.add_tokens(["<|fim_prefix|>", "word"])
    loaded = load(saved(made, tmp_path))
    (ids,) = loaded.encode(["<|fim_prefix|>word"])
    assert 257 not in ids
    assert 258 in ids, "an added token that is an ordinary word is still one token"


def test_truncation_padding_dropout_and_post_processors_of_the_file_are_off(tmp_path):
    made = byte_level(256)
    made.add_special_tokens(["<s>", "</s>"])
    made.enable_truncation(4)
    made.enable_padding(length=20)
    made.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 256), ("</s>", 257)])
    path = saved(made, tmp_path)
    assert [len(ids) for ids in load(path).encode(["x" * 10])] == [11]
    (ids,) = load(path, bos="<s>").encode(["x" * 10])
    assert (ids[0], ids[-1], len(ids)) == (256, 257, 12), "one begin and one end token"
    assert [len(ids) for ids in load(path, eos="").encode(["x" * 10])] == [10]
    content = json.loads(path.read_bytes())
    content["model"]["dropout"] = 0.5
    assert TextTokenizer(TokenizerFile(json.dumps(content).encode())).encode(["x" * 10])[0].tolist() == ids[1:].tolist()


@pytest.mark.parametrize(
    ("size", "added", "dtype"),
    [(65_535, 0, "uint16"), (65_535, 1, "uint16"), (65_536, 1, "uint32"), (65_530, 10, "uint32")],
)
def test_the_dtype_holds_the_last_added_token(tmp_path, size, added, dtype):
    made = byte_level(size)
    names = [f"<|chat{i}|>" for i in range(added)]
    made.add_special_tokens(names)
    loaded = load(saved(made, tmp_path), eos=names[-1] if names else f"filler{size - 1}")
    assert loaded.dtype == dtype
    (ids,) = loaded.encode(["x"])
    assert int(ids[-1]) == size + added - 1 == loaded.info().max_id


def test_the_dtype_comes_from_the_largest_id_where_ids_have_holes(tmp_path):
    path = saved(byte_level(300), tmp_path)
    content = json.loads(path.read_bytes())
    content["model"]["vocab"]["high"] = 70_000
    loaded = TextTokenizer(TokenizerFile(json.dumps(content).encode()), eos="high")
    assert loaded.encode(["x"])[0].tolist()[-1] == 70_000
    assert loaded.info().vocab_size == 301


@pytest.mark.parametrize(
    ("tokens", "config", "eos"),
    [
        (["<|endoftext|>"], None, "<|endoftext|>"),
        (["</s>", "<|im_end|>"], None, "</s>"),
        (["<|im_end|>"], None, "<|im_end|>"),
        (["<|endoftext|>", "<|im_end|>"], {"eos_token": "<|im_end|>"}, "<|im_end|>"),
        (["<|endoftext|>", "</s>"], {"eos_token": {"content": "</s>"}}, "</s>"),
        (["<|endoftext|>"], {"eos_token": None}, "<|endoftext|>"),
    ],
)
def test_the_default_end_token_is_the_tokenizers_own(tmp_path, tokens, config, eos):
    made = byte_level(256)
    made.add_special_tokens(tokens)
    assert load(saved(made, tmp_path, config)).eos == eos


@pytest.mark.parametrize(
    ("tokens", "config"),
    [([], None), (["</s>", "<|endoftext|>"], None), (["</s>"], {"eos_token": "<|gone|>"})],
)
def test_an_end_token_that_is_not_certain_is_an_error_with_the_cure(tmp_path, tokens, config):
    made = byte_level(256)
    made.add_special_tokens(tokens)
    path = saved(made, tmp_path, config)
    with pytest.raises(ConfigError, match=r"--no-eos"):
        load(path)
    assert load(path, eos="").eos == ""


def test_more_added_tokens_keep_the_core_hash_and_layout_keeps_both(tokenizer):
    data = tokenizer.read_bytes()
    more = Tokenizer.from_file(str(tokenizer))
    more.add_special_tokens(["<|one_more|>"])
    assert core_hash(more.to_str().encode()) == core_hash(data)
    assert tokenizer_hash(more.to_str().encode()) != tokenizer_hash(data)
    assert tokenizer_hash(json.dumps(json.loads(data), indent=7).encode()) == tokenizer_hash(data)


@settings(deadline=None, max_examples=60)
@given(
    words=st.lists(
        st.sampled_from(["the loader", " reads ", "\n", "x1y2", "中文。", "  \n\n", "frames", "_" * 50, "é", "-"]),
        min_size=200,
        max_size=600,
    )
)
def test_long_texts_cut_in_pieces_give_the_tokens_of_the_whole(tokenizer, words):
    loaded = load(tokenizer, eos="")
    text = "".join(words)
    pieces = cut_long_text(text, loaded._raw, loaded.decode, limit=2_000)
    assert "".join(pieces) == text
    whole = loaded._raw([text])[0]
    assert np.array_equal(np.concatenate(loaded._raw(pieces)), whole)
    assert len(pieces) > len(text) // 2_000


def test_one_endless_word_is_cut_and_comes_back(tokenizer):
    loaded = load(tokenizer)
    for letter in "_x":
        (ids,) = loaded.encode([letter * 2_500_000])
        assert loaded.decode(ids.tolist()) == letter * 2_500_000


def test_a_tokenizer_that_begins_each_text_with_a_space_is_never_cut_inside_a_word(tmp_path):
    made = byte_level(256)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.add_special_tokens(["</s>"])
    loaded = load(saved(made, tmp_path), eos="")
    assert cut_long_text("x" * 3_000, loaded._raw, loaded.decode, limit=1_000) == ["x" * 3_000]


def test_training_twice_gives_the_same_file_with_the_tokens_asked_for(tmp_path, corpus):
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path in paths:
        arguments = ["--vocab-size", "400", "--output", str(path), "--special-tokens", "<|a|>,<|b|>"]
        assert main(["train-tokenizer", str(corpus), *arguments]) == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()
    ids = Tokenizer.from_file(str(paths[0])).get_vocab()
    assert [ids[name] for name in ("<|endoftext|>", "<|a|>", "<|b|>")] == [0, 1, 2]
    assert len(ids) == 400
    assert set(pre_tokenizers.ByteLevel.alphabet()) <= set(ids)


def test_a_vocabulary_too_small_for_the_bytes_is_refused(tmp_path, corpus, capsys):
    assert main(["train-tokenizer", str(corpus), "--vocab-size", "200", "--output", str(tmp_path / "t.json")]) == 2
    assert "at least 257" in capsys.readouterr().err
