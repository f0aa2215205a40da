"""Rows out of record batches."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from shardtools.corpus.corpus import NumberedRow, Reading
from shardtools.corpus.files import InputFile
from shardtools.corpus.units import Unit
from streampipe.errors import ConfigError

ROWS_AT_ONCE = 64
"""Rows turned to Python objects at once; more is hardly faster, and rows may be large."""


def span_of(units: Sequence[Unit]) -> tuple[int, int]:
    """Return the first row of units that follow each other, and where they end."""
    return units[0].start, units[-1].start + units[-1].length


def cut_rows(file: InputFile, rows: int, row: int, unit_length: int) -> Iterator[Unit]:
    """Cut a run of rows that begins at `row` into units of nearly the same length."""
    count = -(-rows // unit_length)
    borders = [row + rows * i // count for i in range(count + 1)] if rows else []
    yield from (Unit(file, a, b - a, first_line=a + 1) for a, b in pairwise(borders))


def wanted_columns(file: InputFile, there: Sequence[str], reading: Reading) -> list[str] | None:
    """Return which columns to read; None for all.

    Raises:
        ConfigError: if none of the wanted ones is there.
    """
    if reading.columns is None:
        return None
    columns = [name for name in reading.columns if name in there]
    if not columns:
        raise ConfigError(
            f"{file.address}: there is no column {reading.columns[0]!r}; it has {', '.join(there)}; "
            f"name the one with the text by --text-field"
        )
    return columns


Decode = Callable[[Any], Any]


def json_decoders(features: Mapping[str, Any]) -> dict[str, Decode]:
    """Return how to decode those columns that hold JSON as text, given the features of a data set.

    In such columns each row keeps its own shape.
    """
    found = {name: _decoder(feature) for name, feature in features.items()}
    return {name: decode for name, decode in found.items() if decode is not None}


def _features(schema: Any) -> Mapping[str, Any]:
    """Return what `datasets` has written beside a schema."""
    described = (schema.metadata or {}).get(b"huggingface")
    try:
        features = json.loads(described)["info"]["features"] if described else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, Mapping) else {}


def _decoder(feature: Any) -> Decode | None:
    """Return what decodes the values of a feature: JSON, or lists and dicts of it; None if there is none in it."""
    if isinstance(feature, Mapping) and isinstance(kind := feature.get("_type"), str):
        if kind == "Json":
            return lambda value: json.loads(value) if isinstance(value, str) else value
        inner = _decoder(feature["feature"]) if kind in ("List", "LargeList") and "feature" in feature else None
        return inner and (lambda value: [inner(item) for item in value] if isinstance(value, list) else value)
    if not isinstance(feature, Mapping):
        return None
    fields = {name: decode for name, part in feature.items() if (decode := _decoder(part)) is not None}
    return (lambda value: _decoded(value, fields)) if fields else None


def _decoded(row: Any, fields: Mapping[str, Decode]) -> Any:
    if not isinstance(row, Mapping):
        return row
    return {name: fields[name](value) if name in fields else value for name, value in row.items()}


def rows_of(file: InputFile, batch: Any, first: int, reading: Reading) -> Iterator[NumberedRow]:
    """Yield the rows of a batch, numbered from `first`; a row with text that is not UTF-8 is a bad one."""
    decoders = json_decoders(_features(batch.schema))
    for start in range(0, batch.num_rows, ROWS_AT_ONCE):
        part = batch.slice(start, ROWS_AT_ONCE)
        try:
            rows: Iterable[NumberedRow] = enumerate(part.to_pylist(), first + start)
        except UnicodeDecodeError:
            rows = _one_by_one(file, part, first + start, reading)
        if reading.own_fields:
            rows = ((number, {name: with_own_fields(row[name]) for name in row}) for number, row in rows)
        yield from ((number, _decoded(row, decoders)) for number, row in rows) if decoders else rows


def with_own_fields(value: Any) -> Any:
    """Return a value of a column without null fields, which dicts get from other rows' dicts.

    Nulls inside lists stay. A null that the row itself had cannot be told from these, so it goes too.
    """
    if isinstance(value, Mapping):
        return {key: with_own_fields(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [with_own_fields(inner) for inner in value]
    return value


def _one_by_one(file: InputFile, batch: Any, first: int, reading: Reading) -> Iterator[NumberedRow]:
    for i in range(batch.num_rows):
        try:
            row = batch.slice(i, 1).to_pylist()[0]
        except UnicodeDecodeError as error:
            reading.tally.bad("not_utf8", file.place(first + i), f"the text is not UTF-8 ({error.reason})")
        else:
            yield first + i, row
