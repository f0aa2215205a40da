"""Finding the text in a row."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MISSING = object()
"""The row has no such field (a null one is None)."""


class AmbiguousFieldError(Exception):
    """A row has both the key with the dot in it and the nested one."""


@dataclass(frozen=True)
class FieldPath:
    r"""Where the text of a row is: `text`, or `meta.text` for a key of that very name or else for a nested one.

    `meta\.text` means the key with the dot only.

    Attributes:
        literal: the key as one name.
        parts: the keys from outside in; one when there is nothing nested.
    """

    literal: str
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, field: str) -> "FieldPath":
        """Read what the user wrote."""
        parts = tuple(part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", field))
        return cls(field.replace("\\.", "."), parts)

    def find(self, row: Mapping[str, Any]) -> Any:
        """Return the value, None if it is null, or MISSING.

        Raises:
            AmbiguousFieldError: if the row holds both readings of a name with a dot.
        """
        literal = row.get(self.literal, MISSING)
        if len(self.parts) == 1:
            return literal
        nested: Any = row
        for part in self.parts:
            nested = nested.get(part, MISSING) if isinstance(nested, Mapping) else MISSING
            if nested is MISSING:
                return literal
        if literal is not MISSING:
            raise AmbiguousFieldError(
                f"has both a key {self.literal!r} and a key {self.parts[-1]!r} inside {'.'.join(self.parts[:-1])!r}; "
                f"write the dot as '\\.' to mean the first"
            )
        return nested
