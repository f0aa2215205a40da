"""A chat template: from messages to text."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import Any

import jinja2

from shardtools.schemas import RowError
from shardtools.templates.built_in import known_templates
from shardtools.templates.environment import GenerationTag, TemplateRefusal, make_environment
from shardtools.templates.folder import folder_templates, read_template
from streampipe.errors import ConfigError

TODAY = date(2024, 7, 26)
"""The day it always is in templates, unless the build says another one: the one that Llama 3.1's template names."""

MessageDict = dict[str, Any]


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template with all that decides what it renders, apart from the row.

    Attributes:
        name: where it is from: a built-in name, a path, or the name inside the tokenizer's folder.
        source: Jinja.
        tokens: values for variables of a built-in template; None stands for the tokenizer's end token.
        control: those of `tokens` that must be tokens of the tokenizer.
        today: the day that `strftime_now` tells.
        kwargs: what the build passes to every rendering, such as `enable_thinking`.
    """

    name: str
    source: str
    tokens: Mapping[str, str | None] = field(default_factory=dict)
    control: frozenset[str] = frozenset()
    today: date = TODAY
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        name: str | None = None,
        folder: str | None = None,
        *,
        tokens: Mapping[str, str] | None = None,
        today: date = TODAY,
        kwargs: Mapping[str, Any] | None = None,
        storage: Mapping[str, Any] | None = None,
    ) -> "ChatTemplate":
        """Find a template.

        Args:
            name: a file (with a slash or ending in .jinja), a built-in name, or one of the names inside the
                tokenizer's folder; None for the folder's own template.
            folder: path or URL of the tokenizer's folder.
            tokens: other control tokens for a built-in template.
            today: the day that `strftime_now` tells.
            kwargs: what to pass to every rendering.
            storage: options of the filesystems of URLs.

        Raises:
            ConfigError: there is no such template, it is not Jinja, or it has no such token.
        """
        given, passed = dict(tokens or {}), dict(kwargs or {})
        if name is not None and name in (named := known_templates()):
            found = named[name]
            _check_tokens(name, given, found.tokens)
            template = cls(name, found.source, {**found.tokens, **given}, found.control, today, passed)
        else:
            _check_tokens(name or "the tokenizer's own", given, {})
            if name is not None and ("/" in name or name.endswith(".jinja")):
                label, source = name, read_template(name, storage)
            else:
                label, source = _in_folder(name, folder, storage)
            template = cls(label, source, {}, frozenset(), today, passed)
        _ = template.compiled
        return template

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}  # compiled code stays here

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def hash(self) -> str:
        """Hash of everything that decides the rendering but the row and the tokenizer."""
        return hashlib.sha256(json.dumps(self.record() | {"source": self.source}, sort_keys=True).encode()).hexdigest()

    def record(self) -> dict[str, Any]:
        """Return what a manifest says of it."""
        source = hashlib.sha256(self.source.encode()).hexdigest()
        shown = {"source_hash": source, "today": self.today.isoformat(), "kwargs": dict(self.kwargs)}
        return {"name": self.name if "/" not in self.name else "file", "tokens": dict(self.tokens), **shown}

    @cached_property
    def compiled(self) -> jinja2.Template:
        """The template, compiled.

        Raises:
            ConfigError: it is not Jinja.
        """
        try:
            return make_environment(self.today).from_string(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"chat template {self.name}: line {error.lineno}: {error.message}; mend it") from error

    @cached_property
    def marks_generation(self) -> bool:
        """Whether it says by `{% generation %}` what the model generates."""
        environment = make_environment(self.today)
        marks = (node.identifier for node in environment.parse(self.source).find_all(jinja2.nodes.ExtensionAttribute))
        return f"{GenerationTag.__module__}.{GenerationTag.__qualname__}" in marks

    def render(
        self,
        messages: Sequence[MessageDict],
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """Return the text of messages.

        Args:
            messages: plain dicts in the form of OpenAI.
            variables: tools, the tokenizer's own tokens, what the row passes.
            add_generation_prompt: end with what stands before an answer.

        Raises:
            RowError: `template_refused` if the template refuses these messages.
        """
        tokens = {key: variables.get("eos_token") if value is None else value for key, value in self.tokens.items()}
        context = {**tokens, **self.kwargs, **variables}
        try:
            return self.compiled.render(**context, messages=messages, add_generation_prompt=add_generation_prompt)
        except TemplateRefusal as error:
            raise RowError("template_refused", f"chat template {self.name}: {error}") from error
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError, ArithmeticError) as error:
            raise RowError("template_failed", f"chat template {self.name}: {type(error).__name__}: {error}") from error


def _check_tokens(name: str, given: Mapping[str, str], known: Mapping[str, str | None]) -> None:
    if unknown := sorted(set(given) - set(known)):
        listed = ", ".join(known) or "none"
        raise ConfigError(f"chat template {name}: no token is called {', '.join(unknown)}; it has: {listed}")


def _in_folder(name: str | None, folder: str | None, storage: Mapping[str, Any] | None) -> tuple[str, str]:
    found = folder_templates(folder, storage) if folder is not None else {}
    wanted = name or ("default" if len(found) != 1 else next(iter(found)))
    if wanted in found:
        return wanted, found[wanted]
    built_in = ", ".join(known_templates())
    there = f"the tokenizer's folder has {', '.join(sorted(found)) or 'none'}"
    what = f"there is no chat template {name!r}" if name else "the tokenizer brings no chat template of its own"
    raise ConfigError(f"{what}; {there}, built in are {built_in}; choose one by --template NAME or FILE.jinja")
