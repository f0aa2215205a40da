"""What is wrong with a config, in words that name the key and what it may be."""

import re
from typing import Any

from msgspec import inspect

# Keys of DESIGN that later releases build; refused by name until then, so that no option is parsed and ignored.
_NOT_BUILT = {"cache", "give_up_after"}


def explain(message: str, kind: type) -> str:
    """Return msgspec's complaint with the path of the key first.

    Args:
        message: of its error.
        kind: what the data were to become.
    """
    match = re.match(r"Object contains unknown field `(.+?)`(?: - at `(.+)`)?", message)
    if match:
        key, where = match.group(1), match.group(2) or "$"
        reason = "this release does not build it yet" if key in _NOT_BUILT else "no such key"
        return f"{where}.{key}: {reason}; remove it"
    match = re.match(r"(.+) - at (`key` in )?`(.+)`", message)
    if not match:
        return f"$: {message}"
    what, is_key, where = match.groups()
    wrong = re.match(r"Invalid enum value '(.*)'", what)
    if wrong and (allowed := _allowed(inspect.type_info(kind), where, is_key=bool(is_key))):
        return f"{where}: {'keys are' if is_key else 'must be one of'} {', '.join(allowed)}, but got {wrong[1]!r}"
    return f"{where}: {'a key: ' if is_key else ''}{what}"


def _allowed(kind: Any, where: str, *, is_key: bool) -> list[str]:
    """Return the texts that may stand at a path, or as a key of the mapping there."""
    kinds = [kind]
    for name, _ in re.findall(r"\.(\w+)|\[([^\]]*)\]", where):
        kinds = [inner for own in _alternatives(kinds) for inner in _inside(own, name)]
    if is_key:
        kinds = [own.key_type for own in _alternatives(kinds) if isinstance(own, inspect.DictType)]
    literals = [own for own in _alternatives(kinds) if isinstance(own, inspect.LiteralType)]
    return [str(value) for own in literals for value in own.values]


def _alternatives(kinds: list[Any]) -> list[Any]:
    return [one for own in kinds for one in (own.types if isinstance(own, inspect.UnionType) else [own])]


def _inside(kind: Any, name: str) -> list[Any]:
    """Return what a field is, or an element where there is no name."""
    if isinstance(kind, inspect.StructType):
        return [field.type for field in kind.fields if field.encode_name == name]
    if isinstance(kind, inspect.DictType):
        return [kind.value_type]
    return [kind.item_type] if hasattr(kind, "item_type") else []
