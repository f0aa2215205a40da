"""The schemas there are, in the order in which they are tried.

Another one is a file with a `Schema` in it and a line here, or, from a package of one's own, an entry point of the
group `shardtools.schemas`; those are tried first, by name.
"""

from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points

from shardtools.schemas.answers import ALPACA, COMPLETION
from shardtools.schemas.chats import MESSAGES, SHAREGPT
from shardtools.schemas.ftdp import FTDP
from shardtools.schemas.plain import TEXT
from shardtools.schemas.preferences import PREFERENCE, UNPAIRED
from shardtools.schemas.schema import Schema, choose_schema
from streampipe.errors import ConfigError

BUILT_IN = (PREFERENCE, UNPAIRED, MESSAGES, SHAREGPT, COMPLETION, ALPACA, FTDP, TEXT)
GROUP = "shardtools.schemas"


@cache
def known_schemas() -> tuple[Schema, ...]:
    """Return the installed schemas, then the built-in ones.

    Raises:
        ConfigError: if an entry point cannot be loaded or is no schema.
    """
    return (*(_load(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)), *BUILT_IN)


def detect_schema(columns: Iterable[str], forced: str | None = None) -> Schema:
    """Return the schema of a corpus with these columns (see `columns_of`), or the one of the name `forced`.

    Raises:
        SchemaError: none fits; the message lists the columns seen and the schemas known.
    """
    return choose_schema(columns, known_schemas(), forced)


def _load(point: object) -> Schema:
    name = getattr(point, "name", "?")
    try:
        schema = point.load()  # type: ignore[attr-defined]
    except Exception as error:  # whatever a foreign module raises while it is imported
        raise ConfigError(
            f"entry point {GROUP}: {name}: cannot be loaded ({error}); mend or remove its package"
        ) from error
    if not isinstance(schema, Schema):
        raise ConfigError(f"entry point {GROUP}: {name}: expected a Schema, but got {type(schema).__name__}")
    return schema
