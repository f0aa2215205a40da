"""Encoding marked text: the template's control tokens become their ids, quoted ones stay text.

A copy of the tokenizer gets an alias for every control token, written in noncharacters, and a border token that is
dropped again. A text is encoded in one call; only aliases are control tokens to it. Borders stand where training begins
and ends: a token never lies half inside (a line break before an answer and the answer's own one would merge), and ids
before the border are those that a server makes of the prompt alone.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken

from shardtools.masks.errors import Span
from shardtools.templates.environment import QUOTE
from shardtools.text import special
from shardtools.text.cutting import cut_long_text
from shardtools.text.tokenizer import TokenizerFile, load_plain, parse
from streampipe.errors import ConfigError

Encoded = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Ids [tokens], and where each begins and ends in the text, in characters [tokens, 2]."""

_ALIAS, _ALIAS_END, _BORDER = "\ufdd8", "\ufdd9", "\ufdda"


@dataclass(frozen=True, slots=True)
class Script:
    """A rendered text, marked, and what to train in it.

    Attributes:
        text: with marks behind the first character of quoted control tokens.
        trained: character ranges, in order, apart from each other.
        prompt: characters of the prompt that both sides of a pair share; 0 if it is not a pair.
    """

    text: str
    trained: tuple[Span, ...]
    prompt: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """A document of a conversation, or one side of a pair.

    Attributes:
        tokens: uint16 or uint32 [length].
        loss: int32 [spans, 2], start and end of the trained tokens; the first token is never among them.
        text: what was encoded.
        trained: the same spans in characters of `text`.
        prompt_tokens: of a pair, how many tokens both sides share; else 0.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    loss: NDArray[np.int32]
    text: str
    trained: tuple[Span, ...]
    prompt_tokens: int = 0


class ChatTokenizer:
    """Encodes scripts.

    Args:
        file: the tokenizer, with its tokenizer_config.json if there is one.
        control: further tokens that steer the model, besides the special ones of the file.
        eos: the end token; None for the tokenizer's own.
    """

    def __init__(self, file: TokenizerFile, control: Sequence[str] = (), eos: str | None = None) -> None:
        self._tokenizer, added = load_plain(file)
        steering = {str(token["content"]) for token in added if token["special"]}
        self.adds_bos = _adds_bos(file)
        ids: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        named_bos = special.configured(file.config, "bos_token")
        self.bos = named_bos or ("" if file.config is not None else _only(special.BEGINNINGS, ids))
        self.eos = eos or special.configured(file.config, "eos_token") or _only(special.DOCUMENT_ENDS, ids)
        named = {token for token in (*control, self.bos, self.eos) if token in ids}
        self.control = sorted(steering & set(ids) | named, key=lambda token: (-len(token), token))
        self.dtype = np.dtype(np.uint16 if max(ids.values()) < 1 << 16 else np.uint32)
        self._add_aliases(ids, {token["content"]: token for token in added})
        self.require([*control, *([eos] if eos else [])])

    def require(self, tokens: Sequence[str]) -> None:
        """Check that tokens steer the model.

        Raises:
            ConfigError: the tokenizer has no such token.
        """
        if missing := [token for token in tokens if token not in self._aliases]:
            raise ConfigError(
                f"the tokenizer has no token {', '.join(map(repr, missing))}, which the chat template needs; "
                f"add it by --add-special-tokens, or name another one for the template"
            )

    def _add_aliases(self, ids: dict[str, int], added: dict[str, Any]) -> None:
        self._aliases = {token: f"{_ALIAS}{i}{_ALIAS_END}" for i, token in enumerate(self.control)}
        flags = ("lstrip", "rstrip", "single_word")
        aliases = [
            AddedToken(
                alias,
                normalized=False,
                special=False,
                **{flag: added.get(token, {}).get(flag, False) for flag in flags},
            )
            for token, alias in self._aliases.items()
        ]
        self._tokenizer.add_tokens([*aliases, AddedToken(_BORDER, normalized=False, special=False)])
        self._border = int(self._tokenizer.token_to_id(_BORDER) or 0)
        self._true = np.arange(self._border + len(aliases) + 1, dtype=np.int64)
        for token, alias in self._aliases.items():
            self._true[self._tokenizer.token_to_id(alias)] = ids[token]
        tokens = "|".join(f"{re.escape(token)}(?!{QUOTE})" for token in self.control)
        self.pattern = re.compile(tokens or "(?!)")
        self._written = re.compile(f"{tokens}|{QUOTE}" if tokens else QUOTE)
        pieces = [i for i in self._ids("a" + _BORDER + "b") if i != self._border]
        self._splits = self._tokenizer.decode(pieces, skip_special_tokens=False) == "ab"

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, scripts: Sequence[Script]) -> list[Rendered]:
        """Return the document of each script; it may turn out without trained tokens."""
        aliased = [self._aliased(script) for script in scripts]
        encoded = self._encoded([text for text, _, _ in aliased])
        return [
            self._rendered(script, one, spans, prompt)
            for script, one, (_, spans, prompt) in zip(scripts, encoded, aliased, strict=True)
        ]

    def _encoded(self, texts: Sequence[str]) -> list[Encoded]:
        """Return ids and offsets of each text; a long one is encoded piece by piece, which needs less memory."""
        cut = [cut_long_text(text, self._ids_of) for text in texts]
        if all(len(pieces) == 1 for pieces in cut):
            return [_arrays(encoding) for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]
        return [self._joined(pieces) for pieces in cut]

    def _joined(self, pieces: Sequence[str]) -> Encoded:
        start, found = 0, list[Encoded]()
        for piece in pieces:
            ids, offsets = _arrays(self._tokenizer.encode(piece, add_special_tokens=False))
            found.append((ids, offsets + start))
            start += len(piece)
        return np.concatenate([ids for ids, _ in found]), np.concatenate([offsets for _, offsets in found])

    def _ids_of(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        return [_arrays(encoding)[0] for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def _aliased(self, script: Script) -> tuple[str, list[Span], int]:
        """Return the text as it is encoded, and where training and the prompt's end lie in it."""
        places = sorted({place for span in script.trained for place in span} | {script.prompt} - {0})
        border = _BORDER if self._splits else ""
        pieces: list[str] = []
        moved, length, at = {0: 0}, 0, 0
        for place in [*places, len(script.text)]:
            piece = self._written.sub(self._alias, script.text[at:place])
            if pieces and piece:
                piece = border + piece
            moved.setdefault(at, length)
            pieces.append(piece)
            length += len(piece)
            moved[place] = length
            at = place
        return "".join(pieces), [(moved[start], moved[end]) for start, end in script.trained], moved[script.prompt]

    def _alias(self, match: re.Match[str]) -> str:
        return self._aliases.get(match[0], "")  # a mark goes

    def _rendered(self, script: Script, encoded: Encoded, spans: list[Span], prompt: int) -> Rendered:
        ids, offsets = encoded
        kept = ids != self._border
        ids, offsets = self._true[ids[kept]], offsets[kept]
        trained = tokens_in(spans, offsets)
        trained[:1] = False  # nothing comes before it to predict it from
        edges = np.flatnonzero(np.diff(np.concatenate([[False], trained, [False]]).astype(np.int8)))
        shared = int(np.count_nonzero(offsets[:, 1] <= prompt)) if prompt else 0
        text, cleaned = _cleaned(script)
        return Rendered(ids.astype(self.dtype), edges.reshape(-1, 2).astype(np.int32), text, cleaned, shared)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens included."""
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))


def _arrays(encoding: Any) -> Encoded:
    return np.array(encoding.ids, np.int64), np.array(encoding.offsets, np.int64).reshape(-1, 2)


def tokens_in(spans: Sequence[Span], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which tokens [tokens] lie whole inside one of some spans, given start and end of each [tokens, 2].

    Spans are in order and apart; a token without characters is in none.
    """
    borders = np.array(spans, np.int64).reshape(-1, 2)
    nearest = np.searchsorted(borders[:, 0], offsets[:, 0], side="right") - 1
    ends = np.append(borders[:, 1], -1)[nearest]  # -1 stands for: before all spans
    return (offsets[:, 1] <= ends) & (offsets[:, 1] > offsets[:, 0])


def _cleaned(script: Script) -> tuple[str, tuple[Span, ...]]:
    if QUOTE not in script.text:
        return script.text, script.trained
    moved = tuple(
        (start - script.text.count(QUOTE, 0, start), end - script.text.count(QUOTE, 0, end))
        for start, end in script.trained
    )
    return script.text.replace(QUOTE, ""), moved


def _adds_bos(file: TokenizerFile) -> bool:
    """Whether the tokenizer begins a text with its begin token when it is left alone."""
    bos = special.configured(file.config, "bos_token")
    names = special.BEGINNINGS if bos is None else (bos,)
    processor = parse(file.data).get("post_processor") or {}
    for part in processor.get("processors", [processor]):
        first = (part.get("single") or [{}])[0]
        if first.get("SpecialToken", {}).get("id") in names or (part.get("cls") or [None])[0] in names:
            return True
    config = json.loads(file.config) if file.config is not None else {}
    return bool(config.get("add_bos_token"))


def _only(names: Sequence[str], ids: dict[str, int]) -> str:
    found = [name for name in names if name in ids]
    return found[0] if len(found) == 1 else ""
