"""`shardtools inspect`: its arguments, and what it prints."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardtools.arguments import positive, storage_options

if TYPE_CHECKING:
    from shardtools.looking.decoder import Decoder
    from shardtools.looking.documents import StoredDocument
    from streampipe.shards import Source


def add_inspect(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command."""
    command = commands.add_parser(
        "inspect", parents=[shared], help="show documents decoded, with what is trained coloured"
    )
    command.add_argument("url", metavar="URL", help="the folder of a source")
    command.add_argument("--split", default="train", help="which split (train)")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--document", type=int, metavar="N", help="this one, by its place in the split, from 0")
    which.add_argument("--grep", default="", metavar="TEXT", help="those that contain this")
    command.add_argument("--count", type=positive, default=3, metavar="N", help="how many at most (3)")
    command.add_argument("--tokens", type=positive, default=4096, metavar="N", help="how much of each to show (4096)")
    command.add_argument("--html", metavar="FILE", help="write a page for a browser instead")
    command.set_defaults(run=_inspect)


def _inspect(arguments: argparse.Namespace) -> int:
    from shardtools.looking.choice import Choice, chosen  # noqa: PLC0415
    from shardtools.looking.decoder import Decoder  # noqa: PLC0415
    from streampipe.shards import Source  # noqa: PLC0415

    source = Source.open("", arguments.url, arguments.split, storage_options(arguments.storage_option))
    decoder = Decoder.of(source.store, source.manifest)
    found = chosen(source, decoder, Choice(arguments.document, arguments.grep, arguments.count))
    shown = (
        _write_page(arguments, source, decoder, found) if arguments.html else _show(arguments, source, decoder, found)
    )
    if arguments.grep and not shown and not arguments.json:
        print(f"no document of {source.url}, split {source.split}, contains {arguments.grep!r}")
    return 0 if shown else 1


def _show(
    arguments: argparse.Namespace, source: "Source", decoder: "Decoder", found: Iterator["StoredDocument"]
) -> int:
    shown = 0
    if arguments.json:
        listed = [_as_json(source, decoder, stored) for stored in found]
        print(json.dumps(listed))
        return len(listed)
    from rich.console import Console  # noqa: PLC0415

    from shardtools.looking.documents import origin_of  # noqa: PLC0415
    from shardtools.looking.terminal import legend, show_document  # noqa: PLC0415

    console = Console()
    for shown, stored in enumerate(found, 1):  # noqa: B007
        origin = origin_of(source, stored.number)
        show_document(console, decoder, stored, origin, most=arguments.tokens, found=arguments.grep)
    if shown:
        console.print(legend())
    return shown


def _write_page(
    arguments: argparse.Namespace, source: "Source", decoder: "Decoder", found: Iterator["StoredDocument"]
) -> int:
    from shardtools.looking.documents import origin_of  # noqa: PLC0415
    from shardtools.looking.page import page  # noqa: PLC0415

    listed = [(stored, origin_of(source, stored.number)) for stored in found]
    title = f"{source.url}, {source.split}: {source.kind} documents"
    parts = page(title, decoder, listed, most=arguments.tokens, found=arguments.grep)
    Path(arguments.html).write_text("".join(parts), "utf-8")
    if not arguments.json:
        print(f"{arguments.html}: {len(listed)} documents")
    return len(listed)


def _as_json(source: "Source", decoder: "Decoder", stored: "StoredDocument") -> dict[str, Any]:
    from shardtools.looking.documents import origin_of  # noqa: PLC0415
    from shardtools.looking.export import as_row  # noqa: PLC0415

    return {
        "document": stored.number,
        "shard": stored.shard,
        "frame": stored.frame,
        "key": stored.key,
        "origin": origin_of(source, stored.number),
        "tokens": {member.name or "text": len(member.tokens) for member in stored.members},
        **as_row(decoder, stored, (None, None)),
    }
