"""From files of text to a source: make every shard of a prepared job, write the manifest last."""

import time
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

from shardtools.corpus.origins import input_entries
from shardtools.engines.engine import Engine
from shardtools.engines.local import LocalEngine
from shardtools.job import Job, prepare
from shardtools.ledger import Seen, build_files, clear_ledger, write_plan
from shardtools.locks import locked
from shardtools.options import VALIDATION, BuildRequest
from shardtools.output import Output, missing_files
from shardtools.progress import Progress
from shardtools.publish import publish
from shardtools.scratch import Scratch
from shardtools.sequence import BuildSequence, Made
from streampipe.errors import StreampipeError
from streampipe.shards import MANIFEST_NAME, TOKENIZER_NAME, Manifest, ShardEntry
from streampipe.shards.manifest import MEMBERS_OF_KIND, BuildValue
from streampipe.storage import open_store

WORTH_A_PROCESS = 1 << 23
"""Fewer tokens than this are encoded sooner in this process, though it has threads, than in one that must start."""


@dataclass(frozen=True)
class BuildResult:
    """What a build made.

    Attributes:
        output: the folder.
        split: of the source.
        documents, tokens, shards, bytes: of the split.
        held_out: documents moved to the split for validation.
        skipped: rows left out or altered, by reason.
        kept_shards: shards that an earlier, killed run had made.
        already_built: whether there was nothing to do.
        seconds: of this run.
        tokens_per_second: made by this run.
    """

    output: str
    split: str
    documents: int
    tokens: int
    shards: int
    bytes: int
    held_out: int
    skipped: dict[str, int]
    kept_shards: int
    already_built: bool
    seconds: float
    tokens_per_second: float


def build(request: BuildRequest, progress: Progress) -> BuildResult:
    """Build one split of a source, and the held-out one if there is to be one.

    Raises:
        ConfigError: if the request cannot work, or the output holds something else.
        StreampipeError: naming the input, shard or store that failed. What was finished is kept for the next run.
    """
    started = time.monotonic()
    job = prepare(request, progress)
    with locked(open_store(request.output, request.storage), request.output) as hold:
        output = Output.look(job.output, overwrite=request.overwrite)
        if not request.overwrite and output.is_built(request.options.split, job.identity) and output.manifest:
            _tidy(job)
            return _result(request, output.manifest, started, None)
        base = output.manifest if output.manifest and job.joins(output.manifest) else None
        if base is not None:
            job = job.joining(base)
        output.make_room(job.plan, base, overwrite=request.overwrite)
        job.output.sweep()
        write_plan(job.output, job.plan)
        _keep_tokenizer(job)
        with open_engine(job) as engine:
            made = BuildSequence(job, engine, progress, Scratch(job.scratch(), job.plan.fingerprint)).run()
        manifest = _manifest(job, base, made)
        hold.check()
        manifest = publish(job.output, manifest, progress, replacing=base is not None)
        _tidy(job)
    return _result(request, manifest, started, made)


def open_engine(job: Job) -> AbstractContextManager[Engine]:
    """Return the engine that was asked for; what is in this process's memory stays in this process."""
    request = job.request
    if request.engine == "ray":
        from shardtools.engines.ray import RayEngine  # noqa: PLC0415

        return RayEngine(job.recipe(), request.workers, request.ray_address)
    in_memory = any(url.startswith("memory://") for url in (request.output, *request.inputs, request.scratch))
    tasks = job.tasks.tasks
    alone = request.workers == 1 or len(tasks) <= 1
    short = sum(task.tokens for task in tasks) < WORTH_A_PROCESS
    return LocalEngine(job.recipe(), request.workers, here=in_memory or (alone and short))


def _keep_tokenizer(job: Job) -> None:
    try:
        same = job.output.read(TOKENIZER_NAME) == job.makers.tokenizer_file.data
    except FileNotFoundError:
        same = False
    if not same:
        job.output.put(TOKENIZER_NAME, job.makers.tokenizer_file.data)


def _manifest(job: Job, base: Manifest | None, made: Made) -> Manifest:
    """Return what is to be published, once everything that it lists is there."""
    options = job.request.options
    counts = Counter(base.counts if base else {}) + Counter(made.seen.counts)
    entries: dict[str, list[ShardEntry]] = {split: [] for split in options.splits}
    histograms: dict[str, Counter[int]] = {split: Counter() for split in options.splits}
    for record in made.records:
        if record.entry is not None:
            entries[record.split].append(record.entry)
            histograms[record.split].update(dict(record.histogram))
    if not all(entries.values()):
        raise _no_documents(job, made.seen)
    recorded: BuildValue = {**job.recorded, "fingerprint": job.identity}
    manifest = Manifest(
        kind=job.kind,
        compression=options.compression,
        token_dtype=job.token_dtype,
        members=list(MEMBERS_OF_KIND[job.kind]),
        tokenizer=job.tokenizer.info(),
        chat_template_hash=job.chat_template_hash,
        splits={**(base.splits if base else {}), **entries},
        histogram={
            **(base.histogram if base else {}),
            **{split: sorted(histogram.items()) for split, histogram in histograms.items()},
        },
        counts=dict(sorted(counts.items())),
        inputs=[*(base.inputs if base else []), *input_entries(job.tasks.scans)],
        build={**(base.build if base else {}), **dict.fromkeys(options.splits, recorded)},
    )
    missing = missing_files(job.output, manifest, options.splits)
    if missing:
        raise StreampipeError(
            f"{job.output.url}: {missing[0]}, so no manifest is written; "
            f"something removed it during the build: run it again"
        )
    return manifest


def _no_documents(job: Job, seen: Seen) -> StreampipeError:
    """Leave nothing behind, and say why there was nothing to build."""
    _tidy(job)
    names = job.output.names()
    if MANIFEST_NAME not in names:
        for name in (*build_files(names), TOKENIZER_NAME):
            job.output.delete(name)
    reasons = ", ".join(f"{count} {reason}" for reason, count in seen.counts.items()) or "the input is empty"
    options = job.request.options
    cure = f"; the first row without {options.text_field!r} has {', '.join(seen.fields)}" if seen.fields else ""
    named = "--text-field" if job.kind == "text" else f"--schema (it is {options.schema})"
    return StreampipeError(
        f"there is no document in {len(job.tasks.scans)} input files ({reasons}){cure}; "
        f"check the input, {named} and --include"
    )


def _tidy(job: Job) -> None:
    Scratch(job.scratch(), job.plan.fingerprint).clear()
    clear_ledger(job.output)
    job.output.sweep()


def _result(request: BuildRequest, manifest: Manifest, started: float, made: Made | None) -> BuildResult:
    entries: list[ShardEntry] = manifest.splits[request.options.split]
    held_out = manifest.splits[VALIDATION] if request.options.validation else []
    seconds = time.monotonic() - started
    tokens = sum(entry.tokens for entry in entries)
    encoded = sum(entry.tokens for entry in (*entries, *held_out)) - made.kept_tokens if made else 0
    return BuildResult(
        output=request.output,
        split=request.options.split,
        documents=sum(entry.documents for entry in entries),
        tokens=tokens,
        shards=len(entries),
        bytes=sum(entry.bytes for entry in entries),
        held_out=sum(entry.documents for entry in held_out),
        skipped=dict(manifest.counts),
        kept_shards=made.kept if made else 0,
        already_built=made is None,
        seconds=round(seconds, 3),
        tokens_per_second=round(max(encoded, 0) / max(seconds, 1e-9), 1),
    )


def as_json(result: BuildResult) -> dict[str, object]:
    """Return the result as plain data."""
    return asdict(result)
