"""What is trained, and how a row becomes text."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RenderOptions:
    """The choices of a build of conversations or pairs.

    Attributes:
        turns: train every assistant turn, or the last one. `train` of a message stands above it.
        terminator: train the token that ends an assistant turn, so that the model learns to stop.
        newline: train the line break that the template writes behind it, too.
        history: what to do where the template renders a turn in another way once the conversation has gone on:
            `error`, one document for each trained turn as serving sees it (`expand`), or train the `last` one only.
        stop: a token to end a document with when the template ends its last assistant turn with none.
        parse_special: control tokens quoted in a row become control tokens; otherwise they stay text.
    """

    turns: Literal["all", "last"] = "all"
    terminator: bool = True
    newline: bool = True
    history: Literal["error", "expand", "last"] = "error"
    stop: str = ""
    parse_special: bool = False
