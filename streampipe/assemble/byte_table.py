"""What each id of a byte-level tokenizer stands for, and next to which ids a text always falls apart.

A *safe border* is a place where every pre-tokenizer of the families in `streampipe.tokenizer_rules` splits, whatever
stands further left or right: between a letter and an ASCII mark or space that is no apostrophe. No alternative of their
patterns goes on from a letter to such a character, and none looks beyond it. So text before a safe border has the ids
that it has alone, and text behind it too; which is what lets a cut be re-encoded without the rest of the document.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Letters that are no matter of opinion between releases of Unicode; more of them would only make windows shorter.
_LETTER = re.compile("[A-Za-z\u4e00-\u9fa5\u3041-\u3094\u30a1-\u30fa]$")
_BORDER = re.compile("[\\t\\n\\r !-&(-/:-@[-`{-~，。、！？：；（）「」]")
# A border is safe where a bit of what ends before it meets the same bit of what begins behind it.
_LETTER_BIT, _BEFORE_SPECIAL, _BEHIND_SPECIAL = 1, 2, 4


@dataclass(frozen=True)
class ByteTable:
    """The bytes of ids.

    Attributes:
        pieces: by id; None for a special token, which is no text.
    """

    pieces: Sequence[bytes | None]

    @cached_property
    def characters(self) -> NDArray[np.int64]:
        """Characters that begin in each id: int64 [ids]."""
        return np.array([sum(byte & 0xC0 != 0x80 for byte in piece or b"") for piece in self.pieces], np.int64)

    @cached_property
    def lines(self) -> NDArray[np.int64]:
        """Lines that end in each id: int64 [ids]."""
        return np.array([(piece or b"").count(b"\n") for piece in self.pieces], np.int64)

    @cached_property
    def ends(self) -> bytes:
        """By id, bits for what it ends with."""
        return bytes(
            _BEFORE_SPECIAL | (_BEHIND_SPECIAL if piece is None else _LETTER_BIT * _ends_in_letter(piece))
            for piece in self.pieces
        )

    @cached_property
    def begins(self) -> bytes:
        """By id, bits for what it begins with."""
        return bytes(
            _BEHIND_SPECIAL | (_BEFORE_SPECIAL if piece is None else _LETTER_BIT * _begins_with_border(piece))
            for piece in self.pieces
        )

    def bytes_between(self, ids: Any, first: tuple[int, int], last: tuple[int, int]) -> bytes:
        """Return the bytes from one place to another; a place is a token and an offset in its bytes."""
        (begin, skipped), (end, kept) = first, last
        if begin == end:
            return (self.pieces[ids[begin]] or b"")[skipped:kept] if kept else b""
        parts = [self.pieces[i] or b"" for i in ids[begin:end]]
        parts[0] = parts[0][skipped:]
        if kept:
            parts.append((self.pieces[ids[end]] or b"")[:kept])
        return b"".join(parts)


def has_safe_border(text: str) -> bool:
    """Return whether a text holds a place that would be taken for a safe border."""
    return any(_LETTER.match(a) and _BORDER.match(b) for a, b in pairwise(text))


def _ends_in_letter(piece: bytes) -> bool:
    for size in (1, 3):
        try:
            return bool(_LETTER.match(piece[-size:].decode()))
        except UnicodeDecodeError:
            continue
    return False


def _begins_with_border(piece: bytes) -> bool:
    for size in (1, 3):
        try:
            return bool(_BORDER.match(piece[:size].decode()))
        except UnicodeDecodeError:
            continue
    return False
