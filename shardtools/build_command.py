"""`shardtools build`: its arguments, and what it prints."""

import argparse
import json
from typing import Any

from shardtools.arguments import add_inputs, cores, positive, storage_options
from shardtools.chat_arguments import add_chats, chat_options
from streampipe.errors import ConfigError


def add_build(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command."""
    command = commands.add_parser(
        "build", parents=[shared], help="make a source of shards from texts, conversations or pairs"
    )
    add_inputs(command)
    command.add_argument("--tokenizer", required=True, metavar="FILE", help="a tokenizer.json")
    command.add_argument("--output", required=True, metavar="URL", help="the folder to write: a path or fsspec URL")
    command.add_argument("--name", default="", help="recorded in the manifest")
    command.add_argument("--split", default="train", help="which split to build (train)")
    _add_order(command)
    _add_content(command)
    add_chats(command)
    _add_shards(command)
    _add_running(command)
    command.set_defaults(run=_build)


def _add_order(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--shuffle",
        choices=("global", "shard", "none"),
        default="global",
        help="documents over the whole corpus, only inside each shard, or not at all (global)",
    )
    command.add_argument("--seed", type=int, default=0, help="of the order of documents (0)")
    command.add_argument(
        "--validation",
        default="",
        metavar="SHARE",
        help="move this share (1%%) or count of the documents, chosen by content, to the split 'validation' (none)",
    )
    command.add_argument(
        "--validation-min", type=positive, metavar="N", help="with --validation: move at least so many documents (1)"
    )


def _add_content(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--overlong",
        default="keep",
        metavar="RULE",
        help="for documents of more than N tokens: keep, truncate:N or drop:N; counted (keep)",
    )
    command.add_argument(
        "--normalize",
        default="",
        metavar="STEPS",
        help="change texts, by control (no control characters), nfc (Unicode form C), whitespace (runs become one "
        "space, lines end with none); in the order given, separated by commas; counted (none)",
    )
    command.add_argument(
        "--dedup", choices=("none", "exact"), default="none", help="exact: keep the first of equal texts (none)"
    )
    command.add_argument(
        "--max-bad-rows",
        default="",
        metavar="SHARE",
        help="with --on-bad-row count: fail if more than this share (1%%) or count of the rows is bad (no limit)",
    )
    command.add_argument(
        "--add-special-tokens",
        default="",
        metavar="A,B",
        help="add these to the tokenizer, and save it so with the source (none)",
    )
    command.add_argument(
        "--fragments-at",
        default="",
        metavar="TOKEN",
        help="separates the parts of a text, such as the files of a repository (<file_sep>): encoded as one token, and "
        "its places are recorded for fill-in-the-middle of each part (none)",
    )
    eos = command.add_mutually_exclusive_group()
    eos.add_argument("--eos", metavar="TOKEN", help="ends each document (the tokenizer's own end token)")
    eos.add_argument("--no-eos", action="store_true", help="end documents with nothing")
    bos = command.add_mutually_exclusive_group()
    bos.add_argument("--bos", metavar="TOKEN", help="begins each document (none)")
    bos.add_argument("--no-bos", action="store_true", help="begin documents with nothing (the default)")


def _add_shards(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--frame-tokens",
        type=positive,
        default=65_536,
        metavar="N",
        help="tokens a frame, those of a shard at most (65536)",
    )
    command.add_argument(
        "--shard-tokens", type=positive, default=1 << 26, metavar="N", help="tokens a shard (67108864)"
    )
    command.add_argument("--compression", choices=("zstd", "none"), default="zstd", help="of frames (zstd)")
    command.add_argument("--level", type=int, default=3, help="of zstd (3)")


def _add_running(command: argparse.ArgumentParser) -> None:
    command.add_argument("--overwrite", action="store_true", help="remove another build that is in the output folder")
    command.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="processes here, or a Ray cluster (local)"
    )
    command.add_argument("--workers", type=positive, default=None, metavar="N", help="processes (one a core)")
    command.add_argument(
        "--ray-address",
        default="",
        metavar="ADDRESS",
        help="of a Ray cluster, 'auto' for the one of this machine (start one here)",
    )
    command.add_argument(
        "--scratch",
        default="",
        metavar="DIR",
        help="folder for documents that wait for their place, as large as the tokens of the corpus (in the output; "
        "for a bucket, the folder for temporary files)",
    )
    command.add_argument(
        "--give-up-after",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="go on trying so long while the bucket of the output, or of --scratch, fails (60)",
    )


def _build(arguments: argparse.Namespace) -> int:
    from shardtools.build import BuildResult, as_json, build  # noqa: PLC0415
    from shardtools.making import SEPARATED  # noqa: PLC0415
    from shardtools.progress import Progress  # noqa: PLC0415

    with Progress() as progress:
        result: BuildResult = build(_request(arguments), progress)
    if arguments.json:
        print(json.dumps(as_json(result)))
        return 0
    what = f"{result.documents:,} documents, {result.tokens:,} tokens, {result.shards:,} shards, {result.bytes:,} bytes"
    if result.held_out:
        what += f", {result.held_out:,} documents for validation"
    if result.already_built:
        print(f"{result.output}: already built: {what}")
        return 0
    print(f"{result.output}: {what}; {result.tokens_per_second:,.0f} tokens/s")
    separated = result.skipped.pop(SEPARATED, 0)
    if result.skipped:
        print(f"left out or altered: {', '.join(f'{count:,} {reason}' for reason, count in result.skipped.items())}")
    if separated:
        print(f"{arguments.fragments_at} stands in {separated:,} texts")
    elif arguments.fragments_at:
        print(f"warning: {arguments.fragments_at} stands in no text, so fill-in-the-middle would split none")
    return 0


def _request(arguments: argparse.Namespace) -> Any:
    from shardtools.options import BuildOptions, BuildRequest  # noqa: PLC0415

    options = BuildOptions(
        name=arguments.name,
        split=arguments.split,
        schema=arguments.schema,
        text_field=arguments.text_field,
        chat=chat_options(arguments),
        add_special_tokens=tuple(arguments.add_special_tokens.split(",")) if arguments.add_special_tokens else (),
        fragments_at=arguments.fragments_at,
        include=tuple(arguments.include),
        frame_tokens=min(arguments.frame_tokens, arguments.shard_tokens),
        shard_tokens=arguments.shard_tokens,
        seed=arguments.seed,
        shuffle=arguments.shuffle,
        validation=arguments.validation,
        validation_min=arguments.validation_min or 1,
        overlong=arguments.overlong,
        normalize=tuple(arguments.normalize.split(",")) if arguments.normalize else (),
        dedup=arguments.dedup,
        eos="" if arguments.no_eos else arguments.eos,
        bos=arguments.bos or "",
        compression=arguments.compression,
        level=arguments.level,
        on_bad_row=arguments.on_bad_row,
        max_bad_rows=arguments.max_bad_rows,
    )
    _refuse_ignored(arguments)
    return BuildRequest(
        inputs=tuple(arguments.inputs),
        tokenizer=arguments.tokenizer,
        output=arguments.output,
        options=options,
        workers=arguments.workers or cores(),
        overwrite=arguments.overwrite,
        storage=storage_options(arguments.storage_option),
        engine=arguments.engine,
        ray_address=arguments.ray_address,
        scratch=arguments.scratch,
        give_up_after=arguments.give_up_after,
    )


def _refuse_ignored(arguments: argparse.Namespace) -> None:
    """Refuse options that were given and would change nothing.

    A seed, a level, sizes and scratch, which scripts always give, may be given.

    Raises:
        ConfigError: naming the first.
    """
    if not arguments.give_up_after >= 0:  # nor is NaN, which would never give up
        raise ConfigError(f"--give-up-after must be at least 0 seconds, but got {arguments.give_up_after:g}")
    ignored = (
        (
            arguments.validation_min is not None and not arguments.validation,
            "--validation-min has no meaning without --validation; give that a share, too",
        ),
        (
            arguments.ray_address and arguments.engine != "ray",
            f"--ray-address has no meaning with --engine {arguments.engine}; use --engine ray",
        ),
    )
    for is_ignored, why in ignored:
        if is_ignored:
            raise ConfigError(f"{why}, or leave it out")
