"""Short ASCII texts encoded word by word.

The library's `encode` spends most of its time on what a text of one or two words has no use for: offsets, type ids,
masks, and searches for added tokens. Here such a text is split by the tokenizer's own patterns, as Python's `re` reads
them, and the words go to the library's model.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from streampipe.tokenizer_rules import byte_letters, steps_of

# Longer texts gain little.
_LONGEST = 200
_REMEMBERED = 100_000
# What the library splits at where a file only says `use_regex`.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LETTERS = {byte: letter for letter, byte in byte_letters().items() if byte < 128}
_SPACE = _LETTERS[ord(" ")]
_ASCII = [chr(byte) for byte in range(128)]


class AsciiWords:
    """Encodes short ASCII texts as a tokenizer does that neither changes them nor puts a space before them.

    Args:
        patterns: each matches the words of what the one before it gives.
        added: texts that are tokens wherever they stand.
        tokenizer: the library's.
    """

    def __init__(self, patterns: Sequence[re.Pattern[str]], added: Sequence[str], tokenizer: Any) -> None:
        self._first, *self._others = (pattern.findall for pattern in patterns)
        self._quotes = re.compile("|".join(map(re.escape, added))).search if added else None
        self._tokens_of = tokenizer.model.tokenize
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int] | None:
        """Return the ids of a text; None for one that is long, not ASCII, or quotes an added token."""
        if len(text) > _LONGEST or not text.isascii() or (self._quotes and self._quotes(text)):
            return None
        words = self._first(text)
        for split in self._others:
            words = [word for whole in words for word in split(whole)]
        ids: list[int] = []
        for word in words:
            ids += self._known.get(word) or self._new(word)
        return ids

    def _new(self, word: str) -> list[int]:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        spelt = word.replace(" ", _SPACE)
        if not spelt.isprintable():
            spelt = spelt.translate(_LETTERS)
        found = self._known[word] = [token.id for token in self._tokens_of(spelt)]
        return found


def ascii_words(content: Mapping[str, Any], tokenizer: Any) -> AsciiWords | None:
    """Return the words of a tokenizer, or None where `re` would read its patterns in another way.

    Args:
        content: of a tokenizer.json that splits at safe borders.
        tokenizer: the library's, of that content.
    """
    *splits, last = steps_of(content.get("pre_tokenizer"), "pretokenizers")
    patterns: list[re.Pattern[str]] = []
    for step in [*splits, last] if last.get("use_regex", True) else splits:
        one = _for_python(_pattern_of(step))
        if one is None:
            return None
        kept = step.get("behavior") != "Removed"  # then what lies between matches is a word as well
        patterns.append(re.compile(rf"{one}|(?:(?!{one})[\s\S])+" if kept else one, re.ASCII))
    added = [token["content"] for token in content.get("added_tokens") or [] if not token["special"]]
    return AsciiWords(patterns, added, tokenizer)


def _pattern_of(step: Mapping[str, Any]) -> str:
    if step["type"] == "Digits":
        return r"\p{N}" if step.get("individual_digits") else r"\p{N}+"
    return _GPT2 if step["type"] == "ByteLevel" else str(step["pattern"]["Regex"])


def _for_python(pattern: str) -> str | None:
    """Return what matches the same ASCII words, as one alternative; None for a pattern with an item that is read apart.

    These are `$`, for the library the end of any line, and a `+` behind `{1,3}`, for it a second repetition. A `+`
    behind another one changes nothing in the patterns of `tokenizer_rules`, since what follows there never begins with
    what the stretch before it consists of.
    """
    items = re.findall(r"\\p\{\w+\}|\\.|\[(?:\\.|[^\]\\])*\]|[\s\S]", pattern)
    made: list[str] = []
    for before, item in zip(["", *items], items, strict=False):
        if item == "$" or (item == "+" and before == "}"):
            return None
        if item == "+" and before in ("+", "?"):
            continue
        inside = re.sub(r"\\p\{(\w+)\}", _category, item)
        made.append(f"[{inside}]" if item.startswith(r"\p") else inside)
    return f"(?:{''.join(made)})"


def _category(found: re.Match[str]) -> str:
    """Return the ASCII characters of a category, such as `L` or `Lu`, as they are written inside brackets."""
    return "".join(re.escape(one) for one in _ASCII if unicodedata.category(one).startswith(found[1]))
