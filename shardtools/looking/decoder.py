"""From ids back to text, with the place of every token in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardtools.looking.documents import Member
from streampipe.errors import SourceError
from streampipe.shards import TOKENIZER_NAME, Manifest
from streampipe.storage import Store

_UNFINISHED = "\ufffd"
"""Stands for bytes that are no character yet."""


@dataclass(frozen=True)
class Decoder:
    """Decodes the tokens of a source.

    Attributes:
        data: its tokenizer.json.
        special: the ids that steer a model.
    """

    data: bytes
    special: frozenset[int]

    @classmethod
    def of(cls, store: Store, manifest: Manifest) -> "Decoder":
        """Read the tokenizer of a source.

        Raises:
            SourceError: if it is not there, or cannot be loaded.
        """
        where = f"{store.url}/{TOKENIZER_NAME}"
        try:
            decoder = cls(store.read(TOKENIZER_NAME), frozenset(manifest.tokenizer.special_tokens.values()))
            decoder._tokenizer  # noqa: B018
        except FileNotFoundError as error:
            raise SourceError(
                f"{where}: expected the tokenizer that made the ids, but it is not there; put back the build's file",
                store.url,
                TOKENIZER_NAME,
            ) from error
        except ModuleNotFoundError:
            raise
        except Exception as error:  # the library raises bare Exceptions
            raise SourceError(
                f"{where}: cannot be loaded ({error}); put back the file of the build", store.url, TOKENIZER_NAME
            ) from error
        return decoder

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer  # noqa: PLC0415  (what needs no text works without it)

        return Tokenizer.from_str(self.data.decode())

    @cached_property
    def vocabulary(self) -> dict[int, str]:
        """Every id and what it is called."""
        return {number: token for token, number in self._tokenizer.get_vocab(with_added_tokens=True).items()}

    @cached_property
    def _known(self) -> NDArray[np.bool_]:
        known = np.zeros(max(self.vocabulary, default=0) + 2, np.bool_)
        known[list(self.vocabulary)] = True
        return known

    def unknown(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Return those ids that the vocabulary does not have."""
        found: NDArray[Any] = ids[~self._known[np.minimum(ids.astype(np.int64), len(self._known) - 1)]]
        return found

    def name(self, number: int) -> str:
        """Return the text of one token, or what it is called if it is only a part of a character."""
        text = str(self._tokenizer.decode([number], skip_special_tokens=False))
        return self.vocabulary.get(number, f"id {number}") if _UNFINISHED in text or not text else text

    def text(self, ids: NDArray[Any]) -> str:
        """Return the text of ids, special tokens included."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False))

    def pieces(self, ids: NDArray[Any], cuts: Sequence[int]) -> list[str]:
        """Return the text between cuts; together it is the text of all.

        A character that several tokens make belongs to the one that ends it.

        Args:
            ids: of a document, [length].
            cuts: where to cut, ascending, from above 0 up to the length.
        """
        found: list[str] = []
        context, sent = 0, ""  # what was returned of the text from the token `context` on
        clean = 0  # the last cut that was not inside a character
        for begin, end in pairwise([0, *cuts]):
            full = self.text(ids[context:end])
            whole = full if end == len(ids) else full.rstrip(_UNFINISHED)
            if whole.startswith(sent):
                found.append(whole[len(sent) :])
            else:  # a decoder that rewrites what stands before
                found.append(self.text(ids[begin:end]))
                full = whole = ""
            if full == whole:  # what comes is decoded with the last whole stretch before it: some decoders need it
                context, sent, clean = clean, self.text(ids[clean:end]), end
            else:
                sent = whole
        return found

    def trained(self, member: Member) -> tuple[str, list[list[int]]]:
        """Return the text of a member, and start and end of what is trained in it, in characters."""
        spans = member.loss if member.loss is not None else np.array([[0, len(member.tokens)]])
        borders = spans.ravel().tolist()
        cuts = sorted({*borders, len(member.tokens)} - {0})
        pieces = self.pieces(member.tokens, cuts)
        places = {0: 0, **dict(zip(cuts, np.cumsum([len(piece) for piece in pieces]).tolist(), strict=True))}
        ranges: list[list[int]] = []
        for start, end in ((places[a], places[b]) for a, b in spans.tolist()):
            if ranges and ranges[-1][1] == start:
                ranges[-1][1] = end
            else:
                ranges.append([start, end])
        return "".join(pieces), ranges


def own_ends(manifest: Manifest, split: str) -> tuple[int | None, int | None]:
    """Return the ids that the build put at the begin and the end of each text of a split; None for none."""
    recorded = manifest.build.get(split)
    if manifest.kind != "text" or not isinstance(recorded, dict):
        return None, None
    tokenizer = manifest.tokenizer
    return tokenizer.bos_id if recorded.get("bos") else None, tokenizer.eos_id if recorded.get("eos") else None


def without_ends(ids: NDArray[Any], ends: tuple[int | None, int | None]) -> NDArray[Any]:
    """Return the ids of a text without the begin and end tokens that the build put there."""
    begin, end = ends
    if begin is not None and len(ids) and ids[0] == begin:
        ids = ids[1:]
    if end is not None and len(ids) and ids[-1] == end:
        ids = ids[:-1]
    return ids
