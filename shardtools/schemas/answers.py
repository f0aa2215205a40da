"""Schemas of a question and its answer: prompt and completion, Alpaca, Dolly, query and response."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardtools.schemas.chats import conversation
from shardtools.schemas.contents import read_text
from shardtools.schemas.messages import read_messages
from shardtools.schemas.record import Conversation, Message, RowError
from shardtools.schemas.schema import Schema

QUESTIONS = ("instruction", "prompt", "query", "question")
ANSWERS = ("output", "response", "completion", "answer")
CONTEXTS = ("input", "context")
NO_ANSWER = "<nooutput>"
"""How the Alpaca data says that there is no answer."""


def _read_completion(row: Mapping[str, Any]) -> Conversation:
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, str) or prompt is None:
        before: tuple[Message, ...] = (Message("user", read_text(prompt, "prompt")),)
    else:
        before = tuple(replace(message, train=False) for message in read_messages(prompt, "prompt"))
    if isinstance(completion, str) or completion is None:
        return conversation(row, (*before, _answer(read_text(completion, "completion"))))
    return conversation(row, (*before, *read_messages(completion, "completion")))


def _read_alpaca(row: Mapping[str, Any]) -> Conversation:
    question, context, answer = (_first_text(row, keys) for keys in (QUESTIONS, CONTEXTS, ANSWERS))
    if not question and not context:
        raise RowError("empty", "the row asks nothing")
    asked = "\n\n".join(text for text in (question, context) if text)
    return conversation(row, (*_history(row.get("history")), Message("user", asked), _answer(answer)))


def _answer(text: str) -> Message:
    if not text or text.strip() == NO_ANSWER:
        raise RowError("empty_answer", "the row has no answer; it would teach to say nothing")
    return Message("assistant", text)


def _history(value: Any) -> list[Message]:
    if not value:
        return []
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise RowError("wrong_type", f"history: expected a list of pairs, but got {type(value).__name__}")
    messages = []
    for pair in value:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise RowError("wrong_type", f"history: expected a question and an answer, but got {pair!r:.80}")
        messages.append(Message("user", read_text(pair[0], "history")))
        messages.append(_answer(read_text(pair[1], "history")))
    return messages


def _first_text(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the first value that is neither null nor empty."""
    for key in keys:
        if text := read_text(row.get(key), key):
            return text
    return ""


COMPLETION = Schema(
    "prompt-completion",
    "conversation",
    "prompt, completion (text or messages; only the completion is trained)",
    lambda columns: {"prompt", "completion"} <= columns,
    _read_completion,
)
ALPACA = Schema(
    "alpaca",
    "conversation",
    f"one of {', '.join(QUESTIONS)} and one of {', '.join(ANSWERS)} (+ input or context, system, history)",
    lambda columns: not columns.isdisjoint(QUESTIONS) and not columns.isdisjoint(ANSWERS),
    _read_alpaca,
)
