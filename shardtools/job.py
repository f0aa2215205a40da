"""A build that is ready to run: everything that it depends on has been looked at, nothing has been written."""

import functools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from shardtools.chat_making import ChatMaker
from shardtools.choosing import choose
from shardtools.corpus.inputs import discover
from shardtools.corpus.tasks import TaskPlan, plan_tasks
from shardtools.engines.local import one_thread
from shardtools.ledger import FOLDER, BuildPlan
from shardtools.makers import MakerRecipe
from shardtools.options import BuildRequest, fingerprint, without_rule
from shardtools.patience import PatientStore
from shardtools.progress import Progress
from shardtools.shuffle.order import Order
from shardtools.shuffle.payload import PayloadDecoder
from shardtools.stages.gather import Gather
from shardtools.stages.scatter import Scatter
from shardtools.text.tokenizer import TextTokenizer, TokenizerFile
from shardtools.worker import BuildWorker
from streampipe.errors import ConfigError
from streampipe.shards import Kind, Manifest, TokenDtype, token_dtype_for
from streampipe.storage import is_local_url, open_store


@dataclass(frozen=True)
class Job:
    """A build that is ready to run.

    Attributes:
        request: what was asked for, with the schema of the rows filled in.
        output: the folder to write.
        makers: makes what makes the documents.
        tokenizer: of the build.
        recorded: what the manifest says of the options.
        tasks: the slices of the input.
        identity: the hash of inputs, options and tokenizer; the manifest records it.
        work: the same but for the rules for bad rows: what a finished shard depends on.
        kind: of the source.
        origin_offset: how many inputs the manifest lists before those of this build.
    """

    request: BuildRequest
    output: PatientStore
    makers: MakerRecipe
    tokenizer: TextTokenizer
    recorded: Mapping[str, str | int | bool | None]
    tasks: TaskPlan
    identity: str
    work: str
    kind: Kind
    origin_offset: int = 0

    @property
    def plan(self) -> BuildPlan:
        """What marks the folder as belonging to this build."""
        splits = list(self.request.options.splits)
        return BuildPlan(fingerprint(self.work, self.origin_offset), splits, len(self.tasks.tasks))

    @property
    def order(self) -> Order:
        """The order of its documents: as many buckets as there are slices, so that shards are as large as asked for."""
        options = self.request.options
        return Order(options.shuffle, options.seed, max(len(self.tasks.tasks), 1))

    @property
    def token_dtype(self) -> TokenDtype:
        """How ids are stored."""
        return token_dtype_for(self.tokenizer.max_id)

    @property
    def chat_template_hash(self) -> str | None:
        """Of the chat template, if there is one."""
        return self.makers.template.hash if self.makers.template else None

    def joins(self, manifest: Manifest) -> bool:
        """Tell whether the build is one more split of a finished source: the same tokens, stored the same way."""
        return (
            not set(self.request.options.splits) & set(manifest.splits)
            and manifest.kind == self.kind
            and manifest.chat_template_hash == self.chat_template_hash
            and manifest.compression == self.request.options.compression
            and manifest.tokenizer == self.tokenizer.info()
        )

    def joining(self, manifest: Manifest) -> "Job":
        """Return this build as one more split of a source."""
        return replace(self, origin_offset=len(manifest.inputs))

    def recipe(self) -> "WorkerRecipe":
        """Return what makes the worker, in any process."""
        return WorkerRecipe(
            request=self.request,
            makers=self.makers,
            fingerprint=self.plan.fingerprint,
            order=self.order,
            decoder=PayloadDecoder(self.kind, self.token_dtype, self.tokenizer.separator),
            origin_offset=self.origin_offset,
        )

    def scratch(self) -> PatientStore:
        """Return where documents wait."""
        return open_scratch(self.request, self.plan.fingerprint)


