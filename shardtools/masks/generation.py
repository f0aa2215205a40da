"""Spans that the template itself marks by `{% generation %}`."""

import re
from collections.abc import Collection
from typing import Any

from shardtools.masks.errors import RenderError, Span, shown
from shardtools.masks.stage import Play
from shardtools.templates.environment import GENERATION_END, GENERATION_START

_MARK = re.compile(f"[{GENERATION_START}{GENERATION_END}]")
_OWNER, _OWNER_END = "\ufdd6", "\ufdd7"
_OWNED = re.compile(f"{_OWNER}(\\d+){_OWNER_END}")
_FIRST = re.compile(r"\S")


def without_marks(text: str) -> str:
    """Return a rendered text without the marks of generation blocks."""
    return _MARK.sub("", text)


def generation_spans(play: Play, wanted: Collection[int]) -> tuple[str, list[Span]]:
    """Return the text of a conversation and the marked spans of the wanted messages.

    To know whose a span is, the conversation is rendered once more with the number of each message inside its words.

    Raises:
        RenderError: a span holds words of someone else, or it cannot be told whose the spans are.
    """
    text, spans = _cut(play.render())
    owned, owned_spans = _cut(play.with_messages([_signed(m, i) for i, m in enumerate(play.messages)]).render())
    assistants = [i for i, message in enumerate(play.messages) if message["role"] == "assistant"]
    owners: list[set[int]] = []
    if len(owned_spans) == len(spans):
        owners = [{int(i) for i in _OWNED.findall(owned[start:end])} for start, end in owned_spans]
    strangers = {i for found in owners for i in found} - set(assistants)
    if strangers:
        role = play.messages[min(strangers)]["role"]
        raise RenderError(
            "reaches_user",
            f"the generation block of chat template {play.template.name} holds what the {role} says; mend the template",
            shown(text, spans),
        )
    if len(spans) == len(assistants):
        return text, [span for span, i in zip(spans, assistants, strict=True) if i in wanted]
    if not owners or any(len(found) != 1 for found in owners):
        if set(assistants) == set(wanted):
            return text, spans
        raise RenderError(
            "unclear_spans",
            f"chat template {play.template.name} marks {len(spans)} generation blocks for {len(assistants)} assistant "
            f"turns, so single turns cannot be left out; train all turns or mend the template",
            shown(text, spans),
        )
    return text, [span for span, found in zip(spans, owners, strict=True) if found <= set(wanted)]


def _cut(marked: str) -> tuple[str, list[Span]]:
    """Take the marks out of a text and return what they enclose; of nested blocks the outer one counts."""
    pieces, spans = [], []
    depth = start = length = at = 0
    for match in _MARK.finditer(marked):
        pieces.append(marked[at : match.start()])
        length += match.start() - at
        at = match.end()
        if match[0] == GENERATION_START:
            start = start if depth else length
            depth += 1
        else:
            depth -= 1
            if depth == 0 and length > start:
                spans.append((start, length))
    pieces.append(marked[at:])
    return "".join(pieces), spans


def _signed(message: dict[str, Any], i: int) -> dict[str, Any]:
    """Put the number of a message behind the first letter of its words."""
    keys = ("content", "reasoning_content", "thinking")
    signed = {
        key: _FIRST.sub(lambda match: f"{match[0]}{_OWNER}{i}{_OWNER_END}", value, count=1)
        for key, value in message.items()
        if key in keys and isinstance(value, str)
    }
    return message | signed
