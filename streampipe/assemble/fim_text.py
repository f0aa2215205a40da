"""Cuts inside tokens: at any character, or at the starts of lines.

Prefix, middle and suffix get the ids that they have when each is encoded by itself. Only the text around the two cuts
is encoded anew; the ids beyond the nearest safe borders (see `byte_table`) stay as they are stored. Where a tokenizer
does not allow that, the whole text is encoded anew, and counted.
"""

from array import array
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from streampipe.assemble.byte_table import ByteTable
from streampipe.assemble.fim_cuts import DRAWS, Counts, Parts, Text, at_tokens
from streampipe.rng import sorted_cut

# Encoded windows that are remembered; many are short words.
_REMEMBERED = 100_000


class Encoder(Protocol):
    """A source's tokenizer.

    Attributes:
        table: the bytes of ids, where windows may be encoded by themselves; None where only whole texts may.
    """

    @property
    def table(self) -> ByteTable | None:
        """The bytes of ids, or None."""

    def encode(self, text: str, *, first: bool) -> list[int]:
        """Return the ids of a text; `first` where it is the beginning of a document."""

    def text_of(self, ids: Sequence[int], *, first: bool) -> str | None:
        """Return the text of ids, or None if it does not give these ids back."""

    def spelling(self, ids: Sequence[int]) -> bytes:
        """Return ids as the vocabulary spells them: the same for the same text."""


class _AlteredError(Exception):
    """A part would not give its text back.

    A normalizer puts characters together that an added token kept apart, such as `<think>` and U+0338, once the token
    is cut.
    """


class TextCutter:
    """Cuts texts at characters or lines.

    Args:
        encoder: of the source.
        level: `character`, or `line`; `token` for one that is here for `no_prefix` only.
        no_prefix: documents that begin so are left alone.
        form: how ids are stored, as `memoryview.format`.
    """

    def __init__(self, encoder: Encoder, level: str, no_prefix: str | None, form: str) -> None:
        self._encoder = encoder
        self._level = level
        self._no_prefix = no_prefix
        self._form = form
        self._known: dict[bytes, memoryview] = {}

    def parts(self, text: Text, room: int, counts: Counts) -> Parts | None:
        """Return the parts of a text, drawing again until they have room; None for one that is exempt."""
        if self._no_prefix is not None and text.beginning and self._exempt(text, self._no_prefix):
            counts.exempt += 1
            return None
        if self._level == "token":
            return at_tokens(text)
        table = self._encoder.table
        found = self._whole(text, room, counts) if table is None else self._around_cuts(text, room, counts, table)
        if found is None:
            counts.fallbacks += 1
            return at_tokens(text)
        return found

    def _exempt(self, text: Text, prefix: str) -> bool:
        table, ids = self._encoder.table, text.ids
        if table is not None:
            sought = prefix.encode()
            some = ids[: len(sought)]  # every id is at least a byte, or is no text at all
            return table.bytes_between(some, (0, 0), (len(some), 0)).startswith(sought)
        whole = self._encoder.text_of(ids.tolist(), first=True)
        return whole is not None and whole.startswith(prefix)

    def _around_cuts(self, text: Text, room: int, counts: Counts, table: ByteTable) -> Parts | None:
        ids, size, by_line = text.ids, len(text.ids), self._level == "line"
        units = table.lines if by_line else table.characters
        before = units.take(np.frombuffer(ids, self._form)).cumsum()
        most = int(before[-1]) + by_line
        find = _behind_line if by_line else _before_character
        for draw in range(DRAWS):
            drawn = sorted_cut(text.word, most, draw)
            at = before.searchsorted(drawn, "left" if by_line else "right").tolist()
            one, other = (
                find(table, ids, token, count - (before.item(token - 1) if token else 0))
                for token, count in zip(at, drawn, strict=True)
            )
            try:
                found = self._encoded(ids, one, other, table)
            except UnicodeDecodeError:  # the stored ids are no text
                return None
            except _AlteredError:
                counts.redraws += 1
                continue
            prefix, suffix, middle = found
            if size <= sum(map(len, prefix + suffix + middle)) <= room:
                return found
            counts.redraws += 1
        return None

    def _encoded(self, ids: memoryview, one: tuple[int, int], other: tuple[int, int], table: ByteTable) -> Parts:
        fresh = self._fresh
        before_one, behind_one, ahead, head = _window(ids, one, table)
        before_other, behind_other, tail, rest = _window(ids, other, table)
        prefix, suffix = (ids[:before_one], fresh(ahead)), (fresh(rest), ids[behind_other:])
        if behind_one > before_other:
            return prefix, suffix, (fresh(table.bytes_between(ids, one, other)),)
        return prefix, suffix, (fresh(head), ids[behind_one:before_other], fresh(tail))

    def _fresh(self, text: bytes) -> memoryview:
        found = self._known.get(text)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            ids = self._encoder.encode(text.decode(), first=False) if text else []
            if self._encoder.spelling(ids) != text:
                raise _AlteredError
            found = self._known[text] = memoryview(array(self._form, ids))
        return found

    def _whole(self, text: Text, room: int, counts: Counts) -> Parts | None:
        counts.whole += 1
        whole = self._encoder.text_of(text.ids.tolist(), first=text.beginning)
        if whole is None:
            return None
        places = range(len(whole) + 1) if self._level == "character" else _line_starts(whole)
        for draw in range(DRAWS):
            one, other = (places[at] for at in sorted_cut(text.word, len(places) - 1, draw))
            texts = ((whole[:one], text.beginning), (whole[other:], False), (whole[one:other], False))
            prefix, suffix, middle = (self._encoder.encode(part, first=first) for part, first in texts)
            fits = len(text.ids) <= len(prefix) + len(middle) + len(suffix) <= room
            if fits and self._gives_back(whole, text, prefix, middle + suffix):
                made = (memoryview(array(self._form, part)) for part in (prefix, suffix, middle))
                a, b, c = ((part,) for part in made)
                return a, b, c
            counts.redraws += 1
        return None

    def _gives_back(self, whole: str, text: Text, prefix: list[int], rest: list[int]) -> bool:
        """Return whether parts spell what the text does; some tokenizers strip texts, or mark where words end."""
        # A space that is put before a document belongs to its prefix; an empty one has none.
        same = text.ids if prefix or not text.beginning else self._encoder.encode(whole, first=False)
        return self._encoder.spelling(prefix + rest) == self._encoder.spelling(same)


