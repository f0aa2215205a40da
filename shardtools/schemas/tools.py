"""Tools and calls of tools, in the one form that chat templates are written for."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shardtools.schemas.record import RowError, ToolCall


def read_tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the descriptions of tools; they may be a list or a JSON string, each an object or a JSON string.

    A bare function (`{"name": ..., "parameters": ...}`) is wrapped as chat templates expect it.

    Raises:
        RowError: `bad_tools`.
    """
    value = _decoded(value, "bad_tools", "tools") if isinstance(value, str) and value.strip() else value
    if not value:
        return ()
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise RowError("bad_tools", f"tools: expected a list of tools, but got {type(value).__name__}")
    return tuple(_tool(tool) for tool in value)


def _tool(tool: Any) -> Mapping[str, Any]:
    if isinstance(tool, str):
        tool = _decoded(tool, "bad_tools", "tools")
    if not isinstance(tool, Mapping):
        raise RowError("bad_tools", f"tools: expected an object for each tool, but got {type(tool).__name__}")
    if isinstance(tool.get("name"), str) and "function" not in tool and tool.get("type", "function") == "function":
        return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
    return tool


def tool_name(tool: Mapping[str, Any]) -> str | None:
    """Return the name of a described tool, None if the description has a form of its own."""
    inner = tool.get("function", tool)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else None


def read_calls(value: Any, where: str) -> tuple[ToolCall, ...]:
    """Return the calls of one message: a list, one object, or JSON of either.

    Raises:
        RowError: `bad_tool_call`.
    """
    if isinstance(value, str):
        value = _decoded(value, "bad_tool_call", where)
    calls = [value] if isinstance(value, Mapping) else value
    if not isinstance(calls, Sequence):
        raise RowError("bad_tool_call", f"{where}: expected tool calls, but got {type(value).__name__}")
    return tuple(_call(call, where) for call in calls)


def _call(call: Any, where: str) -> ToolCall:
    if isinstance(call, str):
        call = _decoded(call, "bad_tool_call", where)
    inner = call.get("function") or call if isinstance(call, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise RowError("bad_tool_call", f"{where}: a tool call has no function name; expected {{name, arguments}}")
    arguments = inner.get("arguments", inner.get("parameters"))
    if isinstance(arguments, str):
        arguments = _decoded(arguments, "bad_tool_call", f"{where}: arguments of {inner['name']}") if arguments else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise RowError(
            "bad_tool_call",
            f"{where}: arguments of {inner['name']} are {type(arguments).__name__}; expected an object or its JSON",
        )
    identity = call.get("id")
    return ToolCall(inner["name"], arguments, identity if isinstance(identity, str) and identity else None)


def _decoded(text: str, reason: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError(reason, f"{where}: not JSON ({error}): {text[:80]!r}") from error
