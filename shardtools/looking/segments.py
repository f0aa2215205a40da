"""A document as runs of text that look alike: trained or not, a control token, the name of a role."""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from shardtools.looking.decoder import Decoder
from shardtools.looking.documents import Member

Sort = Literal["text", "special", "role", "unknown"]

ROLE = re.compile(
    r"(system|developer|user|human|assistant|gpt|model|tool|ipython|environment|thought|function)(?=\s|<|$)"
)
_LOOK_AHEAD = 8
"""The name of a role takes at most so many tokens."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens of one look.

    Attributes:
        text: what it says; control characters and the like are shown, not sent.
        sort: a control token, the name of a role behind one, an id without a meaning, or just text.
        trained: whether it is.
        first: its first token.
        tokens: how many it has.
    """

    text: str
    sort: Sort
    trained: bool
    first: int
    tokens: int


def segments(decoder: Decoder, member: Member, most: int, *, single: bool = False) -> list[Segment]:
    """Return the first `most` tokens of a member as segments; with `single` each token is one."""
    ids = member.tokens[:most]
    trained = np.ones(len(member.tokens), np.bool_)
    if member.loss is not None:
        trained[:] = False
        for start, end in member.loss.tolist():
            trained[start:end] = True
    special = np.isin(ids, list(decoder.special))
    unknown = np.isin(ids, decoder.unknown(ids))
    apart = special | unknown
    if single:
        changes = np.arange(1, len(ids))
    else:
        look = trained[: len(ids)] * 1 + apart * 2
        changes = np.flatnonzero((look[1:] != look[:-1]) | apart[1:]) + 1
    cuts = [*changes.tolist(), len(ids)]
    texts = decoder.pieces(ids, cuts)
    found: list[Segment] = []
    role = 0  # how many characters of the name of a role are left
    for place, ((begin, end), text) in enumerate(zip(pairwise([0, *cuts]), texts, strict=True)):
        said = bool(trained[begin])
        if unknown[begin]:
            found.append(Segment(f"[id {ids[begin]}]", "unknown", said, begin, 1))
        elif special[begin]:
            found.append(Segment(visible(text), "special", said, begin, 1))
            role = _role_length("".join(texts[place + 1 : place + 1 + _LOOK_AHEAD]))
        else:
            if role:
                found.append(Segment(text[:role], "role", said, begin, 0 if text[role:] else end - begin))
            if text[role:] or not role:
                found.append(Segment(visible(text[role:]), "text", said, begin, end - begin))
            role = max(0, role - len(text))
    return found


def _role_length(text: str) -> int:
    match = ROLE.match(text)
    return len(match[0]) if match else 0


def visible(text: str) -> str:
    """Return a text with characters shown that would steer a terminal or hide: ESC is ␛, U+200B is [U+200B]."""
    return _CONTROL.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else f"[U+{code:04X}]"
