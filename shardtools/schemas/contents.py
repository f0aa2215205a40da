"""The words of a message: a string, or a list of parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardtools.schemas.record import RowError, ToolCall
from shardtools.schemas.tools import read_calls

REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
"""Kinds of parts and keys of messages that hold what an assistant thought."""

MEDIA_COLUMNS = ("images", "image", "videos", "video", "audios", "audio")


@dataclass(frozen=True, slots=True)
class Content:
    """What the parts of one message hold."""

    text: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()


def read_content(value: Any, where: str) -> Content:
    """Return the content of a message; null is "".

    Raises:
        RowError: `multimodal` for parts that are not text, `wrong_type` for anything else.
    """
    if value is None:
        return Content("")
    if isinstance(value, str):
        return Content(value)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence):
        raise RowError("wrong_type", f"{where}: expected text, but got {type(value).__name__}")
    texts, thoughts = [], []
    calls: list[ToolCall] = []
    for part in value:
        kind, content = _part(part, where)
        if kind == "tool_call":
            calls.extend(read_calls(content, where))
        elif kind in REASONING:
            thoughts.append(content)
        else:
            texts.append(content)
    return Content("".join(texts), "".join(thoughts) if thoughts else None, tuple(calls))


def _part(part: Any, where: str) -> tuple[str, Any]:
    if isinstance(part, str):
        return "text", part
    if not isinstance(part, Mapping):
        raise RowError("wrong_type", f"{where}: expected parts of text, but got {type(part).__name__}")
    kind = part.get("type") or "text"
    if kind == "tool_call":
        return "tool_call", part.get("value", part)
    if kind not in ("text", "input_text", "output_text", *REASONING):
        raise RowError("multimodal", f"{where}: a part of type {kind!r}; only text can be built")
    for key in ("text", "value", "content", kind):
        if isinstance(part.get(key), str):
            return str(kind), part[key]
    raise RowError("wrong_type", f"{where}: a part of type {kind!r} without its text")


def refuse_media(row: Mapping[str, Any]) -> None:
    """Refuse a row that comes with pictures, sound or video.

    Raises:
        RowError: `multimodal`.
    """
    for column in MEDIA_COLUMNS:
        if row.get(column):
            raise RowError("multimodal", f"the row has {column!r}; only text can be built")


def read_text(value: Any, where: str) -> str:
    """Return a string, "" for null.

    Raises:
        RowError: `wrong_type`.
    """
    if value is None or isinstance(value, str):
        return value or ""
    raise RowError("wrong_type", f"{where}: expected text, but got {type(value).__name__}")
