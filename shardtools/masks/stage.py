"""One chat template with one tokenizer: renders, and knows the template's habits."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from shardtools.masks.errors import RenderError
from shardtools.masks.messages import call_probe, message_dicts, role_probe
from shardtools.masks.quoting import Quoting
from shardtools.masks.tokens import ChatTokenizer
from shardtools.schemas import Message, RowError
from shardtools.templates import ChatTemplate
from shardtools.templates.template import MessageDict

_WORD = "Quetzalcoatlus"


class Stage:
    """Renders messages of rows, marked.

    Args:
        tokenizer: gives the begin and end tokens that templates write.
        template: the template.
        quoting: marks what rows quote.
    """

    def __init__(self, tokenizer: ChatTokenizer, template: ChatTemplate, quoting: Quoting) -> None:
        self.template, self._quoting = template, quoting
        # a built-in template writes the begin token where the tokenizer would; a model's own one knows best
        bos = tokenizer.bos if tokenizer.adds_bos or not template.tokens else ""
        self.own = {"bos_token": bos, "eos_token": tokenizer.eos}
        self._roles: dict[str, bool] = {"user": True, "assistant": True}

    @cached_property
    def arguments_as_text(self) -> bool:
        """Whether the template joins arguments as they are, so that objects would fail or show as Python's."""
        try:
            return "'key'" in self._render(call_probe({"key": "it's"}))
        except RowError:
            try:
                self._render(call_probe(json.dumps({"key": "it's"})))
            except RowError:
                return False  # it has no tools; its own message will say so
            return True

    def _render(self, messages: Sequence[MessageDict]) -> str:
        return self.template.render(messages, self.own)

    def play(self, messages: Sequence[Message], tools: Sequence[Any], kwargs: Mapping[str, Any]) -> "Play":
        """Return messages with their surroundings, ready to render."""
        calls = any(message.tool_calls for message in messages)
        as_text = calls and self.arguments_as_text
        dicts = self._quoting.quoted(message_dicts(messages, arguments_as_text=as_text))
        variables = {**self._quoting.quoted(kwargs), **self.own}
        variables["tools"] = self._quoting.quoted(tools) if tools else None
        play = Play(self.template, dicts, variables)
        for role in dict.fromkeys(message.role for message in messages):
            self._check_role(role, play)
        return play

    def _check_role(self, role: str, play: "Play") -> None:
        if role not in self._roles:
            try:
                self._roles[role] = _WORD in self._render(role_probe(role, _WORD))
            except RowError:
                self._roles[role] = True  # it does not stay silent: rows will be refused
        if not self._roles[role]:
            raise RenderError(
                "lost_role",
                f"chat template {self.template.name} leaves out what a {role} says; use another template, "
                f"or rename the role in the data",
                play.render(),
            )


class Play:
    """Messages of one row, marked, with tools and variables.

    Args:
        template: renders.
        messages: plain dicts.
        variables: what else the template sees.
    """

    def __init__(self, template: ChatTemplate, messages: list[MessageDict], variables: Mapping[str, Any]) -> None:
        self.template, self.messages, self._variables = template, messages, variables

    def render(self, stop: int | None = None, *, prompt: bool = False) -> str:
        """Return the text of the messages before `stop`, with the generation prompt behind them if asked for."""
        return self.template.render(self.messages[:stop], self._variables, add_generation_prompt=prompt)

    def prompt_text(self) -> str:
        """Return what the template writes before an answer, as far as it does so by itself."""
        asked = [{"role": "user", "content": "q"}]
        plain = self.template.render(asked, self._variables)
        prompted = self.template.render(asked, self._variables, add_generation_prompt=True)
        return prompted[len(plain) :] if prompted.startswith(plain) else ""

    def with_messages(self, messages: list[MessageDict]) -> "Play":
        """Return the same with other messages."""
        return Play(self.template, messages, self._variables)
