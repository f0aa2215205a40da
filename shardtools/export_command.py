"""`shardtools export`: its arguments, and what it prints."""

import argparse
import json
from typing import Any

from shardtools.arguments import storage_options


def add_export(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command."""
    command = commands.add_parser("export", parents=[shared], help="decode a source back to JSON lines")
    command.add_argument("url", metavar="URL", help="the folder of a source")
    command.add_argument("--jsonl", required=True, metavar="FILE", help="the file to write")
    command.add_argument("--split", default="train", help="which split (train)")
    command.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    command.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    from shardtools.looking.export import export  # noqa: PLC0415
    from streampipe.shards import Source  # noqa: PLC0415

    source = Source.open("", arguments.url, arguments.split, storage_options(arguments.storage_option))
    count = export(source, arguments.jsonl, overwrite=arguments.overwrite)
    if arguments.json:
        print(json.dumps({"output": arguments.jsonl, "split": source.split, "documents": count}))
    else:
        print(f"{arguments.jsonl}: {count:,} documents")
    return 0
