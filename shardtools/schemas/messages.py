"""Lists of messages, in the spelling of OpenAI (`role`, `content`) or ShareGPT (`from`, `value`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardtools.schemas.contents import REASONING, read_content, read_text
from shardtools.schemas.record import Message, RowError
from shardtools.schemas.speakers import CALLING, SPEAKERS, speaker_of
from shardtools.schemas.tools import read_calls

TRAIN_KEYS = ("train", "loss", "weight", "loss_weight")
"""What data sets call the switch of one message."""


def read_messages(value: Any, where: str) -> tuple[Message, ...]:
    """Return the messages of a row.

    A message alone (an object) is a list of one. Keys that are null count as absent.

    Raises:
        RowError: `not_messages`, `empty`, and all that one message can be refused for.
    """
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise RowError("not_messages", f"{where}: expected a list of messages, but got {type(value).__name__}")
    if not value:
        raise RowError("empty", f"{where}: no messages")
    return tuple(_message(message, f"{where}[{i}]") for i, message in enumerate(value))


def with_system(messages: tuple[Message, ...], system: Any) -> tuple[Message, ...]:
    """Put the row's own system text first, unless the messages bring one."""
    text = read_text(system, "system")
    if not text or (messages and messages[0].role == "system"):
        return messages
    return (Message("system", text), *messages)


def _message(raw: Any, where: str) -> Message:
    if not isinstance(raw, Mapping):
        raise RowError("not_messages", f"{where}: expected an object, but got {type(raw).__name__}")
    speaker = speaker_of(_first(raw, ("role", "from")), where)
    role = SPEAKERS[speaker]
    words = _first(raw, ("content", "value"))
    if speaker == CALLING:
        words, calls = None, read_calls(words, where)
    else:
        calls = read_calls(raw["tool_calls"], where) if raw.get("tool_calls") else ()
    content = read_content(words, where)
    reasoning = _first(raw, REASONING)
    thought = content.reasoning if reasoning is None else read_text(reasoning, where)
    message = Message(
        role,
        content.text,
        thought or None,
        (*content.calls, *calls),
        _string(raw, "name", where),
        _string(raw, "tool_call_id", where),
        read_train(raw, where),
    )
    return _checked(message, where)


def _checked(message: Message, where: str) -> Message:
    if message.role != "assistant":
        if message.train:
            raise RowError(
                "train_on_others",
                f"{where}: the {message.role} turn is marked to be trained; only assistant turns can be",
            )
        if message.tool_calls:
            raise RowError("bad_tool_call", f"{where}: the {message.role} turn calls tools; only an assistant can")
    elif not (message.content or message.tool_calls or message.reasoning or message.train is False):
        raise RowError("empty_answer", f"{where}: the assistant turn is empty; it would teach to say nothing")
    return message


def read_train(raw: Mapping[str, Any], where: str) -> bool | None:
    """Return the switch of one message, None if it has none.

    Raises:
        RowError: `bad_weight` for anything but yes or no; `conflict` if two switches disagree.
    """
    found = {key: _switch(raw[key], f"{where}.{key}") for key in TRAIN_KEYS if raw.get(key) is not None}
    if len(set(found.values())) > 1:
        raise RowError("conflict", f"{where}: {' and '.join(found)} disagree")
    return next(iter(found.values()), None)


def _switch(value: Any, where: str) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False, "1": 1, "0": 0}.get(value.strip().lower(), value)
    if value in (0, 1):
        return bool(value)
    raise RowError("bad_weight", f"{where}: expected 0, 1, true or false, but got {value!r}")


def _first(raw: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((raw[key] for key in keys if raw.get(key) is not None), None)


def _string(raw: Mapping[str, Any], key: str, where: str) -> str | None:
    return read_text(raw.get(key), f"{where}.{key}") or None