def _window(ids: memoryview, place: tuple[int, int], table: ByteTable) -> tuple[int, int, bytes, bytes]:
    """Find what must be encoded anew around a place, a token and an offset in its bytes.

    Returns:
        the nearest safe borders at or before it, and at or behind it; the text from one to it, and from it to the
        other. Both ends of a text are safe.
    """
    ends, begins, texts, size = table.ends, table.begins, table.texts, len(ids)
    before, inside = place
    behind = before
    left: list[bytes] = []
    right: list[bytes] = []
    if inside:
        first = last = ids[before]
        left.append(texts[first][:inside])
        right.append(texts[first][inside:])
        behind += 1
    else:
        first, last = ids[before] if before < size else 0, ids[before - 1] if before else 0
    if before < size:
        while before and not ends[own := ids[before - 1]] & begins[first]:
            before, first = before - 1, own
            left.append(texts[own])
    if behind:
        while behind < size and not ends[last] & begins[own := ids[behind]]:
            behind, last = behind + 1, own
            right.append(texts[own])
    return before, behind, b"".join(left[::-1]), b"".join(right)


def _before_character(table: ByteTable, ids: memoryview, token: int, others: int) -> tuple[int, int]:
    """Return where the character begins that has `others` before it in its token."""
    if token == len(ids):
        return token, 0
    text = table.texts[ids[token]]
    if text.isascii():
        return token, others
    return token, [offset for offset, byte in enumerate(text) if byte & 0xC0 != 0x80][others]


def _behind_line(table: ByteTable, ids: memoryview, token: int, breaks: int) -> tuple[int, int]:
    """Return the place behind line break number `breaks` of its token; the beginning of the text where it is 0."""
    if not breaks or token == len(ids):
        return token, 0
    text, offset = table.texts[ids[token]], 0
    for _ in range(breaks):
        offset = text.index(b"\n", offset) + 1
    return (token + 1, 0) if offset == len(text) else (token, offset)


def _line_starts(text: str) -> list[int]:
    return [0, *(place + 1 for place, character in enumerate(text) if character == "\n"), len(text)]
