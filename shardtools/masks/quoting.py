"""Control tokens that a row quotes: they are marked before the template sees them, so that they stay text.

The mark is a noncharacter behind the token's first character. The template writes its own control tokens unmarked; so
after rendering one can tell which is which, whatever the template did with the words (moved, trimmed, split, dumped as
JSON). Marking instead of encoding each message alone keeps one rendering and one encoding of the whole text.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from shardtools.schemas import RowError
from shardtools.templates.environment import QUOTE

_NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")


class Quoting:
    """Marks quoted control tokens in the plain data of a row.

    Args:
        tokens: the control tokens.
        parse: leave them unmarked: a row may then steer the model.
    """

    def __init__(self, tokens: Collection[str], *, parse: bool = False) -> None:
        longest_first = sorted(tokens, key=len, reverse=True)
        self._starts = (
            None if parse or not tokens else re.compile(f"(?=(?:{'|'.join(map(re.escape, longest_first))}))(.)", re.S)
        )

    def quoted(self, value: Any) -> Any:
        """Return a copy in plain types (a template sees nothing else), with marks in all strings, keys included.

        Raises:
            RowError: `noncharacter`, `lone_surrogate`: neither is text.
        """
        if isinstance(value, str):
            return self._marked(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {self.quoted(key): self.quoted(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.quoted(inner) for inner in value]
        raise RowError("wrong_type", f"expected JSON-like values, but got {type(value).__name__}")

    def _marked(self, text: str) -> str:
        if not text.isascii():
            if found := _NONCHARACTERS.search(text):
                raise RowError("noncharacter", f"U+{ord(found[0]):04X} at character {found.start()} is no text")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise RowError(
                    "lone_surrogate", f"half of a surrogate pair at character {error.start}, which is no character"
                ) from error
        # the place of every token is marked, so that tokens which overlap are all broken
        return str(text) if self._starts is None else self._starts.sub(rf"\1{QUOTE}", text)
