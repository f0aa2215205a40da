"""Rows of a Parquet file."""

from collections.abc import Iterator, Mapping
from typing import Any

from shardtools.corpus.fields import FieldPath
from shardtools.corpus.inputs import InputFile
from shardtools.corpus.scan import open_parquet
from streampipe.errors import ConfigError, SourceError

BATCH_BYTES = 4 << 20
"""About how much of a row group is decoded at once."""

Row = dict[str, Any] | UnicodeDecodeError


def read_rows(file: InputFile, field: FieldPath, span: tuple[int, int], options: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows `span[0]` up to `span[1]` of a file, with the columns that the text field can be found in.

    Row groups before the span are not read, and inside a row group rows come in small batches, so memory stays small
    however large the group is. A row whose text is not UTF-8 comes as the error.

    Raises:
        ConfigError: if no column can hold the field.
        SourceError: if the file is damaged.
    """
    with open_parquet(file, options) as table:
        columns = [name for name in dict.fromkeys((field.literal, field.parts[0])) if name in table.schema_arrow.names]
        if not columns:
            raise ConfigError(
                f"{file.address}: there is no column {field.literal!r}; it has {', '.join(table.schema_arrow.names)}; "
                f"name the one with the text by --text-field"
            )
        start, stop = span
        row = 0
        for group in range(table.metadata.num_row_groups):
            rows = table.metadata.row_group(group).num_rows
            if row < stop and row + rows > start:
                yield from _rows_of_group(table, file, group, columns, (max(start - row, 0), min(stop - row, rows)))
            row += rows


def _rows_of_group(table: Any, file: InputFile, group: int, columns: list[str], span: tuple[int, int]) -> Iterator[Row]:
    start, stop = span
    row = 0
    group_bytes = table.metadata.row_group(group).total_byte_size
    batch_rows = min(max(BATCH_BYTES * table.metadata.row_group(group).num_rows // max(group_bytes, 1), 1), 4096)
    try:
        # Asking for "a" reads all leaves below a struct column "a"; a column named "a.b" is asked for by that name.
        for batch in table.iter_batches(batch_size=batch_rows, row_groups=[group], columns=columns):
            first, last = max(start - row, 0), min(stop - row, batch.num_rows)
            row += batch.num_rows
            if first < last:
                wanted = batch.slice(first, last - first)
                names = [name for name in wanted.schema.names if name in columns]
                yield from _to_python(wanted.select(names))
            if row >= stop:
                return
    except Exception as error:  # pyarrow raises ArrowInvalid, OSError and others, depending on what is damaged
        raise SourceError(
            f"{file.address}: row group {group}: cannot read it: {error}; copy or write the file again",
            path=file.address,
        ) from error


def _to_python(batch: Any) -> Iterator[Row]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for i in range(batch.num_rows):
            try:
                row: dict[str, Any] = batch.slice(i, 1).to_pylist()[0]
            except UnicodeDecodeError as error:
                yield error
            else:
                yield row
