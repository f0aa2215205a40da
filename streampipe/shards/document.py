"""What a writer is given: texts, conversations and preference pairs, and how their arrays are stored."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampipe.shards.loss_spans import check_spans
from streampipe.shards.manifest import Kind, TokenDtype

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Keys have no dot (WebDataset cuts there), no slash, and fit a plain tar header with any suffix."""

ARRAYS_OF_KIND: Mapping[Kind, list[str]] = {
    "text": ["tokens"],
    "conversation": ["tokens", "loss"],
    "preference": ["chosen.tokens", "chosen.loss", "rejected.tokens", "rejected.loss"],
}
"""The npy members of a document, in the order in which they stand in a shard."""
META_MEMBER = "meta.json"
"""An optional member, after all others."""


@dataclass(frozen=True, eq=False)
class Document:
    """One tokenized text, or, with `loss`, one conversation.

    Attributes:
        key: its name in the shard, `[A-Za-z0-9][A-Za-z0-9_-]*`, at most 64 characters, unique within the shard.
        tokens: integers [length], length >= 1.
        loss: integers [spans, 2], spans >= 1: start and end of the trained tokens, ascending and disjoint; None: a
            text, all of whose tokens are trained.
        origin_file: place of its input file in the manifest's `inputs`, if known.
        origin_row: its row or line in that file, from 0, if known.
        meta: anything else, as it would be in JSON.
        fragments: of a text, integers [K]: which of its tokens are separators between its parts, ascending; None if
            that is not known.
    """

    key: str
    tokens: NDArray[Any]
    loss: NDArray[Any] | None = None
    origin_file: int | None = None
    origin_row: int | None = None
    meta: Mapping[str, Any] | None = None
    fragments: NDArray[Any] | None = None

    @property
    def kind(self) -> Kind:
        """What kind of source it may stand in."""
        return "text" if self.loss is None else "conversation"

    @property
    def length(self) -> int:
        """Its tokens."""
        return len(self.tokens)

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return its arrays in the order of `ARRAYS_OF_KIND`."""
        return (self.tokens,) if self.loss is None else (self.tokens, self.loss)


@dataclass(frozen=True, eq=False)
class Trained:
    """One side of a pair: tokens, integers [length], and the trained ones' spans, as in `Document`."""

    tokens: NDArray[Any]
    loss: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Pair:
    """A preference pair: one document with two token members, each the prompt and an answer. See `Document`."""

    key: str
    chosen: Trained
    rejected: Trained
    origin_file: int | None = None
    origin_row: int | None = None
    meta: Mapping[str, Any] | None = None

    @property
    def kind(self) -> Kind:
        """What kind of source it may stand in."""
        return "preference"

    @property
    def fragments(self) -> None:
        """Only texts have any."""
        return

    @property
    def length(self) -> int:
        """The tokens of both sides together, because they are packed as one."""
        return len(self.chosen.tokens) + len(self.rejected.tokens)

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return its arrays in the order of `ARRAYS_OF_KIND`."""
        return self.chosen.tokens, self.chosen.loss, self.rejected.tokens, self.rejected.loss


AnyDocument = Document | Pair


def as_stored(document: AnyDocument, token_dtype: TokenDtype) -> AnyDocument:
    """Return the document with its arrays as a shard holds them; what does not fit is an error, never wrapped or cut.

    Raises:
        ValueError: if its key, ids or loss spans are outside the format; names the document.
    """
    if not KEY.fullmatch(document.key):
        raise ValueError(f"a key must match {KEY.pattern} (no dot, no slash), but got {document.key!r}")
    where = f"document {document.key!r}"
    if isinstance(document, Pair):
        chosen = _side(f"{where}, chosen", document.chosen, token_dtype)
        return replace(document, chosen=chosen, rejected=_side(f"{where}, rejected", document.rejected, token_dtype))
    tokens = _ids(where, document.tokens, token_dtype)
    if document.fragments is not None:
        document = replace(document, fragments=_places(where, document, len(tokens)))
    if document.loss is not None:
        return replace(document, tokens=tokens, loss=_spans(where, document.loss, len(tokens)))
    return document if tokens is document.tokens else replace(document, tokens=tokens)


def _side(where: str, side: Trained, token_dtype: TokenDtype) -> Trained:
    tokens = _ids(where, side.tokens, token_dtype)
    return Trained(tokens, _spans(where, side.loss, len(tokens)))


def _ids(where: str, given: ArrayLike, token_dtype: TokenDtype) -> NDArray[Any]:
    tokens: NDArray[Any] = np.asarray(given)
    if tokens.dtype.kind not in "ui" or tokens.ndim != 1 or not len(tokens):
        raise ValueError(
            f"{where}: tokens must be integers [1 or more], but got {tokens.dtype} {list(tokens.shape)}; "
            f"leave out documents without tokens"
        )
    limit = int(np.iinfo(token_dtype).max)
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high > limit:
        raise ValueError(
            f"{where}: token ids must be within 0 and {limit} to be stored as {token_dtype}, but got {low} to {high}; "
            f"choose the dtype by the tokenizer's largest id, added tokens included"
        )
    return tokens.astype(np.dtype(token_dtype).newbyteorder("<"), copy=False)


def _places(where: str, document: Document, length: int) -> NDArray[Any]:
    places: NDArray[Any] = np.asarray(document.fragments)
    sound = places.ndim == 1 and (places.dtype.kind in "ui" or not len(places))
    if not sound or document.loss is not None or (np.diff(places, prepend=-1, append=length) < 1).any():
        raise ValueError(
            f"{where}: fragments must be ascending places within the {length} tokens of a text, but got {places.dtype} "
            f"{list(places.shape)} in a {document.kind}"
        )
    return places.astype("<i4")


def _spans(where: str, given: ArrayLike, length: int) -> NDArray[Any]:
    loss: NDArray[Any] = np.asarray(given)
    if loss.dtype.kind not in "ui" or loss.ndim != 2 or loss.shape[1] != 2:
        raise ValueError(
            f"{where}: loss must be integers [spans, 2], but got {loss.dtype} {list(loss.shape)}; give start and end "
            f"of each run of trained tokens"
        )
    try:
        check_spans(loss, length)
    except ValueError as error:
        cure = "sort the spans and join those that overlap" if loss.size else "leave out what has nothing to train"
        raise ValueError(f"{where}: {error}; {cure}") from error
    return np.ascontiguousarray(loss, "<i4")


def encode_meta(document: AnyDocument) -> bytes:
    """Return the bytes of a document's meta.json: UTF-8, keys sorted, no white space.

    Raises:
        ValueError: if it would not be the same when read back; names the document.
    """
    meta = dict(document.meta or {})
    try:
        text = json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        if json.loads(text) != meta:
            raise ValueError("it is read back as something else (keys that are no text, tuples)")
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"document {document.key!r}: meta must be a JSON object (no NaN, no dates, whole characters), but {error}"
        ) from error
