"""A tokenizer as a build uses it: text in, ids out, with nothing that the file would add or cut by itself."""

import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer

from shardtools.text import special
from shardtools.text.cutting import cut_long_text
from streampipe.errors import ConfigError
from streampipe.shards.manifest import TokenizerInfo
from streampipe.storage import open_store

Ids = NDArray[np.unsignedinteger[Any]]
"""Token ids: uint16 or uint32 [length]."""


@dataclass(frozen=True)
class TokenizerFile:
    """What was read from disk, before anything is made of it.

    Attributes:
        data: the bytes of tokenizer.json.
        config: the bytes of a tokenizer_config.json beside it, if there is one.
    """

    data: bytes = field(repr=False)
    config: bytes | None = field(default=None, repr=False)

    @classmethod
    def read(cls, path: str, options: dict[str, Any] | None = None) -> "TokenizerFile":
        """Read a tokenizer from a path or URL.

        Raises:
            ConfigError: if there is no such file.
        """
        folder, _, name = path.rpartition("/")
        store = open_store((folder or "/") if "/" in path else ".", options)
        try:
            data = store.read(name)
        except FileNotFoundError as error:
            raise ConfigError(
                f"{path}: no such tokenizer file; give the path of a tokenizer.json "
                f"(`shardtools train-tokenizer` makes one)"
            ) from error
        try:
            config = store.read("tokenizer_config.json") if PurePosixPath(name).suffix == ".json" else None
        except FileNotFoundError:
            config = None
        return cls(data, config)

    def with_special_tokens(self, tokens: Sequence[str]) -> "TokenizerFile":
        """Return the tokenizer with more special tokens, behind those that it has; known ones become special.

        Raises:
            ConfigError: if it is no tokenizer.
        """
        if not tokens:
            return self
        content = parse(self.data)
        grown = _load(self.data.decode())
        grown.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
        added = {str(token["content"]): token for token in content.get("added_tokens") or []}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        for token in tokens:
            entry = {"id": grown.token_to_id(token), "content": token, **flags, "special": True}
            added[token] = {**entry, **added.get(token, {}), "special": True}
        content["added_tokens"] = sorted(added.values(), key=lambda token: int(token["id"]))
        return TokenizerFile(json.dumps(content, ensure_ascii=False, indent=2).encode(), self.config)


def load_plain(file: TokenizerFile, parsed: str = "") -> tuple[Any, list[dict[str, Any]]]:
    """Return the tokenizer with truncation, padding, dropout and post-processor off, and its added tokens.

    Text that quotes special tokens is encoded as text, but for one that is `parsed`, if any. Which added tokens are
    special is set right.

    Raises:
        ConfigError: if it is no tokenizer.
    """
    content = parse(file.data)
    added = list(content.get("added_tokens") or [])
    steering = set(special.special_contents(added))
    for token in added:
        token["special"] = token["content"] in steering
    content["added_tokens"] = [{**token, "special": token["special"] and token["content"] != parsed} for token in added]
    content.update(truncation=None, padding=None, post_processor=None)
    if content["model"].get("dropout") is not None:
        content["model"]["dropout"] = None
    return _load(json.dumps(content, ensure_ascii=False)), added


