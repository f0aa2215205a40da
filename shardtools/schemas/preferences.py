"""Schemas of preferences: pairs, and the unpaired ones that are refused."""

import re
from collections.abc import Mapping
from typing import Any

from shardtools.schemas.chats import template_kwargs
from shardtools.schemas.contents import read_text, refuse_media
from shardtools.schemas.messages import read_messages, with_system
from shardtools.schemas.record import Message, Preference, RowError
from shardtools.schemas.schema import Schema
from shardtools.schemas.tools import read_tools

Messages = tuple[Message, ...]

_HH_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant): ?")
"""How the Anthropic HH data writes a whole dialogue as one text."""

PROMPTS = ("prompt", "conversations", "messages", "conversation", *("question", "instruction", "query"))


def _read_pair(row: Mapping[str, Any]) -> Preference:
    refuse_media(row)
    sides = [row.get("chosen", row.get("chosen_messages")), row.get("rejected", row.get("rejected_messages"))]
    given = next((key for key in PROMPTS if row.get(key) is not None), None)
    prompt: Messages = ()
    if given is not None:
        prompt = _turns(row[given], given, "user")
    both = [_turns(side, name, "assistant") for side, name in zip(sides, ("chosen", "rejected"), strict=True)]
    if isinstance(sides[0], str) and isinstance(sides[1], str) and not prompt:
        both = _split_texts(sides[0], sides[1])
    if any(side[0].role != "assistant" for side in both):
        prompt = ()  # both sides tell the whole story, the prompt's column repeats a part of it
    if not prompt:
        prompt, both = _common(both)
    if not prompt:
        raise RowError("no_prompt", "chosen and rejected share no prompt, and the row has none")
    for name, side in zip(("chosen", "rejected"), both, strict=True):
        if not any(message.role == "assistant" for message in side):
            raise RowError("empty_answer", f"{name}: no assistant turn after the prompt")
    if both[0] == both[1]:
        raise RowError("identical_answers", "chosen and rejected are the same")
    prompt = with_system(prompt, row.get("system"))
    return Preference(prompt, both[0], both[1], read_tools(row.get("tools")), template_kwargs(row))


def _turns(value: Any, name: str, role: str) -> Messages:
    if value is None or isinstance(value, str):
        text = read_text(value, name)
        if not text:
            raise RowError("empty_answer" if role == "assistant" else "empty", f"{name}: empty")
        return (Message("assistant" if role == "assistant" else "user", text),)
    return read_messages(value, name)


def _split_texts(chosen: str, rejected: str) -> list[Messages]:
    """Split two whole texts without a prompt: by the turns written in them, else after the words they share."""
    if _HH_TURN.match(chosen) and _HH_TURN.match(rejected):
        return [_dialogue(chosen), _dialogue(rejected)]
    shared = next((i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), 0)
    shared = max(chosen.rfind(" ", 0, shared), chosen.rfind("\n", 0, shared)) + 1
    if not chosen[:shared].strip():
        raise RowError("no_prompt", "chosen and rejected begin with different words, and the row has no prompt")
    user = Message("user", chosen[:shared].rstrip())
    return [(user, Message("assistant", side[shared:])) for side in (chosen, rejected)]


def _dialogue(text: str) -> Messages:
    parts = _HH_TURN.split(text)[1:]
    turns = zip(parts[::2], parts[1::2], strict=True)
    messages = tuple(Message("user" if who == "Human" else "assistant", said.strip()) for who, said in turns)
    if any(not message.content for message in messages):
        raise RowError("empty_answer", f"a dialogue with an empty turn: {text[-80:]!r}")
    return messages


def _common(sides: list[Messages]) -> tuple[Messages, list[Messages]]:
    """Return the messages that both sides begin with, and what is left of each: at least one message."""
    shared = 0
    most = min(len(side) for side in sides) - 1
    while shared < most and sides[0][shared] == sides[1][shared]:
        shared += 1
    return sides[0][:shared], [side[shared:] for side in sides]


def _unread(row: Any) -> Preference:
    raise RowError("unpaired", "unpaired preferences are not built")


PREFERENCE = Schema(
    "preference",
    "preference",
    "chosen, rejected (+ prompt or conversations; text or messages)",
    lambda columns: {"chosen", "rejected"} <= columns or {"chosen_messages", "rejected_messages"} <= columns,
    _read_pair,
)
UNPAIRED = Schema(
    "unpaired-preference",
    "preference",
    "label or kto_tag beside messages, conversations or completion",
    lambda columns: (
        bool({"label", "kto_tag"} & columns) and bool({"messages", "conversations", "completion"} & columns)
    ),
    _unread,
    "unpaired preferences (KTO) are not built yet, and must not be trained as if every answer were good; "
    "keep the good rows only and drop the label column, or force another schema by --schema",
)
