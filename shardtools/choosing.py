"""Which schema the rows of a build have: by the columns of the first rows, unless the user says so."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardtools.chat_options import ChatOptions
from shardtools.corpus.corpus import SAMPLE_BYTES
from shardtools.corpus.files import InputFile
from shardtools.corpus.formats.plain import FIELD, PLAIN
from shardtools.corpus.rows import RowReader
from shardtools.corpus.scan import scan
from shardtools.corpus.tally import Tally
from shardtools.options import BuildOptions
from shardtools.schemas import LIST_ROW, Schema, SchemaError, columns_of, detect_schema
from streampipe.errors import ConfigError

FILES = 4
"""How many files are looked at, from the first to the last."""


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        schema: of all rows.
        options: of the build, with the schema's name and the field of the text filled in.
        columns: seen in the sample; none if it was not looked at, or held no rows.
    """

    schema: Schema
    options: BuildOptions
    columns: tuple[str, ...] = ()

    def in_words(self) -> str:
        """Return what to tell the user; "" if there was nothing to choose."""
        if not self.columns:
            return ""
        what = f"rows are {self.schema.kind}s by schema {self.schema.name}"
        if self.schema.kind == "text":
            what = f"rows are texts, in the field {self.options.text_field!r}"
        shown = ", ".join("(a list)" if column == LIST_ROW else column for column in self.columns[:20])
        return f"{what} (columns: {shown}); another by --schema"


def choose(files: Sequence[InputFile], options: BuildOptions, storage: Mapping[str, Any]) -> Choice:
    """Return the schema of the input, and the options of the build with it.

    A named text field means texts, and so do plain files with no others beside them.

    Raises:
        SchemaError: if no schema fits, or the one that does is refused.
        ConfigError: if an option has no meaning for rows of that kind.
    """
    if options.text_field is not None:
        if options.schema not in ("", "text"):
            raise ConfigError(f"--text-field is for texts, and --schema {options.schema} is none; leave one out")
        return _checked(Choice(detect_schema((), "text"), replace(options, schema="text")))
    looked_at = _looked_at(files) if options.schema in ("", "text") else []
    columns = tuple(sorted(columns_of(row for file in looked_at for row in _first_rows(file, RowReader(storage)))))
    try:
        schema = detect_schema(columns, options.schema or (None if columns else "text"))
    except SchemaError as error:
        if options.schema:
            raise
        raise SchemaError(
            f"{looked_at[0].address}: {error}, or by --text-field, the name of the field that holds texts"
        ) from error
    changes: dict[str, Any] = {"schema": schema.name}
    if schema.kind == "text":
        changes["text_field"] = "content" if "content" in columns and FIELD not in columns else FIELD
    return _checked(Choice(schema, replace(options, **changes), columns))


def _looked_at(files: Sequence[InputFile]) -> list[InputFile]:
    with_rows = [file for file in files if file.kind != PLAIN.kind]
    count = min(len(with_rows), FILES)
    return [with_rows[i * len(with_rows) // count] for i in range(count)]


def _first_rows(file: InputFile, reader: RowReader) -> Iterator[Any]:
    rows = reader.sample(file, 1)[1]
    if any(isinstance(row, Mapping | list) for row in rows):
        yield from rows
    elif rows or file.bytes > SAMPLE_BYTES:  # the first row is longer than a sample: read it whole
        units = scan(file, SAMPLE_BYTES, reader.options).units
        first = next(reader.read(units[:1], Tally("count")), None)
        if first is not None:
            yield first.value


def _checked(choice: Choice) -> Choice:
    """Refuse options that would be ignored."""
    options, kind = choice.options, choice.schema.kind
    if kind == "text":
        if options.chat != ChatOptions():
            raise ConfigError(
                "the rows are texts, which have no chat template and no assistant turns; leave out the options for "
                "conversations, or choose how rows are read by --schema"
            )
        return choice
    if options.bos or options.eos == "":
        raise ConfigError(f"--bos, --no-eos: for {kind}s the chat template writes such tokens; leave these options out")
    if options.fragments_at:
        raise ConfigError(f"--fragments-at parts texts, and {kind}s are none; leave it out")
    if options.normalize:
        raise ConfigError(f"--normalize changes texts, and {kind}s are none; leave it out")
    if kind == "preference" and options.overlong.startswith("truncate"):
        raise ConfigError("--overlong truncate would leave pairs without an answer; use drop:N")
    return choice