@dataclass(frozen=True)
class WorkerRecipe:
    """Makes a `BuildWorker`; can be pickled, where a tokenizer should not be."""

    request: BuildRequest
    makers: MakerRecipe
    fingerprint: str
    order: Order
    decoder: PayloadDecoder
    origin_offset: int

    def __call__(self) -> BuildWorker:
        """Open the stores; the tokenizer is loaded once it is needed."""
        return BuildWorker(
            output=open_output(self.request),
            scratch=open_scratch(self.request, self.fingerprint),
            make_scatter=functools.cache(self._scatter),
            gather=Gather(self.request.options, self.decoder, self.origin_offset),
            on_bad_row=self.request.options.on_bad_row,
            fingerprint=self.fingerprint,
        )

    def _scatter(self) -> Scatter:
        options = self.request.options
        return Scatter(
            maker=self.makers(),
            order=self.order,
            held_out=options.held_out_rule,
            hashes=options.dedup == "exact",
            token_dtype=self.decoder.token_dtype,
            fingerprint=self.fingerprint,
        )


def open_output(request: BuildRequest) -> PatientStore:
    """Return the output folder."""
    return _patient(request, request.output)


def open_scratch(request: BuildRequest, fingerprint: str) -> PatientStore:
    """Return the folder in which documents wait."""
    return _patient(request, scratch_url(request, fingerprint))


def _patient(request: BuildRequest, url: str) -> PatientStore:
    """Return a folder; only servers are worth waiting for."""
    patience = 0.0 if is_local_url(url) else request.give_up_after
    return PatientStore(open_store(url, request.storage), patience)


def scratch_url(request: BuildRequest, fingerprint: str) -> str:
    """Return where documents wait: a folder of this build that a rerun finds again.

    Without --scratch that is inside the output, which all workers reach; for a bucket and workers of this machine, in
    the folder for temporary files.
    """
    name = f"shardtools-{fingerprint[:16]}"
    if request.scratch:
        return f"{request.scratch.rstrip('/')}/{name}"
    if is_local_url(request.output) or request.engine != "local":
        return f"{request.output.rstrip('/')}/{FOLDER}"
    return f"{tempfile.gettempdir()}/{name}"


def prepare(request: BuildRequest, progress: Progress) -> Job:
    """Look at everything that the build depends on.

    Raises:
        ConfigError: if the request cannot work.
        SourceError: if an input cannot be read.
    """
    request.options.check()
    _refuse_own_output(request)
    tokenizer_file = TokenizerFile.read(request.tokenizer, dict(request.storage))
    files = discover(request.inputs, request.options.include, request.storage)
    choice = choose(files, request.options, request.storage)
    if said := choice.in_words():
        progress.note(said)
    options, template = choice.options, None
    if choice.schema.kind != "text":
        template = options.chat.load_template(_folder(request.tokenizer), request.storage)
    file = tokenizer_file.with_special_tokens(options.add_special_tokens)
    makers = MakerRecipe(options, file, template, request.storage)
    tokenizer = makers.tokenizer()
    maker = makers(tokenizer)
    total = sum(file.bytes for file in files)
    progress.note(f"reading {len(files):,} input files ({total:,} bytes) once, for their hashes and where to cut them")
    with one_thread():
        tasks = plan_tasks(files, options.shard_tokens, maker.measure, request.storage, request.workers)
    inputs = [[scan.file.name, scan.file.kind, scan.file.bytes, scan.sha256] for scan in tasks.scans]
    recorded = options.recorded(tokenizer.eos, tokenizer.bos)
    if isinstance(maker, ChatMaker):
        recorded.update(options.chat.recorded(maker.renderer))
    known = msgspec.structs.asdict(tokenizer.info())
    return Job(
        request=replace(request, options=options),
        output=open_output(request),
        makers=makers,
        tokenizer=tokenizer,
        recorded=recorded,
        tasks=tasks,
        identity=fingerprint(inputs, recorded, known),
        work=fingerprint(inputs, without_rule(recorded), known),
        kind=maker.kind,
    )


def _folder(path: str) -> str:
    """Return the folder of a tokenizer."""
    folder, slash, _ = path.rpartition("/")
    return (folder or "/") if slash else "."


def _refuse_own_output(request: BuildRequest) -> None:
    if not is_local_url(request.output):
        return
    output = Path(open_store(request.output).url).resolve()
    for argument in request.inputs:
        if is_local_url(argument) and output.is_relative_to(Path(open_store(argument).url).resolve()):
            raise ConfigError(
                f"--output {request.output} is inside the input {argument}, so a second run would read the first one's "
                f"shards; choose a folder outside"
            )
