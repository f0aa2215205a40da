"""The schema of plain text."""

from collections.abc import Mapping
from typing import Any

from shardtools.schemas.contents import read_text
from shardtools.schemas.record import RowError, Text
from shardtools.schemas.schema import Schema


def _read(row: Mapping[str, Any]) -> Text:
    column = "text" if row.get("text") is not None else "content"
    text = read_text(row.get(column), column)
    if not text.strip():
        raise RowError("blank" if text else "empty", f"{column}: no text")
    return Text(text)


TEXT = Schema("text", "text", "text or content", lambda columns: bool({"text", "content"} & columns), _read)
