"""What is wrong with a rendering, shown with the text."""

from collections.abc import Sequence

from shardtools.templates.environment import QUOTE
from streampipe.errors import ConfigError

SHOWN = 4000
"""Characters of a rendered text in a message."""

Span = tuple[int, int]


class RenderError(ConfigError):
    """A template and the options give a document that would teach something wrong. It stops a build.

    Attributes:
        reason: a short name, such as `lost_reasoning`.
        text: the document, with its trained parts in ⟦ ⟧.
    """

    def __init__(self, reason: str, message: str, text: str) -> None:
        super().__init__(f"{message}\nrendered:\n{text if len(text) <= SHOWN else text[:SHOWN] + ' ...'}")
        self.reason, self.message, self.text = reason, message, text

    def __reduce__(self) -> tuple[type["RenderError"], tuple[str, str, str]]:
        return type(self), (self.reason, self.message, self.text)


class MaskChoiceError(RenderError):
    """The template rewrites history, and nobody has said what to train then."""


def shown(text: str, spans: Sequence[Span]) -> str:
    """Return a text with its trained parts in ⟦ ⟧."""
    pieces, at = [], 0
    for start, end in spans:
        pieces += [text[at:start], "⟦", text[start:end], "⟧"]
        at = end
    return "".join([*pieces, text[at:]]).replace(QUOTE, "")
