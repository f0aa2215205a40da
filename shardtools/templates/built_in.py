"""The chat templates that come along, each with control tokens that can be changed.

Another one is an entry point of the group `shardtools.templates` in a package of one's own: its name is what
`--template` takes, it gives a `NamedTemplate`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from streampipe.errors import ConfigError

GROUP = "shardtools.templates"
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class NamedTemplate:
    """A chat template by name.

    Attributes:
        source: Jinja.
        tokens: the variables of the template that are control tokens or fixed words, with their defaults. None means
            the tokenizer's end token.
        control: those of `tokens` that must be tokens of the tokenizer; as text they would mean nothing to a model.
    """

    source: str
    tokens: Mapping[str, str | None] = field(default_factory=dict)
    control: frozenset[str] = frozenset()


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.jinja").read_text("utf-8")


def _chatml() -> NamedTemplate:
    tokens = {"im_start": "<|im_start|>", "im_end": "<|im_end|>"}
    return NamedTemplate(_read("chatml"), tokens, frozenset(tokens))


def _llama3() -> NamedTemplate:
    tokens = {"header_start": "<|start_header_id|>", "header_end": "<|end_header_id|>", "turn_end": "<|eot_id|>"}
    return NamedTemplate(_read("llama-3"), tokens, frozenset(tokens))


def _internlm2() -> NamedTemplate:
    tokens = {
        "im_start": "<|im_start|>",
        "im_end": "<|im_end|>",
        "action_start": "<|action_start|>",
        "action_end": "<|action_end|>",
        "interpreter": "<|interpreter|>",
        "plugin": "<|plugin|>",
    }
    return NamedTemplate(_read("internlm2"), tokens, frozenset(tokens))


def _alpaca() -> NamedTemplate:
    words = {
        "preamble": "",
        "instruction": "### Instruction:\n",
        "response": "### Response:\n",
        "answer_end": None,
        "separator": "\n\n",
    }
    return NamedTemplate(_read("alpaca"), words)


def _plain() -> NamedTemplate:
    return NamedTemplate(_read("plain"), {"answer_end": None})


BUILT_IN = {"chatml": _chatml, "alpaca": _alpaca, "llama-3": _llama3, "internlm2": _internlm2, "plain": _plain}


@cache
def known_templates() -> dict[str, NamedTemplate]:
    """Return the built-in templates and those of installed packages, which cannot replace a built-in one.

    Raises:
        ConfigError: if an entry point cannot be loaded or is no template.
    """
    found = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            template = point.load()
        except Exception as error:  # whatever a foreign module raises while it is imported
            raise ConfigError(
                f"entry point {GROUP}: {point.name}: cannot be loaded ({error}); mend or remove its package"
            ) from error
        if not isinstance(template, NamedTemplate):
            raise ConfigError(
                f"entry point {GROUP}: {point.name}: expected a NamedTemplate, but got {type(template).__name__}"
            )
        found[point.name] = template
    return {**found, **{name: make() for name, make in BUILT_IN.items()}}
