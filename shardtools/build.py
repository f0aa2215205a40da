"""From files of text to a source: make every shard of a prepared job, write the manifest last."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from shardtools.corpus.origins import input_entries
from shardtools.engines.board import Board
from shardtools.engines.local import run_tasks
from shardtools.job import Job, prepare
from shardtools.ledger import TaskRecord, clear_ledger, finished_tasks, locked, write_plan
from shardtools.options import BuildRequest
from shardtools.output import Output, missing_files
from shardtools.progress import SLOW_SECONDS, Progress
from streampipe.errors import StreampipeError
from streampipe.shards import MANIFEST_NAME, Manifest, ShardEntry, token_dtype_for, write_manifest
from streampipe.storage import Store

TOKENIZER_NAME = "tokenizer.json"


@dataclass(frozen=True)
class BuildResult:
    """What a build made.

    Attributes:
        output: the folder.
        split: of the source.
        documents, tokens, shards, bytes: of the split.
        skipped: rows left out, by reason.
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
    skipped: dict[str, int]
    kept_shards: int
    already_built: bool
    seconds: float
    tokens_per_second: float


def build(request: BuildRequest, progress: Progress) -> BuildResult:
    """Build one split of a source.

    Raises:
        ConfigError: if the request cannot work, or the output holds something else.
        StreampipeError: naming the input, shard or store that failed. What was finished is kept for the next run.
    """
    started = time.monotonic()
    job = prepare(request, progress)
    with locked(job.store, request.output):
        output = Output.look(job.store, overwrite=request.overwrite)
        if not request.overwrite and output.is_built(request.options.split, job.identity) and output.manifest:
            _tidy(job.store)
            return _result(request, output.manifest, started, [], already_built=True)
        base = output.manifest if output.manifest and job.joins(output.manifest) else None
        if base is not None:
            job = job.joining(base)
        output.make_room(job.plan, base, overwrite=request.overwrite)
        job.store.sweep()
        write_plan(job.store, job.plan)
        _keep_tokenizer(job)
        kept = finished_tasks(job.store, job.plan, bad_rows=request.options.on_bad_row == "count")
        records = [*kept.values(), *_run(job, set(kept), progress)]
        manifest = _finish(job, base, sorted(records, key=lambda record: record.number))
        _tidy(job.store)
    return _result(request, manifest, started, list(kept.values()), already_built=False)


def _keep_tokenizer(job: Job) -> None:
    try:
        same = job.store.read(TOKENIZER_NAME) == job.tokenizer_file.data
    except FileNotFoundError:
        same = False
    if not same:
        job.store.write(TOKENIZER_NAME, job.tokenizer_file.data)


def _run(job: Job, kept: set[int], progress: Progress) -> list[TaskRecord]:
    """Run what is not done yet and return its records."""
    todo = [task for task in job.tasks.tasks if task.number not in kept]
    if kept:
        progress.note(f"going on: {len(kept)} of {len(job.tasks.tasks)} shards are there from an earlier run")
    records: list[TaskRecord] = []

    def report(board: Board, ended: list[TaskRecord]) -> None:
        records.extend(ended)
        progress.update(*board.totals(), board.slow(SLOW_SECONDS))

    progress.start(sum(task.tokens for task in todo))
    in_memory = any(url.startswith("memory://") for url in (job.request.output, *job.request.inputs))
    run_tasks(todo, job.writer_recipe(), 1 if in_memory else job.request.workers, report)
    documents = sum(record.entry.documents for record in records if record.entry)
    progress.finish(documents, sum(record.entry.tokens for record in records if record.entry))
    for example in [example for record in records for example in record.examples][:20]:
        progress.note(f"left out: {example}")
    return records


def _finish(job: Job, base: Manifest | None, records: Sequence[TaskRecord]) -> Manifest:
    """Write the manifest, once everything that it lists is there."""
    options = job.request.options
    entries = [record.entry for record in records if record.entry is not None]
    counts: Counter[str] = Counter(base.counts if base else {})
    histogram: Counter[int] = Counter()
    for record in records:
        counts.update(record.counts)
        histogram.update(dict(record.histogram))
    if not entries:
        raise _no_documents(job, records, counts)
    manifest = Manifest(
        kind="text",
        compression=options.compression,
        token_dtype=token_dtype_for(job.tokenizer.max_id),
        members=["tokens"],
        tokenizer=job.tokenizer.info(),
        splits={**(base.splits if base else {}), options.split: entries},
        histogram={**(base.histogram if base else {}), options.split: sorted(histogram.items())},
        counts=dict(sorted(counts.items())),
        inputs=[*(base.inputs if base else []), *input_entries(job.tasks.scans)],
        build={
            **(base.build if base else {}),
            options.split: {
                **options.recorded(job.tokenizer.eos, job.tokenizer.bos),
                "fingerprint": job.identity,
            },
        },
    )
    missing = missing_files(job.store, manifest, options.split)
    if missing:
        raise StreampipeError(
            f"{job.store.url}: {missing[0]}, so no manifest is written; "
            f"something removed it during the build: run it again"
        )
    return write_manifest(job.store, manifest)


def _no_documents(job: Job, records: Sequence[TaskRecord], counts: Counter[str]) -> StreampipeError:
    """Leave nothing behind, and say why there was nothing to build."""
    clear_ledger(job.store)
    if MANIFEST_NAME not in job.store.names():
        job.store.delete(TOKENIZER_NAME)
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items())) or "the input is empty"
    fields = next((record.fields for record in records if record.fields), [])
    cure = f"; the first row without {job.request.options.text_field!r} has {', '.join(fields)}" if fields else ""
    return StreampipeError(
        f"there is no document in {len(job.tasks.scans)} input files ({reasons}){cure}; "
        f"check the input, --text-field and --include"
    )


def _tidy(store: Store) -> None:
    clear_ledger(store)
    store.sweep()


def _result(
    request: BuildRequest, manifest: Manifest, started: float, kept: Sequence[TaskRecord], *, already_built: bool
) -> BuildResult:
    entries: list[ShardEntry] = manifest.splits[request.options.split]
    seconds = time.monotonic() - started
    tokens = sum(entry.tokens for entry in entries)
    made = 0 if already_built else tokens - sum(record.entry.tokens for record in kept if record.entry)
    return BuildResult(
        output=request.output,
        split=request.options.split,
        documents=sum(entry.documents for entry in entries),
        tokens=tokens,
        shards=len(entries),
        bytes=sum(entry.bytes for entry in entries),
        skipped=dict(manifest.counts),
        kept_shards=sum(record.entry is not None for record in kept),
        already_built=already_built,
        seconds=round(seconds, 3),
        tokens_per_second=round(made / max(seconds, 1e-9), 1),
    )


def as_json(result: BuildResult) -> dict[str, object]:
    """Return the result as plain data."""
    return asdict(result)
