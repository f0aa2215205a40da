"""A source's tokenizer at hand, for cuts inside tokens; needs the library `tokenizers`."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from streampipe.ascii_words import ascii_words
from streampipe.assemble.byte_table import ByteTable
from streampipe.errors import ConfigError
from streampipe.tokenizer_rules import bytes_of_ids, splits_at_safe_borders, without_prefix

_Made = TypeVar("_Made")


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
        bare = without_prefix(plain)
        self._inner = self._first if bare == plain else _loaded(bare, library)
        self._bytes = bytes_of_ids(plain) if _ids_as_said(plain, self._first) else None
        self._windows = self._bytes is not None and bare == plain and splits_at_safe_borders(plain)
        self._words = ascii_words(plain, self._inner) if self._windows else None

    @property
    def table(self) -> ByteTable | None:
        """The bytes of ids, where windows may be encoded by themselves."""
        return self._bytes if self._windows else None

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Return the ids of a text."""
        if self._words is not None and (words := self._words.encode(text)) is not None:
            return words
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
            return self._bytes.texts
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


def _ids_as_said(content: Mapping[str, Any], tokenizer: Any) -> bool:
    """Return whether the library gives added tokens the ids that the file says; it gives each the next that is free."""
    found = {i: token.content for i, token in tokenizer.get_added_tokens_decoder().items()}
    return found == {token["id"]: token["content"] for token in content.get("added_tokens") or []}


def _spelt(token: str) -> bytes:
    """Return a token's bytes; one that falls back to a byte is that byte."""
    byte = re.fullmatch("<0x([0-9A-F]{2})>", token)
    return bytes.fromhex(byte[1]) if byte else token.encode()
