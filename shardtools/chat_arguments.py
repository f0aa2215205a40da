"""The arguments of `shardtools build` for conversations and preference pairs."""

import argparse
import json
from typing import Any

from streampipe.errors import ConfigError


def add_chats(command: argparse.ArgumentParser) -> None:
    """Add them."""
    group = command.add_argument_group("conversations and preference pairs")
    group.add_argument(
        "--schema",
        default="",
        metavar="NAME",
        help="how rows are read: text, messages, sharegpt, prompt-completion, alpaca, preference, ftdp, or one of an "
        "installed package (found by the columns of the first rows)",
    )
    group.add_argument(
        "--template",
        default="",
        metavar="NAME|FILE",
        help="the chat template: a Jinja file, or chatml, llama-3, internlm2, alpaca, plain (the one in the "
        "tokenizer's folder)",
    )
    group.add_argument(
        "--template-token",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another control token for a built-in template, e.g. im_end='<|end|>'; repeatable",
    )
    group.add_argument(
        "--template-kwargs",
        default="",
        metavar="JSON",
        help="an object passed to the template, e.g. '{\"enable_thinking\": false}'; a row's own stand above it",
    )
    group.add_argument(
        "--date", metavar="YYYY-MM-DD", help="the day that it always is in templates (a fixed one, 2024-07-26)"
    )
    _add_render(group)


def _add_render(group: Any) -> None:
    boolean = argparse.BooleanOptionalAction
    group.add_argument(
        "--train-turns", choices=("all", "last"), default="all", help="train all assistant turns, or the last (all)"
    )
    group.add_argument(
        "--train-terminator", action=boolean, default=True, help="train the token that ends an assistant turn (yes)"
    )
    group.add_argument(
        "--train-newline", action=boolean, default=True, help="train the line break behind that token, too (yes)"
    )
    group.add_argument(
        "--history",
        choices=("error", "expand", "last"),
        default="error",
        help="where the template writes earlier turns anew: stop, make one document a trained turn, or train the last "
        "turn only (error)",
    )
    group.add_argument(
        "--stop", default="", metavar="TOKEN", help="ends a document whose template ends its last turn with no token"
    )
    group.add_argument(
        "--parse-special",
        action="store_true",
        help="control tokens that a row quotes become control tokens (they stay text)",
    )


def chat_options(arguments: argparse.Namespace) -> Any:
    """Return the options.

    Raises:
        ConfigError: if one cannot be read.
    """
    from shardtools.chat_options import ChatOptions  # noqa: PLC0415
    from shardtools.masks import RenderOptions  # noqa: PLC0415

    given = {"date": arguments.date} if arguments.date else {}
    return ChatOptions(
        template=arguments.template,
        template_tokens=_tokens(arguments.template_token),
        template_kwargs=_object(arguments.template_kwargs),
        render=RenderOptions(
            turns=arguments.train_turns,
            terminator=arguments.train_terminator,
            newline=arguments.train_newline,
            history=arguments.history,
            stop=arguments.stop,
            parse_special=arguments.parse_special,
        ),
        **given,
    )


def _tokens(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if not pair.partition("=")[0] or "=" not in pair:
            raise ConfigError(f"--template-token {pair!r}: expected KEY=VALUE, e.g. im_end='<|end|>'")
    return {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs}


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError as error:
        raise ConfigError(f"--template-kwargs {text!r}: not JSON ({error}); expected an object") from error
    if not isinstance(value, dict):
        raise ConfigError(f"--template-kwargs {text!r}: expected a JSON object, but got {type(value).__name__}")
    return value
