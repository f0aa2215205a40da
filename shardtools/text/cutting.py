"""Long texts are encoded in pieces, because a tokenizer needs about a hundred bytes of memory for each of text.

A cut is made only where it changes nothing: between two words where encoding both sides apart and together gives the
same ids. A run of more than `PIECE_CHARACTERS` with no such place (one endless word) is cut at that length if the text
survives it, which keeps time and memory bounded; the ids may then differ at the cut from those of the whole run.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE_CHARACTERS = 1 << 20
_LOOK_BACK = 1 << 16
_WINDOW = 256
_TRIES = 8

_LINE_START = re.compile(r"(?<=\n)(?=[^\W\d_])")
_WORD_START = re.compile(r"(?<=[^\W\d_])(?= [^\W\d_])")
_WORD_END = re.compile(r"(?<=[^\W_])(?=[^\w\s])|(?<=[^\W\d_])(?=\d)")

Encode = Callable[[Sequence[str]], Sequence[NDArray[Any]]]
Decode = Callable[[list[int]], str]


def cut_long_text(text: str, encode: Encode, decode: Decode | None = None, limit: int = PIECE_CHARACTERS) -> list[str]:
    """Return the text as pieces of up to `limit` characters, a quarter of it where possible, to be encoded one by one.

    Args:
        text: any text; one of up to `limit / 4` characters comes back whole.
        encode: gives the ids of texts, without begin and end tokens.
        decode: gives the text of ids; None: cut only where it changes nothing.
        limit: the longest piece, if the text can be cut at all.
    """
    pieces = []
    start = 0
    while len(text) - start > limit // 4:
        ends = [start + limit // share for share in (4, 2, 1) if start + limit // share < len(text)]
        cut = next((cut for end in ends if (cut := _harmless_cut(text, start, end, encode))), None)
        if cut is None and decode is not None and len(text) - start > limit:
            cut = _forced_cut(text, start + limit, encode, decode)
        if cut is None:
            break
        pieces.append(text[start:cut])
        start = cut
    return [*pieces, text[start:]] if pieces else [text]


def _harmless_cut(text: str, start: int, end: int, encode: Encode) -> int | None:
    """Return the last place before `end` where both sides can be encoded apart, or None."""
    low = max(end - _LOOK_BACK, start + _WINDOW)
    for pattern in (_LINE_START, _WORD_START, _WORD_END):
        places = [match.start() for match in pattern.finditer(text, low, end)]
        for place in reversed(places[-_TRIES:]):
            left, right = text[place - _WINDOW : place], text[place : place + _WINDOW]
            first, second, both = encode([left, right, left + right])
            if np.array_equal(np.concatenate([first, second]), both):
                return place
    return None


def _forced_cut(text: str, place: int, encode: Encode, decode: Decode) -> int | None:
    """Return `place` if cutting there keeps the text (a tokenizer that begins each text with a space does not)."""
    left, right = text[place - _WINDOW : place], text[place : place + _WINDOW]
    first, second, both = encode([left, right, left + right])
    apart = decode([int(i) for i in np.concatenate([first, second])])
    return place if apart == decode([int(i) for i in both]) else None
