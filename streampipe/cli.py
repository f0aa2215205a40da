"""The `streampipe` command."""

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from streampipe.config import StreamConfig
from streampipe.config_file import config_from, load_config, parse_setting
from streampipe.cursor import read_cursor
from streampipe.errors import ConfigError, CursorMismatchError, StreampipeError
from streampipe.shards.source import Source
from streampipe.stream import open_stream
from streampipe.token_count import parse_tokens
from streampipe.tools.bench import BenchResult, bench, seconds_since_process_start
from streampipe.tools.digest import digest_launched, digest_steps
from streampipe.tools.plan_report import lines, page
from streampipe.tools.simulate import Simulation, simulate
from streampipe.tools.skip import skip_steps

_MOCK_KEYS = ("documents", "mean", "sigma", "min", "max", "lengths", "tokens_from")


def main(argv: list[str] | None = None) -> int:
    """Run a command; every error is one readable message and a non-zero exit."""
    imported = seconds_since_process_start()
    parser = _parser()
    args = parser.parse_args(argv)
    args.import_seconds = imported
    logging.basicConfig(
        level=logging.INFO if args.verbose else logging.WARNING, format="%(name)s: %(message)s", stream=sys.stderr
    )
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("streampipe: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever read the output has gone
        return 1
    except Exception as error:
        if args.debug:
            raise
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        kind = "" if isinstance(error, StreampipeError) else f"{type(error).__name__}: "
        print(f"streampipe: error: {kind}{error}{notes}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="streampipe", description="Feed LLM training from object storage.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object")
    common.add_argument("--debug", action="store_true", help="show tracebacks")
    common.add_argument("--verbose", action="store_true", help="show what the loader says at its start and as it goes")
    common.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, e.g. sources[0].weight=0.3"
    )
    common.add_argument(
        "--global-batch-size", type=int, metavar="G", help="overrides batch.global_batch_size and global_batch_tokens"
    )

    ranks = argparse.ArgumentParser(add_help=False)
    ranks.add_argument("--dp-size", type=int, metavar="D", help="data-parallel ranks")
    ranks.add_argument("--micro-batch-size", type=int, metavar="M", help="overrides batch.micro_batch_size")
    ranks.add_argument("--num-workers", type=int, metavar="W", help="overrides loader.num_workers")

    what = argparse.ArgumentParser(add_help=False)
    choice = what.add_mutually_exclusive_group(required=True)
    choice.add_argument("--config", metavar="FILE", help="a stream of real shards")
    choice.add_argument("--mock", action="store_true", help="lognormal lengths, no data")
    what.add_argument("--seq-length", type=int, metavar="L", help="overrides seq_length (default with --mock: 8192)")
    mock = what.add_argument_group("with --mock")
    mock.add_argument("--documents", type=float, metavar="N", help="about how many documents (default 1e6)")
    mock.add_argument("--mean", type=float, help="mean length before clipping, in tokens (default 1000)")
    mock.add_argument("--sigma", type=float, help="of the logarithm of the length (default 1.2)")
    mock.add_argument("--min", type=int, help="shortest length (default 1)")
    mock.add_argument("--max", type=int, help="longest length (default 65536)")
    mock.add_argument("--lengths", metavar="FILE", help="a file with one length a line, instead of a distribution")
    mock.add_argument("--tokens-from", metavar="URL", help="a source whose documents are cut to mock lengths")

    run = commands.add_parser("bench", parents=[common, ranks, what], help="measure how fast batches come")
    run.add_argument("--steps", type=int, default=200, help="steps to deliver (default 200)")
    run.add_argument("--at", type=float, default=0.0, metavar="PART", help="part of the epoch to start at, 0 to 1")
    run.set_defaults(run=_bench)

    plan = commands.add_parser("plan", parents=[common, ranks, what], help="simulate a run from indexes alone")
    how_long = plan.add_mutually_exclusive_group()
    how_long.add_argument("--steps", type=int, metavar="N", help="how many steps (default: one pass over everything)")
    how_long.add_argument("--tokens", metavar="T", help="how many tokens, such as 1T or 300B")
    plan.add_argument("--html", metavar="FILE", help="write the report as one page")
    plan.add_argument(
        "--export-order", metavar="FOLDER", help="write the order of each source's shards in its first epoch"
    )
    plan.set_defaults(run=_plan)

    skip = commands.add_parser("skip", parents=[common], help="move a cursor past steps without reading tokens")
    skip.add_argument("--config", required=True, metavar="FILE", help="the stream")
    skip.add_argument("--cursor", metavar="FILE", help="where to begin (default: the start of the run)")
    skip.add_argument("--steps", type=int, required=True, metavar="N", help="how many steps")
    skip.add_argument("--save-cursor", metavar="FILE", help="save the cursor there (default: back into --cursor)")
    skip.set_defaults(run=_skip)

    digest = commands.add_parser("digest", parents=[common, ranks], help="one SHA-256 a step over the global batch")
    digest.add_argument("--config", required=True, metavar="FILE", help="the stream")
    digest.add_argument("--steps", type=int, required=True, metavar="N", help="how many steps")
    digest.add_argument("--cursor", metavar="FILE", help="begin at a saved cursor")
    digest.add_argument("--save-cursor", metavar="FILE", help="save the cursor after the last step")
    digest.set_defaults(run=_digest)
    return parser


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    keys = {
        "seq_length": "seq_length",
        "micro_batch_size": "batch.micro_batch_size",
        "global_batch_size": "batch.global_batch_size",
        "num_workers": "loader.num_workers",
    }
    given = {key: value for name, key in keys.items() if (value := getattr(args, name, None)) is not None}
    if "batch.global_batch_size" in given:
        given["batch.global_batch_tokens"] = None
    return given | dict(parse_setting(text) for text in args.set)


def _dp_size(args: argparse.Namespace) -> int:
    if args.dp_size is not None and args.dp_size < 1:
        raise ConfigError(f"--dp-size: must be at least 1, but got {args.dp_size}")
    return args.dp_size or 1


def _bench(args: argparse.Namespace) -> int:
    if args.steps < 1:
        raise ConfigError(f"--steps: must be at least 1, but got {args.steps}")
    config = _config(args)
    result = bench(config, args.steps, dp_size=_dp_size(args), at=args.at, import_seconds=args.import_seconds)
    print(json.dumps(result.to_dict()) if args.json else _table(result))
    return 0


def _config(args: argparse.Namespace) -> StreamConfig:
    """Return what `--config` or `--mock` asks for.

    Raises:
        ConfigError: for options of a mock beside a config.
    """
    mock = {key: value for key in _MOCK_KEYS if (value := getattr(args, key)) is not None}
    overrides = _overrides(args)
    if not args.mock:
        if mock:
            option = next(iter(mock)).replace("_", "-")
            raise ConfigError(f"--{option}: is for --mock, but {args.config} describes its own sources; remove it")
        return load_config(args.config, overrides)
    if "documents" in mock:
        mock["documents"] = int(mock["documents"])
    # A step of one micro batch for each rank, unless told otherwise.
    size = overrides.setdefault("batch.micro_batch_size", 1)
    if overrides.get("batch.global_batch_tokens") is None:
        overrides.setdefault("batch.global_batch_size", size * _dp_size(args))
    return config_from({"seq_length": 8192, "sources": [{"name": "mock", "mock": mock}]}, overrides)


def _table(result: BenchResult) -> str:
    rows = [
        ("tokens per second", f"{result.tokens_per_second:,.0f}"),
        ("CPU seconds per 10^9 tokens", f"{result.cpu_seconds_per_billion_tokens:.2f}"),
        ("padding", f"{result.padding:.3%}"),
        ("time to first batch", f"{result.time_to_first_batch * 1e3:.0f} ms  (imports {result.import_seconds:.2f} s)"),
        ("wait for a batch, p50 / p99", f"{result.wait_p50 * 1e3:.3f} / {result.wait_p99 * 1e3:.3f} ms"),
        ("planning a document", f"{result.planning_microseconds_per_document:.2f} µs"),
        (
            "peak memory",
            f"{result.peak_rss_bytes / 2**20:.0f} MiB  (grew by {result.rss_growth_bytes / 2**20:.0f} MiB)",
        ),
    ]
    if result.decode_share is not None:
        rows.append(
            (
                "share of bare zstd decoding",
                f"{result.decode_share:.1%}  (of {result.bare_decode_tokens_per_second:,.0f} tokens/s kept in memory; "
                f"{result.decode_share_discarding or 0:.1%} if they are thrown away)",
            )
        )
    rows.append(("delivered", f"{result.batches:,} batches, {result.tokens:,} tokens"))
    return "\n".join(f"{name:<30} {value}" for name, value in rows)


def _digest(args: argparse.Namespace) -> int:
    if args.steps < 1:
        raise ConfigError(f"--steps: must be at least 1, but got {args.steps}")
    config = load_config(args.config, _overrides(args))
    cursor = _read_state(args.cursor) if args.cursor else None
    if args.dp_size is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        digests = list(digest_launched(config, args.steps, cursor))
        if int(os.environ.get("RANK", "0")):
            return 0
    else:
        digests = list(digest_steps(config, args.steps, _dp_size(args), cursor))
    if args.save_cursor and digests:
        Path(args.save_cursor).write_text(json.dumps(digests[-1]["cursor"], sort_keys=True, separators=(",", ":")))
    if args.json:
        print(json.dumps({"steps": [{"step": d["step"], "sha256": d["sha256"]} for d in digests]}))
    else:
        print("\n".join(f"{d['step']:>8} {d['sha256']}" for d in digests))
    return 0


def _plan(args: argparse.Namespace) -> int:
    config = _config(args)
    if args.steps is not None and args.steps < 1:
        raise ConfigError(f"--steps: must be at least 1, but got {args.steps}")
    tokens = parse_tokens(args.tokens, "--tokens") if args.tokens is not None else None
    if args.export_order:
        _export_order(config, Path(args.export_order))
    began = time.monotonic()

    def show(found: Simulation) -> None:
        if sys.stderr.isatty():
            rate = found.documents / max(1e-9, time.monotonic() - began)
            text = f"{found.steps:,} steps, {found.tokens:,} tokens, {rate:,.0f} documents/s"
            print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)

    found = simulate(config, dp_size=_dp_size(args), steps=args.steps, tokens=tokens, progress=show)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if args.html:
        Path(args.html).write_text(page(found, f"streampipe plan: {args.config or 'mock'}, {_dp_size(args)} ranks"))
    print(json.dumps(found.to_dict()) if args.json else "\n".join(lines(found)))
    return 0


