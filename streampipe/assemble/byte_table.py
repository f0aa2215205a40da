"""What each id of a byte-level tokenizer stands for, and next to which ids a text always falls apart.

A *safe border* is a place where every pre-tokenizer of the families in `streampipe.tokenizer_rules` splits, whatever
stands further left or right:

* between a letter or digit and an ASCII mark or space, but between a letter and an apostrophe only where no letter
  comes next, since some families keep `'s` with the word before it;
* between a letter and a digit.

No alternative of their patterns goes on over such a place, and none looks beyond one. So text before a safe border has
the ids that it has alone, and text behind it too; which is what lets a cut be re-encoded without the rest of the
document.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Letters that are no matter of opinion between releases of Unicode; more of them would only make windows shorter.
_LETTER = (
    r"A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba"  # Latin
    r"\u0391-\u03a1\u03a3-\u03ce\u0410-\u044f\u0450-\u0481"  # Greek, Cyrillic
    r"\u05d0-\u05ea\u0621-\u063a\u0641-\u064a\u0905-\u0939"  # Hebrew, Arabic, Devanagari
    r"\uac00-\ud7a3\u4e00-\u9fa5\u3041-\u3094\u30a1-\u30fa"  # Hangul, Chinese, Japanese
)
_MARK = r"\t\n\r !-&(-/:-@[-`{-~\uff0c\u3002\u3001\uff01\uff1f\uff1a\uff1b\uff08\uff09\u300c\u300d"  # no apostrophe
_BEHIND_LETTER, _BEHIND_DIGIT = f"(?:[{_MARK}0-9]|'['{_MARK}0-9])", f"['{_MARK}]"
_ENDS = re.compile(f"[{_LETTER}]"), re.compile("[0-9]")
_BEGINS = re.compile(_BEHIND_LETTER), re.compile(_BEHIND_DIGIT)
_BORDER = re.compile(rf"[{_LETTER}](?:{_BEHIND_LETTER}|'\Z)|[0-9]{_BEHIND_DIGIT}")
# A border is safe where a bit of what ends before it meets the same bit of what begins behind it.
_LETTER_BIT, _DIGIT_BIT, _BEFORE_SPECIAL, _BEHIND_SPECIAL = 1, 2, 4, 8


@dataclass(frozen=True)
class ByteTable:
    """The bytes of ids.

    Attributes:
        pieces: by id; None for a special token, which is no text.
    """

    pieces: Sequence[bytes | None]

    @cached_property
    def texts(self) -> list[bytes]:
        """By id, its bytes; none for a special token."""
        return [piece or b"" for piece in self.pieces]

    @cached_property
    def characters(self) -> NDArray[np.int64]:
        """Characters that begin in each id: int64 [ids]."""
        return np.array([sum(byte & 0xC0 != 0x80 for byte in text) for text in self.texts], np.int64)

    @cached_property
    def lines(self) -> NDArray[np.int64]:
        """Lines that end in each id: int64 [ids]."""
        return np.array([text.count(b"\n") for text in self.texts], np.int64)

    @cached_property
    def ends(self) -> bytes:
        """By id, bits for what it ends with."""
        return bytes(
            _BEFORE_SPECIAL | (_BEHIND_SPECIAL if piece is None else _bits(_ENDS, _last_character(piece)))
            for piece in self.pieces
        )

    @cached_property
    def begins(self) -> bytes:
        """By id, bits for what it begins with."""
        return bytes(
            _BEHIND_SPECIAL | (_BEFORE_SPECIAL if piece is None else _bits(_BEGINS, piece[:8].decode(errors="replace")))
            for piece in self.pieces
        )

    def bytes_between(self, ids: Any, first: tuple[int, int], last: tuple[int, int]) -> bytes:
        """Return the bytes from one place to another; a place is a token and an offset in its bytes."""
        (begin, skipped), (end, kept) = first, last
        texts = self.texts
        if begin == end:
            return texts[ids[begin]][skipped:kept] if kept else b""
        between = b"".join([texts[i] for i in ids[begin:end]])
        return (between + texts[ids[end]][:kept] if kept else between)[skipped:]


def may_hold_border(text: str) -> bool:
    """Return whether a text holds a place that is taken for a safe border, or would be with more text behind."""
    return _BORDER.search(text) is not None


def _bits(patterns: tuple[re.Pattern[str], re.Pattern[str]], text: str) -> int:
    letter, digit = patterns
    return _LETTER_BIT * bool(letter.match(text)) | _DIGIT_BIT * bool(digit.match(text))


def _last_character(piece: bytes) -> str:
    """Return the last character of a piece, nothing where it ends inside one."""
    for size in (1, 2, 3, 4):
        try:
            return piece[-size:].decode()
        except UnicodeDecodeError:
            continue
    return ""
