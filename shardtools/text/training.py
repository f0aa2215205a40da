"""Training a tokenizer, so that a newcomer needs no download."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shardtools.corpus.fields import FieldPath
from shardtools.corpus.inputs import InputFile, discover
from shardtools.corpus.scan import scan
from shardtools.corpus.tally import OnBadRow, Tally
from shardtools.corpus.texts import TextReader
from streampipe.errors import ConfigError, StreampipeError
from streampipe.storage import open_store

END_TOKEN = "<|endoftext|>"
SCAN_BYTES = 1 << 24
PIECE_CHARACTERS = 1 << 16


@dataclass(frozen=True)
class TrainingRequest:
    """What to train on.

    Attributes:
        inputs, text_field, include, on_bad_row, storage: as for a build.
        output: the tokenizer.json to write.
        vocab_size: tokens in all.
        special_tokens: besides `<|endoftext|>`.
        overwrite: whether another file of that name may be replaced.
    """

    inputs: tuple[str, ...]
    output: str
    vocab_size: int
    special_tokens: tuple[str, ...] = ()
    text_field: str = "text"
    include: tuple[str, ...] = ()
    on_bad_row: OnBadRow = "error"
    overwrite: bool = False
    storage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingResult:
    """What came out."""

    output: str
    vocab_size: int
    documents: int
    skipped: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return asdict(self)


def train_tokenizer(request: TrainingRequest) -> TrainingResult:
    """Train a byte-level BPE tokenizer; the same input gives the same file.

    Every byte is a token, so any text can be encoded and comes back exactly. Special tokens have the first ids.

    Raises:
        ConfigError: if the vocabulary is too small, or another file is in the way.
        StreampipeError: if there is no text.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = list(dict.fromkeys([END_TOKEN, *request.special_tokens]))
    least = len(alphabet) + len(specials)
    if request.vocab_size < least:
        raise ConfigError(
            f"--vocab-size must be at least {least} (256 bytes and {len(specials)} special tokens), "
            f"but got {request.vocab_size}"
        )
    files = discover(request.inputs, request.include, request.storage)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=request.vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tally, counter = Tally(request.on_bad_row), _Counter()
    texts = _texts(files, request, tally, counter)
    tokenizer.train_from_iterator(texts, trainer)
    if counter.documents == 0:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(tally.reasons.items())) or "it is empty"
        raise StreampipeError(
            f"there is no text in {len(files)} input files ({reasons}); check the input, --text-field and --include"
        )
    _write(request, tokenizer.to_str(pretty=True).encode())
    return TrainingResult(
        request.output,
        tokenizer.get_vocab_size(with_added_tokens=True),
        counter.documents,
        dict(sorted(tally.reasons.items())),
    )


@dataclass
class _Counter:
    documents: int = 0


def _texts(files: Sequence[InputFile], request: TrainingRequest, tally: Tally, counter: _Counter) -> Iterator[str]:
    """Yield texts, long ones in pieces: the trainer counts words, and keeps a batch of what it is given."""
    reader = TextReader(FieldPath.parse(request.text_field), request.storage)
    for file in files:
        for text in reader.read(scan(file, SCAN_BYTES, request.storage).units, tally):
            counter.documents += 1
            for start in range(0, len(text.text), PIECE_CHARACTERS):
                yield text.text[start : start + PIECE_CHARACTERS]


def _write(request: TrainingRequest, data: bytes) -> None:
    folder, _, name = request.output.rpartition("/")
    if not name:
        raise ConfigError(
            f"--output {request.output}: expected the name of a file, e.g. {request.output}tokenizer.json"
        )
    store = open_store((folder or "/") if "/" in request.output else ".", request.storage)
    try:
        there = store.read(name)
    except FileNotFoundError:
        there = None
    if there is not None and there != data and not request.overwrite:
        raise ConfigError(
            f"{request.output}: another file is there; choose another --output, or give --overwrite to replace it"
        )
    store.write(name, data)
