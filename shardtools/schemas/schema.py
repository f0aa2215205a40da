"""What a schema is, and which one a corpus has."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shardtools.schemas.record import Record
from streampipe.errors import ConfigError

LIST_ROW = "[]"
"""Stands among the columns for rows that are lists themselves."""


class SchemaError(ConfigError):
    """No schema fits the columns, or the one that does cannot be built."""


@dataclass(frozen=True)
class Schema:
    """How the rows of one kind of corpus are read.

    Attributes:
        name: what `--schema` takes.
        kind: what rows become.
        columns: the columns it wants, in words.
        matches: says from the names of the columns (those that are not null everywhere) whether it applies.
        read: turns one row into a record; raises RowError for a row that cannot be read.
        refusal: why rows of this kind are not built, "" if they are.
    """

    name: str
    kind: Literal["conversation", "preference", "text"]
    columns: str
    matches: Callable[[frozenset[str]], bool]
    read: Callable[[Any], Record]
    refusal: str = ""


def columns_of(rows: Iterable[Any]) -> frozenset[str]:
    """Return the names of the columns of which some row has a value."""
    found: set[str] = set()
    for row in rows:
        if isinstance(row, Mapping):
            found.update(str(key) for key, value in row.items() if value is not None)
        elif isinstance(row, list):
            found.add(LIST_ROW)
    return frozenset(found)


def choose_schema(columns: Iterable[str], schemas: Iterable[Schema], forced: str | None = None) -> Schema:
    """Return the first schema that matches, or the one that is forced.

    Raises:
        SchemaError: none matches, none has that name, or it is refused.
    """
    seen, known = frozenset(columns), list(schemas)
    if forced is None:
        schema = next((schema for schema in known if schema.matches(seen)), None)
    else:
        schema = next((schema for schema in known if schema.name == forced), None)
    if schema is None:
        what = (
            f"no schema is called {forced!r}"
            if forced
            else f"no schema fits the columns {', '.join(sorted(seen)) or '(none)'}"
        )
        listed = "\n".join(f"  {schema.name}: {schema.columns}" for schema in known)
        raise SchemaError(
            f"{what}; known schemas, the first that fits wins:\n{listed}\nrename columns or choose by --schema"
        )
    if schema.refusal:
        raise SchemaError(f"schema {schema.name} ({schema.columns}): {schema.refusal}")
    return schema


def without_nulls(value: Any) -> Any:
    """Return a row of a columnar file without the null fields that it got from other rows' shapes.

    Nulls inside lists stay. A null that the row itself had cannot be told from these, so it goes too; where it
    matters (arguments, tool schemas) store JSON strings.
    """
    if isinstance(value, Mapping):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value
