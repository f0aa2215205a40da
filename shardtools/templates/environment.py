"""Where chat templates run: sandboxed Jinja, with what `transformers` gives to templates, and without a clock.

A template is data from a stranger: it sees plain values only, cannot change them, and reaches no attribute that begins
with an underscore.
"""

import json
import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

GENERATION_START, GENERATION_END = "\ufdd4", "\ufdd5"
"""Stand in the rendered text where a `{% generation %}` block begins and ends.

All of U+FDD0 to U+FDEF are noncharacters: Unicode keeps them for the inside of programs, so no text holds them."""

QUOTE = "\ufdd0"
"""Stands behind the first character of a control token that a row quotes: it is text."""

_NOT_ASCII = re.compile(f"[^\\x00-\\x7f{QUOTE}]")


class TemplateRefusal(jinja2.TemplateError):
    """What `raise_exception` of a template raises."""


class GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}`: what the model would have generated.

    The marks are part of the output, so they are right in macros, loops and captured blocks too.
    """

    tags = {"generation"}  # noqa: RUF012 - the name and type are Jinja's

    def parse(self, parser: Parser) -> Node:
        """Parse the block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{GENERATION_START}{caller()}{GENERATION_END}"


class _Namespace(Namespace):
    """A namespace that takes no underscored names."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that a template may use `self` as a name
        self, rest = args[0], args[1:]
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a template cannot store {name!r} on a namespace; rename it")


def make_environment(today: date) -> jinja2.Environment:
    """Return an environment in which `strftime_now` always tells the same day, at midnight."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    midnight = datetime(today.year, today.month, today.day)

    def strftime_now(form: str) -> str:
        return midnight.strftime(form)

    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = strftime_now
    environment.globals["namespace"] = _Namespace
    return environment


def to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON as chat templates want it: no HTML escapes, non-ASCII characters as they are."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _NOT_ASCII.sub(_escaped, text) if ensure_ascii else text


def _escaped(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def _refuse(message: Any) -> None:
    raise TemplateRefusal(str(message))
