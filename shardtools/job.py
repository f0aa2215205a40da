"""A build that is ready to run: everything that it depends on has been looked at, nothing has been written."""

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from shardtools.corpus.fields import FieldPath
from shardtools.corpus.inputs import discover
from shardtools.corpus.tasks import TaskPlan, plan_tasks
from shardtools.corpus.texts import TextReader
from shardtools.engines.local import one_thread
from shardtools.ledger import BuildPlan
from shardtools.options import BuildRequest, fingerprint, without_rule
from shardtools.progress import Progress
from shardtools.text.tokenizer import TextTokenizer, TokenizerFile
from shardtools.writer import TaskWriter
from streampipe.errors import ConfigError
from streampipe.shards import Manifest
from streampipe.storage import Store, is_local_url, open_store


@dataclass(frozen=True)
class Job:
    """A build that is ready to run.

    Attributes:
        request: what was asked for.
        store: the output.
        tokenizer_file: as it was read.
        tokenizer: made of it.
        tasks: the work.
        identity: the hash of inputs, options and tokenizer; the manifest records it.
        work: the same but for the rule for bad rows: what a finished shard depends on.
        origin_offset: how many inputs the manifest lists before those of this build.
    """

    request: BuildRequest
    store: Store
    tokenizer_file: TokenizerFile
    tokenizer: TextTokenizer
    tasks: TaskPlan
    identity: str
    work: str
    origin_offset: int = 0

    @property
    def plan(self) -> BuildPlan:
        """What marks the folder as belonging to this build."""
        return BuildPlan(fingerprint(self.work, self.origin_offset), self.request.options.split, len(self.tasks.tasks))

    def joins(self, manifest: Manifest) -> bool:
        """Tell whether the build is one more split of a finished source: the same tokens, stored the same way."""
        return (
            self.request.options.split not in manifest.splits
            and manifest.kind == "text"
            and manifest.compression == self.request.options.compression
            and manifest.tokenizer == self.tokenizer.info()
        )

    def joining(self, manifest: Manifest) -> "Job":
        """Return this build as one more split of a source."""
        return replace(self, origin_offset=len(manifest.inputs))

    def writer_recipe(self) -> "WriterRecipe":
        """Return what makes the writer of shards, in any process."""
        return WriterRecipe(self.request, self.tokenizer_file, self.plan.fingerprint, self.origin_offset)


@dataclass(frozen=True)
class WriterRecipe:
    """Makes a `TaskWriter`; can be pickled, where a tokenizer should not be."""

    request: BuildRequest
    tokenizer_file: TokenizerFile
    fingerprint: str
    origin_offset: int

    def __call__(self) -> TaskWriter:
        """Load the tokenizer and open the output."""
        options = self.request.options
        return TaskWriter(
            store=open_store(self.request.output, self.request.storage),
            options=options,
            reader=TextReader(FieldPath.parse(options.text_field), self.request.storage),
            tokenizer=TextTokenizer(self.tokenizer_file, options.eos, options.bos),
            fingerprint=self.fingerprint,
            origin_offset=self.origin_offset,
        )


def prepare(request: BuildRequest, progress: Progress) -> Job:
    """Look at everything that the build depends on.

    Raises:
        ConfigError: if the request cannot work.
        SourceError: if an input cannot be read.
    """
    options = request.options
    options.check()
    _refuse_own_output(request)
    tokenizer_file = TokenizerFile.read(request.tokenizer, dict(request.storage))
    tokenizer = TextTokenizer(tokenizer_file, options.eos, options.bos)
    files = discover(request.inputs, options.include, request.storage)
    total = sum(file.bytes for file in files)
    progress.note(f"reading {len(files):,} input files ({total:,} bytes) once, for their hashes and where to cut them")
    reader = TextReader(FieldPath.parse(options.text_field), request.storage)
    with one_thread():
        tasks = plan_tasks(
            files,
            options.shard_tokens,
            reader,
            lambda texts: sum(len(ids) for ids in tokenizer.encode(texts)),
            request.workers,
        )
    inputs = [[scan.file.name, scan.file.kind, scan.file.bytes, scan.sha256] for scan in tasks.scans]
    recorded = options.recorded(tokenizer.eos, tokenizer.bos)
    known = msgspec.structs.asdict(tokenizer.info())
    return Job(
        request=request,
        store=open_store(request.output, request.storage),
        tokenizer_file=tokenizer_file,
        tokenizer=tokenizer,
        tasks=tasks,
        identity=fingerprint(inputs, recorded, known),
        work=fingerprint(inputs, without_rule(recorded), known),
    )


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
