"""A part of something, as people write it: `1%`, or a count."""

import re
from dataclasses import dataclass
from fractions import Fraction

from streampipe.errors import ConfigError


@dataclass(frozen=True)
class Share:
    """A fraction of a total, or a plain count.

    Attributes:
        fraction: within 0 and 1, or None for a count.
        count: how many, if it is a count.
    """

    fraction: Fraction | None
    count: int = 0

    @classmethod
    def parse(cls, text: str, option: str) -> "Share":
        """Read `1%`, `0.5%` or `1000`.

        Raises:
            ConfigError: naming the option.
        """
        if re.fullmatch(r"\d+", text):
            return cls(None, int(text))
        match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)%", text)
        if match and (fraction := Fraction(match[1]) / 100) <= 1:
            return cls(fraction)
        raise ConfigError(f"{option} {text!r}: expected a share such as 1% or a count such as 1000")

    def exceeded_by(self, part: int, total: int) -> bool:
        """Tell whether `part` of `total` is more than this share."""
        return part > (self.count if self.fraction is None else self.fraction * total)
