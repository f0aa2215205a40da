"""Whether all that is to be learned is in the text, and is trained."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shardtools.masks.errors import RenderError, shown
from shardtools.masks.tokens import Rendered, Script
from shardtools.schemas import Message, RowError
from shardtools.schemas.tools import tool_name
from shardtools.templates.environment import QUOTE, to_json


def check_script(script: Script, messages: Sequence[Message], trained: Iterable[int], tools: Sequence[Any]) -> None:
    """Check one document.

    White space is not compared: templates trim. Messages that are not trained may lose reasoning (many templates drop
    it from history), but not the names of tools they call.

    Args:
        script: the rendering.
        messages: those in it.
        trained: which of them are trained.
        tools: those offered.

    Raises:
        RenderError: `all_zero`, `lost_tools`, `lost_tool_call`, `lost_reasoning`, `lost_answer`.
    """
    text = script.text.replace(QUOTE, "")

    def fail(reason: str, message: str) -> RenderError:
        return RenderError(reason, message, shown(script.text, script.trained))

    if not script.trained:
        raise fail("all_zero", "nothing of the document would be trained, though its assistant turns should be")
    for tool in tools:
        if (name := tool_name(tool)) is not None and name not in text:
            raise fail("lost_tools", f"the chat template leaves out the tool {name!r}; use one that knows tools")
    for i, message in enumerate(messages):
        for call in message.tool_calls:
            if call.name not in text:
                raise fail("lost_tool_call", f"message {i} calls {call.name!r}, and the text does not say so")
    said = _squeezed("".join(script.text[start:end] for start, end in script.trained).replace(QUOTE, ""))
    for i in trained:
        _check_said(messages[i], i, said, fail)


def check_pair(chosen: Rendered, rejected: Rendered) -> None:
    """Check that both sides of a pair begin with the same ids.

    Raises:
        RowError: `unequal_prompts`.
    """
    shared = chosen.prompt_tokens
    if shared != rejected.prompt_tokens or not np.array_equal(chosen.tokens[:shared], rejected.tokens[:shared]):
        raise RowError("unequal_prompts", "the tokenizer gives the shared prompt different ids in the two answers")


def _check_said(message: Message, i: int, said: str, fail: Any) -> None:
    if message.reasoning and _squeezed(message.reasoning) not in said:
        raise fail("lost_reasoning", f"message {i} has reasoning, and the trained text has not")
    if _squeezed(message.content) not in said:
        raise fail("lost_answer", f"what message {i} says is not in the trained text")
    for call in message.tool_calls:
        if isinstance(call.arguments, str):
            names = [call.arguments]
        else:
            names = [key for key in call.arguments if to_json(key)[1:-1] not in said]
        for name in (call.name, *names):
            if _squeezed(name) not in said:
                raise fail(
                    "lost_tool_call", f"message {i} calls {call.name!r}, and {name!r} is not in the trained text"
                )


def _squeezed(text: str) -> str:
    return "".join(text.split())
