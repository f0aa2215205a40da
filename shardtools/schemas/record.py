"""What every schema turns a row into, whatever the row looked like."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from streampipe.errors import StreampipeError

Role = Literal["system", "developer", "user", "assistant", "tool", "environment"]


class RowError(StreampipeError):
    """A row that cannot become a document; a build counts it by its reason or stops at it.

    Attributes:
        reason: a short name to count by, such as `unknown_speaker`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type["RowError"], tuple[str, str]]:
        return type(self), (self.reason, str(self))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the assistant.

    Attributes:
        name: of the tool.
        arguments: an object; a plain string only in dialogs whose calls are free text (FTDP).
        id: what a later tool message names, if the row gives it.
    """

    name: str
    arguments: Mapping[str, Any] | str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn, or one part of it.

    Attributes:
        role: who speaks.
        content: what is said; "" where an assistant only calls tools.
        reasoning: what an assistant thought before it spoke.
        tool_calls: the calls of an assistant.
        name: of the speaker or of the tool that answers.
        tool_call_id: which call a tool answers.
        train: False keeps an assistant turn out of the loss, True asks for it, None follows the options of the build.
    """

    role: Role
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None
    train: bool | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that are rendered into one document, or several.

    Attributes:
        messages: at least one.
        tools: descriptions of the tools offered, in the form {"type": "function", "function": {...}}.
        template_kwargs: what this row passes to the chat template, over what the build passes.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preference:
    """Two continuations of one prompt, the first of which is better."""

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Text:
    """Text of which every token is trained."""

    text: str


Record = Conversation | Preference | Text
