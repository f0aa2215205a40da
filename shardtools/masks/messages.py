"""Messages as chat templates want them: plain dicts in the form of OpenAI."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shardtools.schemas import Message
from shardtools.templates.template import MessageDict


def message_dicts(messages: Sequence[Message], *, arguments_as_text: bool) -> list[MessageDict]:
    """Return messages as dicts. Keys without a value are absent, since templates ask whether they are there.

    Args:
        messages: any.
        arguments_as_text: the template wants the arguments of calls as JSON text, not as objects.
    """
    return [_message(message, arguments_as_text) for message in messages]


def _message(message: Message, arguments_as_text: bool) -> MessageDict:
    result: MessageDict = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        # templates disagree on the name
        result |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
    if message.tool_calls:
        result["tool_calls"] = [
            _call(call.name, _as_wanted(call.arguments, arguments_as_text), call.id) for call in message.tool_calls
        ]
    if message.name is not None:
        result["name"] = message.name
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    return result


def _as_wanted(arguments: Mapping[str, Any] | str, as_text: bool) -> Any:
    if isinstance(arguments, str) or not as_text:
        return arguments
    return json.dumps(arguments, ensure_ascii=False)


def _call(name: str, arguments: Any, identity: str | None) -> dict[str, Any]:
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return call if identity is None else {"id": identity, **call}


def call_probe(arguments: Any) -> list[MessageDict]:
    """Return a short conversation with one call."""
    call = _call("probe", arguments, "call00000")
    return [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]


def role_probe(role: str, word: str) -> list[MessageDict]:
    """Return a short conversation in which a role says a word."""
    if role in ("system", "developer"):
        return [{"role": role, "content": word}, {"role": "user", "content": "q"}]
    return [*call_probe({"a": 1}), {"role": role, "content": word, "name": "probe", "tool_call_id": "call00000"}]
