"""Steps that change texts before they are encoded; none is taken unless the user names it."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardtools.corpus.tally import Tally
from streampipe.errors import ConfigError

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
_INNER_SPACE = re.compile(r"(?<=\S)[^\S\n\r]+")
_LINE_ENDS = re.compile(r"[^\S\n]+(?=\n|\Z)")
_BLANK_LINES = re.compile(r"\n{3,}")


def _control(text: str) -> str:
    """Remove control characters but for tab, line feed, carriage return and next line."""
    return _CONTROL.sub("", text)


def _whitespace(text: str) -> str:
    """Make runs of white space inside a line one space, and end lines with none.

    Two blank lines or more become one; the indent of a line stays.
    """
    return _BLANK_LINES.sub("\n\n", _LINE_ENDS.sub("", _INNER_SPACE.sub(" ", text)))


STEPS: Mapping[str, Callable[[str], str]] = {
    "nfc": lambda text: unicodedata.normalize("NFC", text),
    "control": _control,
    "whitespace": _whitespace,
}


@dataclass(frozen=True)
class Normalizer:
    """Takes steps in the order given, and counts the texts that each one changed.

    Attributes:
        steps: names out of `STEPS`.
    """

    steps: Sequence[str] = ()

    @classmethod
    def parse(cls, steps: Sequence[str]) -> "Normalizer":
        """Check the names.

        Raises:
            ConfigError: if a step is not known or is named twice.
        """
        for step in steps:
            if step not in STEPS or list(steps).count(step) > 1:
                raise ConfigError(f"--normalize {','.join(steps)}: expected some of {','.join(STEPS)}, each once")
        return cls(tuple(steps))

    def apply(self, text: str, tally: Tally) -> str:
        """Return the text after all steps."""
        for step in self.steps:
            after = STEPS[step](text)
            if after != text:
                tally.reasons[f"normalized_{step}"] += 1
                text = after
        return text
