"""The `streampipe` command."""

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from streampipe.config import StreamConfig, config_from, load_config, parse_setting
from streampipe.errors import ConfigError, CursorMismatchError, StreampipeError
from streampipe.tools.bench import BenchResult, bench, seconds_since_process_start
from streampipe.tools.digest import digest_launched, digest_steps


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
    common.add_argument("--dp-size", type=int, metavar="D", help="data-parallel ranks")
    common.add_argument("--micro-batch-size", type=int, metavar="M", help="overrides batch.micro_batch_size")
    common.add_argument("--global-batch-size", type=int, metavar="G", help="overrides batch.global_batch_size")
    common.add_argument("--num-workers", type=int, metavar="W", help="overrides loader.num_workers")

    run = commands.add_parser("bench", parents=[common], help="measure how fast batches come")
    what = run.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="FILE", help="a stream of real shards")
    what.add_argument("--mock", action="store_true", help="lognormal lengths, no data")
    run.add_argument("--steps", type=int, default=200, help="steps to deliver (default 200)")
    run.add_argument("--at", type=float, default=0.0, metavar="PART", help="part of the epoch to start at, 0 to 1")
    mock = run.add_argument_group("with --mock")
    mock.add_argument(
        "--documents", type=float, default=1e6, metavar="N", help="about how many documents (default 1e6)"
    )
    mock.add_argument("--seq-length", type=int, default=8192, metavar="L", help="(default 8192)")
    mock.add_argument(
        "--mean", type=float, default=1000.0, help="mean length before clipping, in tokens (default 1000)"
    )
    mock.add_argument("--sigma", type=float, default=1.2, help="of the logarithm of the length (default 1.2)")
    mock.add_argument("--min", type=int, default=1, help="shortest length (default 1)")
    mock.add_argument("--max", type=int, default=65_536, help="longest length (default 65536)")
    mock.add_argument("--lengths", metavar="FILE", help="a file with one length a line, instead of a distribution")
    mock.add_argument("--tokens-from", metavar="URL", help="a source whose documents are cut to mock lengths")
    run.set_defaults(run=_bench)

    digest = commands.add_parser("digest", parents=[common], help="one SHA-256 a step over the global batch")
    digest.add_argument("--config", required=True, metavar="FILE", help="the stream")
    digest.add_argument("--steps", type=int, required=True, metavar="N", help="how many steps")
    digest.add_argument("--cursor", metavar="FILE", help="begin at a saved cursor")
    digest.add_argument("--save-cursor", metavar="FILE", help="save the cursor after the last step")
    digest.set_defaults(run=_digest)
    return parser


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    named = {
        "batch.micro_batch_size": args.micro_batch_size,
        "batch.global_batch_size": args.global_batch_size,
        "loader.num_workers": args.num_workers,
    }
    return {key: value for key, value in named.items() if value is not None} | dict(
        parse_setting(text) for text in args.set
    )


def _dp_size(args: argparse.Namespace) -> int:
    if args.dp_size is not None and args.dp_size < 1:
        raise ConfigError(f"--dp-size: must be at least 1, but got {args.dp_size}")
    return args.dp_size or 1


def _bench(args: argparse.Namespace) -> int:
    if args.steps < 1:
        raise ConfigError(f"--steps: must be at least 1, but got {args.steps}")
    config = _mock_config(args) if args.mock else load_config(args.config, _overrides(args))
    result = bench(config, args.steps, dp_size=_dp_size(args), at=args.at, import_seconds=args.import_seconds)
    print(json.dumps(result.to_dict()) if args.json else _table(result))
    return 0


def _mock_config(args: argparse.Namespace) -> StreamConfig:
    keys = ("mean", "sigma", "min", "max", "lengths", "tokens_from")
    mock = {key: getattr(args, key) for key in keys} | {"documents": int(args.documents)}
    overrides = _overrides(args)
    # A step of one micro batch for each rank, unless told otherwise.
    size = overrides.setdefault("batch.micro_batch_size", 1)
    overrides.setdefault("batch.global_batch_size", size * _dp_size(args))
    return config_from({"seq_length": args.seq_length, "sources": [{"name": "mock", "mock": mock}]}, overrides)


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
                f"{result.decode_share:.1%}  (of {result.bare_decode_tokens_per_second:,.0f} tokens/s)",
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
