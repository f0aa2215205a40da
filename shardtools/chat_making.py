"""Rows in, conversations or preference pairs out."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardtools.corpus.files import InputFile
from shardtools.corpus.rows import Row, RowReader
from shardtools.corpus.tally import Tally
from shardtools.corpus.tasks import Task
from shardtools.making import BATCH_CHARACTERS, KEYLESS, MadeRow, Meter, tokenizer_failure
from shardtools.masks import Rendered, Renderer, RenderError, Script, check_pair
from shardtools.overlong import Overlong
from shardtools.schemas import LIST_ROW, Conversation, Preference, Record, RowError, Schema
from shardtools.shuffle.order import RowPlace, identity_of
from streampipe.errors import StreampipeError
from streampipe.shards import AnyDocument, Document, Kind, Pair, Trained


@dataclass(frozen=True, slots=True)
class _Rendering:
    """A row on its way to the tokenizer."""

    row: Row
    identity: bytes
    scripts: list[Script]


@dataclass(frozen=True)
class ChatMaker:
    """Makes conversations or pairs.

    Attributes:
        reader: of the input.
        schema: how rows are read.
        renderer: makes text of them, and tokens of that.
        overlong: the rule for long documents.
    """

    reader: RowReader
    schema: Schema
    renderer: Renderer
    overlong: Overlong

    @property
    def kind(self) -> Kind:
        """That of the schema."""
        return self.schema.kind

    def measure(self, file: InputFile, spots: int) -> tuple[int, int]:
        """Look at a file in some places; rows that cannot be rendered count by their length."""
        length, rows = self.reader.sample(file, spots)
        scripts: list[Script] = []
        for row in rows:
            try:
                scripts += self._scripts(self._record(row))
            except (RowError, RecursionError):
                continue
            except RenderError as error:
                scripts.append(Script(error.text, ()))
        return length, sum(len(document.tokens) for document in self.renderer.tokenizer.encode(scripts))

    def make(self, task: Task, tally: Tally, meter: Meter) -> Iterator[MadeRow]:
        """Yield the documents of each row: one, or with `history: expand` perhaps several.

        Raises:
            RenderError: naming the row, if template and options would teach something wrong.
        """
        origins = dict(zip((unit.file for unit in task.units), task.origins, strict=True))
        for batch in _batches(self._renderings(task, tally)):
            meter.at(batch[0].row.where)
            count = tokens = 0
            for rendering, rendered in zip(batch, self._encoded(batch), strict=True):
                row = rendering.row
                file, first_row = origins[row.file]
                try:
                    made = self._documents(rendered)
                except RowError as error:
                    tally.bad(error.reason, row.where, str(error))
                    continue
                documents = [kept for one in made if (kept := self.overlong.apply(one, tally)) is not None]
                count, tokens = count + len(made), tokens + sum(document.length for document in made)
                yield MadeRow(RowPlace(rendering.identity, task.number, file, first_row + row.row), documents)
            meter.advance(count, tokens)

    def _renderings(self, task: Task, tally: Tally) -> Iterator[_Rendering]:
        for row in self.reader.read(task.units, tally):
            try:
                record = self._record(row.value)
                yield _Rendering(row, identity_of(_canonical(record)), self._scripts(record))
            except RowError as error:
                tally.bad(error.reason, row.where, str(error))
            except RenderError as error:
                raise _at(row, error) from error
            except RecursionError:
                tally.bad("malformed", row.where, "nested too deeply")

    def _record(self, value: Any) -> Conversation | Preference:
        record: Record = self._schema_read(value)
        if isinstance(record, Conversation | Preference):
            return record
        raise RowError("wrong_type", f"schema {self.schema.name} gave a text, not a {self.kind}")

    def _schema_read(self, value: Any) -> Record:
        takes_lists = self.schema.matches(frozenset({LIST_ROW}))
        if not isinstance(value, Mapping) and not (isinstance(value, list) and takes_lists):
            raise RowError("not_an_object", f"expected a JSON object, but got {type(value).__name__}")
        return self.schema.read(value)

    def _scripts(self, record: Conversation | Preference) -> list[Script]:
        if isinstance(record, Preference):
            return self.renderer.pair_scripts(record)
        return self.renderer.scripts(record)

    def _encoded(self, batch: Sequence[_Rendering]) -> list[list[Rendered]]:
        """Return the documents of each row, encoded in one call."""
        try:
            documents = iter(self.renderer.encode([script for one in batch for script in one.scripts]))
        except RenderError:
            for one in batch:
                try:
                    self.renderer.encode(one.scripts)
                except RenderError as error:
                    raise _at(one.row, error) from error
            raise
        except StreampipeError:
            raise
        except Exception as error:  # the library raises bare Exceptions and TypeErrors
            raise tokenizer_failure(batch[0].row.where, len(batch), error) from error
        return [[next(documents) for _ in one.scripts] for one in batch]

    def _documents(self, rendered: list[Rendered]) -> list[AnyDocument]:
        if self.kind != "preference":
            return [Document(KEYLESS, one.tokens, one.loss) for one in rendered]
        chosen, rejected = rendered
        check_pair(chosen, rejected)
        return [Pair(KEYLESS, Trained(chosen.tokens, chosen.loss), Trained(rejected.tokens, rejected.loss))]


def _batches(renderings: Iterator[_Rendering]) -> Iterator[list[_Rendering]]:
    batch: list[_Rendering] = []
    characters = 0
    for one in renderings:
        batch.append(one)
        characters += sum(len(script.text) for script in one.scripts)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _canonical(record: Record) -> bytes:
    """Return the content of a record, however its row spelled it; whatever renders it."""
    return json.dumps(record, default=_fields, sort_keys=True, separators=(",", ":")).encode()


def _fields(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    raise RowError("wrong_type", f"expected JSON-like values, but got {type(value).__name__}")


def _at(row: Row, error: RenderError) -> RenderError:
    """Return the error with the row that shows it."""
    return type(error)(error.reason, f"{row.where}: {error.message}", error.text)
