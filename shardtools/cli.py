"""The command line of shardtools: reads arguments, calls one function a command, turns errors into one line.

Each command imports what it needs when it runs: `--help` loads neither tokenizers nor rich.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

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
        if arguments.debug or error.name not in ("tokenizers", "rich"):
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
    _add_build(commands, shared)
    _add_verify(commands, shared)
    _add_stats(commands, shared)
    _add_train_tokenizer(commands, shared)
    return parser


def _add_inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="JSONL (.jsonl, .ndjson, .json; plain, .gz, .zst), Parquet, text or code files, folders, quoted globs, "
        "or fsspec URLs of any of them",
    )
    command.add_argument("--text-field", default="text", metavar="NAME", help="where the text is in a row (text)")
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


def _add_build(commands: Any, shared: argparse.ArgumentParser) -> None:
    command = commands.add_parser("build", parents=[shared], help="make a source of shards from text")
    _add_inputs(command)
    command.add_argument("--tokenizer", required=True, metavar="FILE", help="a tokenizer.json")
    command.add_argument("--output", required=True, metavar="URL", help="the folder to write: a path or fsspec URL")
    command.add_argument("--name", default="", help="recorded in the manifest")
    command.add_argument("--split", default="train", help="which split to build (train)")
    command.add_argument("--seed", type=int, default=0, help="of the order of documents inside a shard (0)")
    command.add_argument("--workers", type=_positive, default=None, metavar="N", help="processes (one a core)")
    command.add_argument("--frame-tokens", type=_positive, default=65_536, metavar="N", help="tokens a frame (65536)")
    command.add_argument(
        "--shard-tokens", type=_positive, default=1 << 26, metavar="N", help="tokens a shard (67108864)"
    )
    eos = command.add_mutually_exclusive_group()
    eos.add_argument("--eos", metavar="TOKEN", help="ends each document (the tokenizer's own end token)")
    eos.add_argument("--no-eos", action="store_true", help="end documents with nothing")
    bos = command.add_mutually_exclusive_group()
    bos.add_argument("--bos", metavar="TOKEN", help="begins each document (none)")
    bos.add_argument("--no-bos", action="store_true", help="begin documents with nothing (the default)")
    command.add_argument("--compression", choices=("zstd", "none"), default="zstd", help="of frames (zstd)")
    command.add_argument("--level", type=int, default=3, help="of zstd (3)")
    command.add_argument("--overwrite", action="store_true", help="remove another build that is in the output folder")
    command.set_defaults(run=_build)


def _add_verify(commands: Any, shared: argparse.ArgumentParser) -> None:
    command = commands.add_parser("verify", parents=[shared], help="read a source back and name every fault")
    command.add_argument("url", metavar="URL", help="the folder of a source")
    command.set_defaults(run=_verify)


def _add_stats(commands: Any, shared: argparse.ArgumentParser) -> None:
    command = commands.add_parser("stats", parents=[shared], help="say what a source holds and how it will pack")
    command.add_argument("url", metavar="URL", help="the folder of a source")
    command.add_argument("--split", default=None, help="only this split (all)")
    command.add_argument(
        "--seq-length",
        type=_positive,
        nargs="+",
        default=[2048, 4096, 8192, 32768],
        metavar="N",
        help="sequence lengths to forecast the padding for (2048 4096 8192 32768)",
    )
    command.set_defaults(run=_stats)


def _add_train_tokenizer(commands: Any, shared: argparse.ArgumentParser) -> None:
    command = commands.add_parser("train-tokenizer", parents=[shared], help="train a byte-level BPE tokenizer")
    _add_inputs(command)
    command.add_argument(
        "--vocab-size", type=_positive, required=True, metavar="N", help="tokens, special ones included"
    )
    command.add_argument("--output", required=True, metavar="FILE", help="the tokenizer.json to write")
    command.add_argument(
        "--special-tokens", default="", metavar="A,B", help="besides <|endoftext|>, which is always there"
    )
    command.add_argument("--overwrite", action="store_true", help="replace another tokenizer of that name")
    command.set_defaults(run=_train_tokenizer)


def _build(arguments: Arguments) -> int:
    from shardtools.build import as_json, build  # noqa: PLC0415
    from shardtools.options import BuildOptions, BuildRequest  # noqa: PLC0415
    from shardtools.progress import Progress  # noqa: PLC0415

    options = BuildOptions(
        name=arguments.name,
        split=arguments.split,
        text_field=arguments.text_field,
        include=tuple(arguments.include),
        frame_tokens=min(arguments.frame_tokens, arguments.shard_tokens),
        shard_tokens=arguments.shard_tokens,
        seed=arguments.seed,
        eos="" if arguments.no_eos else arguments.eos,
        bos=arguments.bos or "",
        compression=arguments.compression,
        level=arguments.level,
        on_bad_row=arguments.on_bad_row,
    )
    request = BuildRequest(
        inputs=tuple(arguments.inputs),
        tokenizer=arguments.tokenizer,
        output=arguments.output,
        options=options,
        workers=arguments.workers or _cores(),
        overwrite=arguments.overwrite,
        storage=storage_options(arguments.storage_option),
    )
    with Progress() as progress:
        result = build(request, progress)
    if arguments.json:
        print(json.dumps(as_json(result)))
        return 0
    what = f"{result.documents:,} documents, {result.tokens:,} tokens, {result.shards:,} shards, {result.bytes:,} bytes"
    if result.already_built:
        print(f"{result.output}: already built: {what}")
        return 0
    print(f"{result.output}: {what}; {result.tokens_per_second:,.0f} tokens/s")
    if result.skipped:
        print(f"left out: {', '.join(f'{count:,} {reason}' for reason, count in result.skipped.items())}")
    return 0


def _verify(arguments: Arguments) -> int:
    from shardtools.verify import verify  # noqa: PLC0415

    report = verify(arguments.url, storage_options(arguments.storage_option), say=None if arguments.json else print)
    if arguments.json:
        print(json.dumps(report.as_json()))
    elif not report.faults:
        print(
            f"{arguments.url}: sound: {report.documents:,} documents, {report.tokens:,} tokens, "
            f"{report.shards:,} shards, splits {', '.join(report.splits)}"
        )
    return EXIT_FAULT if report.faults else 0


def _stats(arguments: Arguments) -> int:
    from shardtools.stats import measure  # noqa: PLC0415

    stats = measure(
        arguments.url, tuple(arguments.seq_length), arguments.split, storage_options(arguments.storage_option)
    )
    if arguments.json:
        print(json.dumps(stats.as_json()))
        return 0
    from shardtools.tables import show  # noqa: PLC0415

    show(stats)
    return 0


def _train_tokenizer(arguments: Arguments) -> int:
    from shardtools.text.training import TrainingRequest, train_tokenizer  # noqa: PLC0415

    request = TrainingRequest(
        inputs=tuple(arguments.inputs),
        output=arguments.output,
        vocab_size=arguments.vocab_size,
        special_tokens=tuple(token for token in arguments.special_tokens.split(",") if token),
        text_field=arguments.text_field,
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


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but got {number}")
    return number


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
