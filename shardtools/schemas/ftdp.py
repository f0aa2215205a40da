"""The schema of FTDP dialogs, the processed data of InternLM."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardtools.schemas.contents import read_text
from shardtools.schemas.messages import read_train
from shardtools.schemas.record import Conversation, Message, RowError, ToolCall
from shardtools.schemas.schema import LIST_ROW, Schema

TURNS = ("system", "user", "assistant", "environment")
PARTS = ("tool", "thought")
"""Roles that are parts of an assistant turn."""


def _read(row: Any) -> Conversation:
    dialog = row.get("dialogs", row.get("dialog")) if isinstance(row, Mapping) else row
    if not isinstance(dialog, Sequence) or isinstance(dialog, str):
        raise RowError("not_messages", f"expected a list of messages, but got {type(dialog).__name__}")
    if not dialog:
        raise RowError("empty", "no messages")
    messages: list[Message] = []
    for i, raw in enumerate(dialog):
        where = f"dialog[{i}]"
        if not isinstance(raw, Mapping):
            raise RowError("not_messages", f"{where}: expected an object, but got {type(raw).__name__}")
        _add(messages, raw, where)
    return Conversation(tuple(messages))


def _add(messages: list[Message], raw: Mapping[str, Any], where: str) -> None:
    role, content = raw.get("role"), read_text(raw.get("content"), where)
    name, train = read_text(raw.get("name"), where) or None, read_train(raw, where)
    if role == "tool" and name is None:
        raise RowError("bad_tool_call", f"{where}: a tool call has no name; it would lose its opening")
    if role in TURNS:
        if role != "assistant" and train:
            raise RowError("train_on_others", f"{where}: the {role} turn is marked to be trained")
        messages.append(Message(role, content, name=name, train=train))
        return
    if role not in PARTS:
        known = ", ".join((*TURNS, *PARTS))
        raise RowError("unknown_speaker", f"{where}: unknown role {role!r}; expected one of {known}")
    open_turn = messages.pop() if messages and messages[-1].role == "assistant" else None
    if open_turn is not None and open_turn.train != train:
        raise RowError("conflict", f"{where}: parts of one assistant turn disagree on their loss")
    turn = open_turn or Message("assistant", "", train=train)
    if role == "tool" and name is not None:
        calls = (*turn.tool_calls, ToolCall(name, content))
        messages.append(Message("assistant", turn.content, None, calls, turn.name, train=train))
    elif turn.tool_calls:
        raise RowError("unsupported_order", f"{where}: a thought after a tool call in one assistant turn")
    else:
        messages.append(Message("assistant", turn.content + content, name=turn.name, train=train))


FTDP = Schema(
    "ftdp",
    "conversation",
    "dialogs, or a list as the row: roles system, user, assistant, environment, tool, thought",
    lambda columns: bool({"dialogs", "dialog", LIST_ROW} & columns),
    _read,
)