class TextTokenizer:
    """Encodes documents.

    Truncation, padding, dropout and post-processors of the file are off: a document is encoded whole, the same each
    time, and begins and ends with what the build asked for. Text that quotes special tokens is encoded as text; the
    separator is one token wherever it stands.

    Args:
        file: the tokenizer.
        eos: the token to end each document with: its name, "" for none, None for the tokenizer's own end token.
        bos: the token to begin each document with, or "" for none.
        separator: the token that separates the parts of texts, or "" for none.

    Attributes:
        separator: its id, or None.
    """

    def __init__(self, file: TokenizerFile, eos: str | None = None, bos: str = "", separator: str = "") -> None:
        self._tokenizer, added = load_plain(file, separator)
        self._ids: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        end = special.own_end_token(self._ids, file.config) if eos is None else eos
        self.eos, self.bos = end, bos
        self._suffix = [special.named_token(self._ids, end, "--eos")] if end else []
        self._prefix = [special.named_token(self._ids, bos, "--bos")] if bos else []
        self.max_id = max(self._ids.values())
        self._file, self._added = file, added
        self.separator = self._separator(separator) if separator else None

    def info(self) -> TokenizerInfo:
        """Return what the manifest says of this tokenizer."""
        config = self._file.config
        if self._suffix:
            eos_id: int | None = self._suffix[0]
        else:
            eos_id = special.known(self._ids, config, "eos_token", special.DOCUMENT_ENDS)
        bos_id = self._prefix[0] if self._prefix else special.known(self._ids, config, "bos_token", special.BEGINNINGS)
        return TokenizerInfo(
            hash=tokenizer_hash(self._file.data),
            core_hash=core_hash(self._file.data),
            vocab_size=len(self._ids),
            max_id=self.max_id,
            eos_id=eos_id,
            bos_id=bos_id,
            pad_id=special.known(self._ids, config, "pad_token", special.PADS),
            special_tokens={
                content: self._ids[content]
                for content in sorted(special.special_contents(self._added))
                if content in self._ids
            },
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that holds every id, added tokens included: uint16 below 65,536, else uint32."""
        return np.dtype(np.uint16 if self.max_id < 1 << 16 else np.uint32)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text, with the begin and end tokens; an array is empty if the text has no tokens."""
        pieces: list[str] = []
        counts = []
        for text in texts:
            cut = cut_long_text(text, self._raw, self._decode_but_separators)
            counts.append(len(cut))
            pieces.extend(cut)
        encoded = iter(self._raw(pieces)) if len(pieces) == len(texts) else (self._raw([piece])[0] for piece in pieces)
        return [self._document([next(encoded) for _ in range(count)]) for count in counts]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _separator(self, token: str) -> int:
        found = special.named_token(self._ids, token, "--fragments-at")
        alone = self._raw([token])[0].tolist()
        if alone != [found]:
            raise ConfigError(
                f"--fragments-at {token!r}: as a text it becomes {len(alone)} tokens instead of the one of that name, "
                f"so it would never be found; give an added token of the tokenizer"
            )
        return found

    def _decode_but_separators(self, ids: list[int]) -> str:
        """Return text in which separators do not show, so that no cut through one looks harmless."""
        return str(self._tokenizer.decode([i for i in ids if i != self.separator]))

    def _raw(self, texts: Sequence[str]) -> list[Ids]:
        encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        return [self._checked(encoding.ids) for encoding in encode(list(texts), add_special_tokens=False)]

    def _checked(self, ids: list[int]) -> Ids:
        wide = np.frombuffer(array("I", ids), np.uint32)  # three times as fast as `np.array`
        if len(wide) and wide.max() > self.max_id:  # cannot happen with a sane file; if it did, ids would wrap
            raise ConfigError(
                f"the tokenizer gave the id {wide.max()}, but its vocabulary ends at {self.max_id}; "
                f"repair tokenizer.json"
            )
        return wide.astype(self.dtype)

    def _document(self, pieces: list[Ids]) -> Ids:
        if not any(len(piece) for piece in pieces):
            return np.empty(0, self.dtype)
        return np.concatenate([np.array(self._prefix, self.dtype), *pieces, np.array(self._suffix, self.dtype)])


def tokenizer_hash(data: bytes) -> str:
    """Return the hash of a tokenizer.json by what it says, not by how it is laid out."""
    return _canonical_hash(parse(data))


def core_hash(data: bytes) -> str:
    """Return the hash of what decides the ids of plain text: model (vocabulary, merges), pre-tokenizer, normalizer.

    Added tokens are left out, so that a tokenizer with a few more of them agrees.
    """
    content = parse(data)
    return _canonical_hash({key: content.get(key) for key in ("model", "normalizer", "pre_tokenizer")})


def _canonical_hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse(data: bytes) -> dict[str, Any]:
    """Return what a tokenizer.json says.

    Raises:
        ConfigError: if it is none.
    """
    try:
        content = json.loads(data)
        if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
            raise ValueError("it has no model")
    except ValueError as error:
        raise ConfigError(
            f"not a tokenizer.json: {error}; expected a file of the `tokenizers` library (Tokenizer.save)"
        ) from error
    return content


def _load(content: str) -> Any:
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the library raises a bare Exception
        raise ConfigError(f"the tokenizer cannot be loaded: {error}; is it of a newer `tokenizers` release?") from error
    tokenizer.encode_special_tokens = True
    return tokenizer
