"""Schemas of conversations: messages and ShareGPT."""

import json
from collections.abc import Mapping
from typing import Any

from shardtools.schemas.contents import refuse_media
from shardtools.schemas.messages import read_messages, with_system
from shardtools.schemas.record import Conversation, Message, RowError
from shardtools.schemas.schema import Schema
from shardtools.schemas.tools import read_tools


def template_kwargs(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the row passes to the chat template.

    Raises:
        RowError: `bad_template_kwargs`.
    """
    value = row.get("chat_template_kwargs") or {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise RowError("bad_template_kwargs", f"chat_template_kwargs: not JSON ({error})") from error
    if not isinstance(value, Mapping):
        raise RowError("bad_template_kwargs", f"chat_template_kwargs: expected an object, got {type(value).__name__}")
    return value


def conversation(row: Mapping[str, Any], messages: tuple[Message, ...]) -> Conversation:
    """Return messages with what the row says beside them: system text, tools, template arguments."""
    refuse_media(row)
    return Conversation(with_system(messages, row.get("system")), read_tools(row.get("tools")), template_kwargs(row))


def _read_messages(row: Mapping[str, Any]) -> Conversation:
    return conversation(row, read_messages(row.get("messages"), "messages"))


def _read_sharegpt(row: Mapping[str, Any]) -> Conversation:
    column = "conversations" if row.get("conversations") is not None else "conversation"
    return conversation(row, read_messages(row.get(column), column))


MESSAGES = Schema(
    "messages",
    "conversation",
    "messages [role, content, ...] (+ tools, system, chat_template_kwargs)",
    lambda columns: "messages" in columns,
    _read_messages,
)
SHAREGPT = Schema(
    "sharegpt",
    "conversation",
    "conversations [from, value] (+ tools, system)",
    lambda columns: bool({"conversations", "conversation"} & columns),
    _read_sharegpt,
)
