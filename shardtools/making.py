"""Rows in, documents out: the part of a build that depends on the kind of source."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from shardtools.corpus.files import InputFile
from shardtools.corpus.tally import Tally
from shardtools.corpus.tasks import Task
from shardtools.corpus.texts import Text, TextReader
from shardtools.overlong import Overlong
from shardtools.shuffle.order import RowPlace, identity_of
from shardtools.text.normalize import Normalizer
from shardtools.text.tokenizer import TextTokenizer
from streampipe.errors import StreampipeError
from streampipe.shards import AnyDocument, Document, Kind

BATCH_CHARACTERS = 1 << 19
"""Texts are encoded in batches of about so many characters, so that memory stays small."""

KEYLESS = "0"
"""The key of a document that has no place yet."""

SEPARATED = "with_separators"
"""Under this name the documents are counted in which the separator of the build is."""


class StoppedError(Exception):
    """The build is being stopped; the task gives up."""


class Meter(Protocol):
    """Hears how a task goes on, and may stop it by raising."""

    def advance(self, documents: int, tokens: int) -> None:
        """Documents and tokens done since the last call."""
        ...

    def at(self, where: str) -> None:
        """The place in the input that is being encoded."""
        ...


@dataclass(frozen=True, slots=True)
class MadeRow:
    """What was made of one row.

    Attributes:
        place: what the row is and where it was.
        documents: one for a text; there may be several, or none. Their keys and origins are filled in later.
    """

    place: RowPlace
    documents: list[AnyDocument]


class RowMaker(Protocol):
    """Makes documents of one kind; the same in every process."""

    @property
    def kind(self) -> Kind:
        """The kind of all of them."""
        ...

    def measure(self, file: InputFile, spots: int) -> tuple[int, int]:
        """Return how long (bytes or rows) a sample of a file is, and how many tokens it makes."""
        ...

    def make(self, task: Task, tally: Tally, meter: Meter) -> Iterator[MadeRow]:
        """Yield the rows of a slice in input order, and count those that give none.

        Raises:
            StreampipeError: naming the input that failed.
        """
        ...


@dataclass(frozen=True)
class TextMaker:
    """Makes texts.

    Attributes:
        reader: of the input.
        tokenizer: of the build.
        normalizer: changes texts before they are encoded.
        overlong: the rule for long ones.
    """

    reader: TextReader
    tokenizer: TextTokenizer
    normalizer: Normalizer
    overlong: Overlong

    @property
    def kind(self) -> Kind:
        """Texts."""
        return "text"

    def measure(self, file: InputFile, spots: int) -> tuple[int, int]:
        """Look at a file in some places."""
        length, texts = self.reader.sample(file, spots)
        return length, sum(len(ids) for ids in self.tokenizer.encode(texts))

    def make(self, task: Task, tally: Tally, meter: Meter) -> Iterator[MadeRow]:
        """Yield one document a text."""
        origins = dict(zip((unit.file for unit in task.units), task.origins, strict=True))
        for batch in _batches(self._texts(task, tally)):
            meter.at(batch[0].where)
            documents = tokens = 0
            for text, ids in zip(batch, self._ids(batch), strict=True):
                file, first_row = origins[text.file]
                place = RowPlace(identity_of(text.text.encode()), task.number, file, first_row + text.row)
                if len(ids) == 0:
                    tally.skip("no_tokens")
                    continue
                document = self.overlong.apply(Document(KEYLESS, ids), tally)
                separator = self.tokenizer.separator
                if separator is not None and document is not None and separator in document.arrays()[0]:
                    tally.reasons[SEPARATED] += 1
                documents, tokens = documents + 1, tokens + len(ids)
                yield MadeRow(place, [document] if document else [])
            meter.advance(documents, tokens)

    def _texts(self, task: Task, tally: Tally) -> Iterator[Text]:
        texts = self.reader.read(task.units, tally)
        if not self.normalizer.steps:
            yield from texts
            return
        for text in texts:
            content = self.normalizer.apply(text.text, tally)
            if not content or content.isspace():
                tally.skip("blank" if content else "empty")
                continue
            yield Text(text.file, text.row, content)

    def _ids(self, batch: list[Text]) -> list[NDArray[Any]]:
        try:
            return self.tokenizer.encode([text.text for text in batch])
        except StreampipeError:
            raise
        except Exception as error:  # the library raises bare Exceptions and TypeErrors
            raise tokenizer_failure(batch[0].where, len(batch), error) from error


def tokenizer_failure(where: str, rows: int, error: Exception) -> StreampipeError:
    """Return the error of a tokenizer that fails in one of `rows` rows that begin at `where`."""
    return StreampipeError(
        f"{where} (or one of the {rows} rows from there on): the tokenizer fails: {error}; "
        f"leave the row out or use another tokenizer"
    )


def _batches(texts: Iterator[Text]) -> Iterator[list[Text]]:
    batch: list[Text] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
