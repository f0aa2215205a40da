"""The command line of shardtools: reads arguments, calls one function a command, turns errors into one line.

Each command imports what it needs when it runs: `--help` loads neither tokenizers nor rich.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from shardtools.arguments import add_inputs, positive, storage_options
from shardtools.build_command import add_build
from shardtools.export_command import add_export
from shardtools.inspect_command import add_inspect
from shardtools.stats_command import add_stats
from streampipe.errors import ConfigError, StreampipeError

Arguments = argparse.Namespace

EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 well, 1 a fault, 2 a wrong request, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        if arguments.debug:
            raise
        print("shardtools: interrupted; run the same command again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout at exit
        return EXIT_FAULT
    except StreampipeError as error:
        if arguments.debug:
            raise
        print(f"shardtools: error: {_in_words(error)}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAULT
    except ModuleNotFoundError as error:
        if arguments.debug or error.name not in ("tokenizers", "rich", "jinja2"):
            raise
        print(f"shardtools: error: {error.name} is not installed; pip install 'streampipe-llm[build]'", file=sys.stderr)
        return EXIT_USAGE


def _in_words(error: StreampipeError) -> str:
    return "; ".join([str(error), *getattr(error, "__notes__", [])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shardtools", description="Turn text and code into sources that streampipe reads."
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--debug", action="store_true", help="show the traceback of an error")
    shared.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    shared.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for the filesystem of URLs, e.g. endpoint_url=http://host:9000 or client_kwargs.region_name=eu; "
        "repeatable",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_build(commands, shared)
    _add_verify(commands, shared)
    add_stats(commands, shared)
    add_inspect(commands, shared)
    add_export(commands, shared)
    _add_train_tokenizer(commands, shared)
    return parser


def _add_verify(commands: Any, shared: argparse.ArgumentParser) -> None:
    command = commands.add_parser("verify", parents=[shared], help="read a source back and name every fault")
    command.add_argument("url", metavar="URL", help="the folder of a source")
    command.add_argument("--deep", action="store_true", help="also decode every document, and check ids and masks")
    command.set_defaults(run=_verify)


def _add_train_tokenizer(commands: Any, shared: argparse.ArgumentParser) -> None:
    command = commands.add_parser("train-tokenizer", parents=[shared], help="train a byte-level BPE tokenizer")
    add_inputs(command)
    command.add_argument(
        "--vocab-size", type=positive, required=True, metavar="N", help="tokens, special ones included"
    )
    command.add_argument("--output", required=True, metavar="FILE", help="the tokenizer.json to write")
    command.add_argument(
        "--special-tokens", default="", metavar="A,B", help="besides <|endoftext|>, which is always there"
    )
    command.add_argument("--overwrite", action="store_true", help="replace another tokenizer of that name")
    command.set_defaults(run=_train_tokenizer)


def _verify(arguments: Arguments) -> int:
    from shardtools.verify import verify  # noqa: PLC0415

    options, say = storage_options(arguments.storage_option), None if arguments.json else print
    report = verify(arguments.url, options, say=say, deep=arguments.deep)
    if arguments.json:
        print(json.dumps(report.as_json()))
    elif not report.faults:
        print(
            f"{arguments.url}: sound: {report.documents:,} documents, {report.tokens:,} tokens, "
            f"{report.shards:,} shards, splits {', '.join(report.splits)}"
        )
    return EXIT_FAULT if report.faults else 0


def _train_tokenizer(arguments: Arguments) -> int:
    from shardtools.text.training import TrainingRequest, train_tokenizer  # noqa: PLC0415

    request = TrainingRequest(
        inputs=tuple(arguments.inputs),
        output=arguments.output,
        vocab_size=arguments.vocab_size,
        special_tokens=tuple(token for token in arguments.special_tokens.split(",") if token),
        text_field="text" if arguments.text_field is None else arguments.text_field,
        include=tuple(arguments.include),
        on_bad_row=arguments.on_bad_row,
        overwrite=arguments.overwrite,
        storage=storage_options(arguments.storage_option),
    )
    result = train_tokenizer(request)
    if arguments.json:
        print(json.dumps(result.as_json()))
    else:
        print(f"{result.output}: {result.vocab_size:,} tokens, trained on {result.documents:,} documents")
    return 0
