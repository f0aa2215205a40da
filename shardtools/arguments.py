"""Arguments that several commands take."""

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from streampipe.errors import ConfigError


def add_inputs(command: argparse.ArgumentParser) -> None:
    """Add what a command that reads a corpus takes."""
    command.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="JSON lines or arrays (.jsonl, .ndjson, .json; plain, .gz, .zst), Parquet, Arrow, WebDataset tars, text "
        "or code files, folders, quoted globs, fsspec URLs of any of them, or hf:owner/name:split",
    )
    command.add_argument("--text-field", metavar="NAME", help="where the text is in a row; rows are then texts (text)")
    command.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="GLOB",
        help="in folders and globs, take only files of this name or relative path, e.g. '*.py'; repeatable "
        "(default: everything but hidden files)",
    )
    command.add_argument(
        "--on-bad-row",
        choices=("error", "count"),
        default="error",
        help="stop at a row or file that cannot be read, or leave it out and count it (error)",
    )


def storage_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` options; `a.b=value` nests, and true, false, null and JSON objects are taken as such.

    Raises:
        ConfigError: if one has no `=`.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, found, text = pair.partition("=")
        if not found or not key:
            raise ConfigError("--storage-option: expected KEY=VALUE, e.g. endpoint_url=http://host:9000")
        place = options
        *outer, last = key.split(".")
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--storage-option {key}: {part!r} is a plain value already; give it once")
        place[last] = _value(text)
    return options


def _value(text: str) -> Any:
    if text in ("true", "false", "null") or text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but got {number}")
    return number


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
