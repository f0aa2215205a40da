"""A source's tokenizer at hand, for cuts inside tokens; needs the library `tokenizers`."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from streampipe.assemble.byte_table import ByteTable, has_safe_border
from streampipe.errors import ConfigError

_Made = TypeVar("_Made")

_CONTRACTIONS = {
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    "'(?i:[sdmt]|ll|ve|re)",
    *(f"'{s}" for s in ("s", "t", "re", "ve", "m", "ll", "d")),
}
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = {
    f"{lead}{upper}{lower}(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    for lead in (r"[^\r\n\p{L}\p{N}]?",)
    for upper, lower in ((f"{_UPPER}*", f"{_LOWER}+"), (f"{_UPPER}+", f"{_LOWER}*"))
}
# Alternatives of pre-tokenizer patterns (GPT-2, cl100k, o200k, Llama 3, Qwen, DeepSeek) in which no letter is followed
# by a character that `byte_table` takes for a border, and none looks beyond one. A pattern made of others is not
# refused: its texts are encoded whole.
_ALTERNATIVES = {
    *_CONTRACTIONS,
    *_O200K,
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?+\p{L}+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?\p{L}+",
    r" ?\p{N}+",
    r"\p{N}",
    r"\p{N}+",
    r"\p{N}{1,3}",
    r"\p{N}{1,3}+",
    r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]++[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[\p{P}\p{S}]+[\r\n]*",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"\s*[\r\n]+",
    r"\s*[\r\n]",
    r"[\r\n]+",
    r"[\r\n]",
    r"\s+(?!\S)",
    r"\s++$",
    r"\s+$",
    r"\s+",
    r"\s",
}


class TokenizerEncoder:
    """Encodes parts of documents as the build encoded the documents; `streampipe.assemble.fim_text.Encoder`.

    What the file would add, cut or drop by itself is off, and special tokens that a text quotes are text. A part that
    is not the beginning of a document gets no space that the tokenizer puts before texts.

    Args:
        content: of the tokenizer.json.
        special: names of the special tokens.
        library: the module `tokenizers`.
    """

    def __init__(self, content: Mapping[str, Any], special: Mapping[str, int], library: Any) -> None:
        plain = json.loads(json.dumps(content))
        for token in plain.get("added_tokens") or []:
            token["special"] = token["content"] in special
        plain |= {"truncation": None, "padding": None, "post_processor": None}
        self._first = _loaded(plain, library)
        bare = _without_prefix(plain)
        self._inner = self._first if bare == plain else _loaded(bare, library)
        self._bytes = _bytes_of_ids(plain)
        self._windows = self._bytes is not None and bare == plain and _splits_at_safe_borders(plain)

    @property
    def table(self) -> ByteTable | None:
        """The bytes of ids, where windows may be encoded by themselves."""
        return self._bytes if self._windows else None

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Return the ids of a text."""
        ids: list[int] = (self._first if first else self._inner).encode(text, add_special_tokens=False).ids
        return ids

    def text_of(self, ids: Sequence[int], *, first: bool) -> str | None:
        """Return the text of ids, or None if it does not give these ids back."""
        if self._bytes is not None:
            pieces = [self._bytes.pieces[i] for i in ids]
            try:
                text = b"".join(pieces).decode()  # type: ignore[arg-type]
            except (TypeError, UnicodeDecodeError):  # a special token, or half a character
                return None
            return text
        text = str(self._first.decode(list(ids), skip_special_tokens=False))
        return text if self.encode(text, first=first) == list(ids) else None

    def spelling(self, ids: Sequence[int]) -> bytes:
        """Return ids as the vocabulary spells them, one after the other; special tokens are nothing.

        Two lists of ids that spell the same stand for the same text, after normalizing.
        """
        return b"".join([self._spelt[i] for i in ids])

    @cached_property
    def _spelt(self) -> list[bytes]:
        if self._bytes is not None:
            return [piece or b"" for piece in self._bytes.pieces]
        tokens = {i: token for token, i in self._first.get_vocab(with_added_tokens=True).items()}
        return [_spelt(tokens.get(i, "")) for i in range(max(tokens) + 1)]


class WholeCodec:
    """Decodes and encodes as the file says, as Megatron does; `streampipe.assemble.megatron_fim.Codec`.

    Special tokens vanish from texts, a special token that a text quotes becomes one, and every text gets the start and
    end tokens that the file adds.

    Args:
        content: of the tokenizer.json.
        library: the module `tokenizers`.
    """

    def __init__(self, content: Mapping[str, Any], library: Any) -> None:
        self._tokenizer = _loaded({**content, "truncation": None, "padding": None}, library)
        self._tokenizer.encode_special_tokens = False

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids


def open_encoder(data: bytes, special: Mapping[str, int], where: str) -> TokenizerEncoder:
    """Make an encoder of a tokenizer.json.

    Raises:
        ConfigError: when the library is missing, or cannot read the file.
    """
    library = _library(where, "cutting inside tokens", ", or use level: token")
    return _made(lambda: TokenizerEncoder(json.loads(data), special, library), where)


def open_codec(data: bytes, where: str) -> WholeCodec:
    """Make a codec of a tokenizer.json.

    Raises:
        ConfigError: when the library is missing, or cannot read the file.
    """
    library = _library(where, "compat: megatron", "")
    return _made(lambda: WholeCodec(json.loads(data), library), where)


