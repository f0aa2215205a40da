"""`shardtools stats`: its arguments, and what it prints."""

import argparse
import json
from typing import Any

from shardtools.arguments import positive, storage_options


def add_stats(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command."""
    command = commands.add_parser("stats", parents=[shared], help="say what sources hold and how they will pack")
    command.add_argument("urls", nargs="+", metavar="URL", help="the folder of a source")
    command.add_argument("--split", default=None, help="only this split (all)")
    command.add_argument(
        "--seq-length",
        type=positive,
        nargs="+",
        default=[2048, 4096, 8192, 32768],
        metavar="N",
        help="sequence lengths to forecast the padding for (2048 4096 8192 32768)",
    )
    command.add_argument(
        "--tokens",
        choices=("sample", "all", "none"),
        default="sample",
        help="which tokens to read, to compare them with the vocabulary and over shards (sample)",
    )
    command.set_defaults(run=_stats)


def _stats(arguments: argparse.Namespace) -> int:
    from shardtools.stats import measure  # noqa: PLC0415

    options = storage_options(arguments.storage_option)
    found = [
        measure(url, tuple(arguments.seq_length), arguments.split, options, arguments.tokens) for url in arguments.urls
    ]
    if arguments.json:
        listed = [stats.as_json() for stats in found]
        print(json.dumps(listed[0] if len(listed) == 1 else listed))
        return 0
    from shardtools.tables import show, show_sources  # noqa: PLC0415

    for stats in found:
        show(stats)
    if len(found) > 1:
        show_sources(found)
    return 0
