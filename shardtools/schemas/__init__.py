"""From rows of any known shape to one record: a conversation, a preference pair or a text."""

from shardtools.schemas.known import detect_schema, known_schemas
from shardtools.schemas.record import Conversation, Message, Preference, Record, Role, RowError, Text, ToolCall
from shardtools.schemas.schema import LIST_ROW, Schema, SchemaError, columns_of, without_nulls

__all__ = [
    "LIST_ROW",
    "Conversation",
    "Message",
    "Preference",
    "Record",
    "Role",
    "RowError",
    "Schema",
    "SchemaError",
    "Text",
    "ToolCall",
    "columns_of",
    "detect_schema",
    "known_schemas",
    "without_nulls",
]