def _library(where: str, what: str, instead: str) -> Any:
    try:
        import tokenizers  # noqa: PLC0415 (an extra that only texts that are cut inside tokens need)
    except ImportError as error:
        raise ConfigError(
            f"{where}: {what} needs the library `tokenizers`, which is not installed; install "
            f"`streampipe-llm[fim]`{instead}"
        ) from error
    return tokenizers.Tokenizer


def _made(make: Callable[[], _Made], where: str) -> _Made:
    try:
        return make()
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{where}: the source's tokenizer.json cannot be used ({error})") from error


def _loaded(content: Mapping[str, Any], library: Any) -> Any:
    if content["model"].get("dropout") is not None:
        content = {**content, "model": {**content["model"], "dropout": None}}
    try:
        tokenizer = library.from_str(json.dumps(content, ensure_ascii=False))
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(f"{error}; is it of a newer release of `tokenizers`?") from error
    tokenizer.encode_special_tokens = True
    return tokenizer


def _spelt(token: str) -> bytes:
    """Return a token's bytes; one that falls back to a byte is that byte."""
    byte = re.fullmatch("<0x([0-9A-F]{2})>", token)
    return bytes.fromhex(byte[1]) if byte else token.encode()


def _parts(step: Mapping[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer, sequences flattened."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [part for inner in step[key] for part in _parts(inner, key)]
    return [dict(step)]


def _without_prefix(content: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer that puts no space before a text."""
    bare = json.loads(json.dumps(content))
    normalizers = _parts(bare.get("normalizer"), "normalizers")
    kept = [step for step in normalizers if step["type"] != "Prepend"]
    if len(kept) < len(normalizers):
        bare["normalizer"] = {"type": "Sequence", "normalizers": kept} if kept else None
    splitters = _parts(bare.get("pre_tokenizer"), "pretokenizers")
    changed = False
    for step in splitters:
        if step["type"] == "ByteLevel" and step.get("add_prefix_space"):
            step["add_prefix_space"] = False
            changed = True
        if step["type"] == "Metaspace" and (step.get("prepend_scheme", "always") != "never"):
            step["prepend_scheme"] = "never"
            step.pop("add_prefix_space", None)
            changed = True
    if changed:
        single = len(splitters) == 1
        bare["pre_tokenizer"] = splitters[0] if single else {"type": "Sequence", "pretokenizers": splitters}
    return dict(bare)


def _bytes_of_ids(content: Mapping[str, Any]) -> ByteTable | None:
    """Return the bytes of the ids of a byte-level tokenizer; None for others."""
    steps = _parts(content.get("pre_tokenizer"), "pretokenizers")
    model = content["model"]
    if not any(step["type"] == "ByteLevel" for step in steps) or model.get("type", "BPE") != "BPE":
        return None
    letters = _byte_letters()
    added = {token["id"]: token for token in content.get("added_tokens") or []}
    ids = {i: text for text, i in model["vocab"].items()} | {i: token["content"] for i, token in added.items()}
    pieces: list[bytes | None] = [None] * (max(ids) + 1)
    for i, text in ids.items():
        if i in added:
            pieces[i] = None if added[i]["special"] else text.encode()
        elif all(letter in letters for letter in text):
            pieces[i] = bytes(letters[letter] for letter in text)
    return ByteTable(pieces)


def _byte_letters() -> dict[str, int]:
    """Return the byte of each letter that byte-level vocabularies are written in (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


def _splits_at_safe_borders(content: Mapping[str, Any]) -> bool:
    """Return whether texts always fall apart at safe borders, and nothing is changed before."""
    model = content["model"]
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    if any(step["type"] != "NFC" for step in _parts(content.get("normalizer"), "normalizers")):
        return False  # a part of a text in NFC is in NFC; other normalizers make no such promise
    added = [token for token in content.get("added_tokens") or [] if not token["special"]]
    if any(token.get("lstrip") or token.get("rstrip") or token.get("single_word") for token in added):
        return False
    if _overlap([token["content"] for token in added]):
        return False
    splits = False
    for step in _parts(content.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] == "ByteLevel":
            splits |= step.get("use_regex", True)
        elif step["type"] == "Split" and step["behavior"] == "Isolated" and not step.get("invert"):
            alternatives = _alternatives(step["pattern"].get("Regex", ""))
            if not alternatives <= _ALTERNATIVES:
                return False
            splits |= r"\s+" in alternatives
        elif step["type"] != "Digits":
            return False
    return splits


def _overlap(texts: Sequence[str]) -> bool:
    """Return whether one added token can begin inside another and go on over a safe border behind it.

    A cut inside the first would then let the second appear, and take a stored border away. Without that, a border
    between stored ids is inside no added token of the parts either.
    """
    crossing = [text for text in texts if has_safe_border(text)]
    return any(
        one[-size:] == other[:size]
        for other in crossing
        for one in texts
        for size in range(1, min(len(one), len(other)))
    )


def _alternatives(pattern: str) -> set[str]:
    """Return the alternatives of a pattern: split at each `|` that is in no bracket."""
    pattern = pattern.replace("\r", r"\r").replace("\n", r"\n")
    parts = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|[()|]|[^\\\[()|]+", pattern)
    found, depth = [""], 0
    for part in parts:
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            found.append("")
        else:
            found[-1] += part
    return set(found)