def _export_order(config: StreamConfig, folder: Path) -> None:
    stream = open_stream(config)
    folder.mkdir(parents=True, exist_ok=True)
    for source, axis in zip(stream.sources, stream.planner.axes, strict=True):
        if isinstance(source, Source):
            paths = [source.shards[shard].path for shard in axis.shard_order(0).tolist()]
            (folder / f"{source.name}.txt").write_text("".join(f"{path}\n" for path in paths))


def _skip(args: argparse.Namespace) -> int:
    config = load_config(args.config, _overrides(args))
    target = args.save_cursor or args.cursor
    if target is None:
        raise ConfigError("--save-cursor: say where the new cursor goes; there is no --cursor to put it back into")
    cursor = read_cursor(_read_state(args.cursor)) if args.cursor else open_stream(config).start()
    moved = skip_steps(config, cursor, args.steps)
    Path(target).write_bytes(moved.to_json())
    told = {"step": moved.step, "sequences": moved.sequences, "round": moved.round, "offset": moved.offset}
    print(json.dumps(told) if args.json else f"{target}: step {moved.step}, after {args.steps} steps that were skipped")
    return 0


def _read_state(path: str) -> dict[str, Any]:
    try:
        state = json.loads(Path(path).read_text())
    except OSError as error:
        raise CursorMismatchError(f"{path}: cannot read the cursor ({error.strerror})") from error
    except ValueError as error:
        raise CursorMismatchError(
            f"{path}: not a cursor, it is not JSON ({error}); give a file that --save-cursor wrote"
        ) from error
    if not isinstance(state, dict):
        raise CursorMismatchError(
            f"{path}: not a cursor, it holds {type(state).__name__}; give a file that --save-cursor wrote"
        )
    return state


if __name__ == "__main__":
    sys.exit(main())
