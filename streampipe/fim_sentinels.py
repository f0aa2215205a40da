"""Sentinels and templates turned into the ids of a source's own tokenizer."""

import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any

from streampipe.assemble.fim_config import FimConfig, Sentinels, Template
from streampipe.assemble.fim_presets import ORDERS, PRESETS, PSM, SPM, Preset
from streampipe.errors import ConfigError
from streampipe.opening import OpenedSource
from streampipe.shards.source import Source
from streampipe.shards.tokenizer_hash import TOKENIZER_NAME, tokenizer_hashes

_ROLES = {"PRE": "prefix", "SUF": "suffix", "MID": "middle"}
_NAMES = {**_ROLES, "PAD": "pad"}
_PARTS = {"prefix": 1, "suffix": 2, "middle": 3}  # as in `fim_parts`


def tokenizer_file(source: OpenedSource, where: str) -> bytes:
    """Read the tokenizer.json of a source.

    Raises:
        ConfigError: if the source has none, or it is not the one that made the ids.
    """
    if not isinstance(source, Source):
        raise ConfigError(f"{where}: a mock source has no tokenizer; give sentinels by id, with level: token")
    name = f"{source.url}/{TOKENIZER_NAME}"
    try:
        data = source.store.read(TOKENIZER_NAME)
        found = tokenizer_hashes(data)[0]
    except FileNotFoundError as error:
        raise ConfigError(
            f"{where}: {name} is not there, which says what ids mean; put the file that the source was built with "
            "back, or give sentinels by id, with level: token"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{where}: {name} is not a tokenizer.json ({error}); put the file back") from error
    if found != source.tokenizer.hash:
        raise ConfigError(
            f"{where}: {name} is not the tokenizer that made the ids: its hash is {found[:16]}, the manifest has "
            f"{source.tokenizer.hash[:16]}; put the file that the source was built with back"
        )
    return data


def vocabulary(data: bytes) -> dict[str, int]:
    """Return the ids of all tokens of a tokenizer.json, added ones included."""
    content: dict[str, Any] = json.loads(data)
    vocab = content["model"].get("vocab") or {}
    pairs = vocab.items() if isinstance(vocab, dict) else ((entry[0], i) for i, entry in enumerate(vocab))
    ids = dict(pairs)
    return ids | {token["content"]: token["id"] for token in content.get("added_tokens") or []}


def sentinel_ids(fim: FimConfig, source: OpenedSource, read: Callable[[], bytes], where: str) -> dict[str, int]:
    """Return the id of each role, `PRE`, `SUF` and `MID` (absent for models without a middle token); `PAD` with compat.

    Args:
        fim: of the source.
        source: whose tokenizer it is.
        read: gives its tokenizer.json, if that is needed.
        where: path of `fim` in the config.

    Raises:
        ConfigError: for a preset that is not known, a token that the tokenizer does not have as one token, or two roles
            with one id.
    """
    named = _named(fim, where)
    ids: dict[str, int] = {}
    known: Mapping[str, int] = source.tokenizer.special_tokens
    texts = [token for token in named.values() if isinstance(token, str)]
    if any(text not in known for text in texts):
        known = vocabulary(read())
    for role, token in named.items():
        if isinstance(token, str) and token not in known:
            raise ConfigError(
                f"{where}.sentinels: {source.name!r} ({source.url}) has no token {token!r} for the {_NAMES[role]}, "
                f"{_closest(token, known)}; choose another preset, or name the tokens"
            )
        ids[role] = known[token] if isinstance(token, str) else token
        _require_within(ids[role], f"of the {_NAMES[role]}", source, f"{where}.sentinels")
    if len(set(ids.values())) < len(ids):
        raise ConfigError(
            f"{where}.sentinels: two roles share an id in {source.name!r}: "
            f"{', '.join(f'{_NAMES[role]} {token!r} is {ids[role]}' for role, token in named.items())}; parts could "
            "not be told apart; give each a token of its own"
        )
    return ids


def named_id(token: str | int, source: OpenedSource, read: Callable[[], bytes], where: str) -> int:
    """Return the id of one token, given by its name or its id.

    Raises:
        ConfigError: for what is not one token of the source's tokenizer.
    """
    if isinstance(token, int):
        _require_within(token, "of the token", source, where)
        return token
    known = vocabulary(read())
    if token not in known:
        raise ConfigError(
            f"{where}: {source.name!r} ({source.url}) has no token {token!r}, {_closest(token, known)}; name one that "
            "is a single token there, or give its id"
        )
    return known[token]


def _require_within(number: int, whose: str, source: OpenedSource, where: str) -> None:
    if not 0 <= number <= source.tokenizer.max_id:
        raise ConfigError(
            f"{where}: the id {number} {whose} is not within 0 and {source.tokenizer.max_id}, the largest of "
            f"{source.name!r}"
        )


def _named(fim: FimConfig, where: str) -> dict[str, str | int]:
    tokens: Sentinels | Preset
    if isinstance(fim.sentinels, str):
        if fim.sentinels not in PRESETS:
            near = difflib.get_close_matches(fim.sentinels, PRESETS, n=1, cutoff=0.4)
            raise ConfigError(
                f"{where}.sentinels: there is no preset {fim.sentinels!r}{f', perhaps {near[0]!r}' if near else ''}; "
                f"choose one of {', '.join(sorted(PRESETS))}, or give prefix, suffix and middle"
            )
        tokens = PRESETS[fim.sentinels]
    else:
        tokens = fim.sentinels
    named: dict[str, str | int] = {"PRE": tokens.prefix, "SUF": tokens.suffix}
    if tokens.middle is not None:
        named["MID"] = tokens.middle
    if fim.compat is not None:
        for role, token in (("MID", tokens.middle), ("PAD", tokens.pad)):
            if token is None:
                raise ConfigError(
                    f"{where}.sentinels: compat: megatron needs a {_NAMES[role]} token, and "
                    f"{f'the preset {fim.sentinels!r}' if isinstance(fim.sentinels, str) else 'this'} has none; give "
                    "prefix, suffix, middle and pad"
                )
            named[role] = token
    return named


def _closest(token: str, known: Mapping[str, int]) -> str:
    word = [name for name in known if any(part in name.lower() for part in ("fim", "prefix", "suffix", "middle"))]
    near = difflib.get_close_matches(token, word, n=3, cutoff=0.3) or difflib.get_close_matches(token, known, n=3)
    return f"closest are {', '.join(map(repr, near))}" if near else "nor anything like it"


def order_items(
    fim: FimConfig,
    ids: Mapping[str, int],
    encode: Callable[[str], list[int]],
    source: OpenedSource,
    where: str,
    rates_in: str,
) -> tuple[list[int | list[int]], list[int | list[int]]]:
    """Return both orders: a part by its kind, or the ids that stand between.

    Args:
        fim: of the source.
        ids: of the roles.
        encode: gives the ids of a template's text.
        source: whose tokenizer it is.
        where: path of `fim` in the config.
        rates_in: path of what has its rates, which may be in a phase.

    Raises:
        ConfigError: for an order that the preset does not know but the rates ask for, a sentinel that is not there, an
            id that the source does not have, or a text that is none or names a token.
    """
    preset = PRESETS[fim.sentinels] if isinstance(fim.sentinels, str) else None
    usual = {"psm": preset.psm if preset else PSM, "spm": preset.spm if preset else SPM}
    made: list[list[int | list[int]]] = []
    for key, needed in (("psm", fim.spm_rate < 1), ("spm", fim.spm_rate > 0)):
        given = getattr(fim, key)
        template: Template | None = ORDERS[given] if isinstance(given, str) else given or usual[key]
        if template is None:
            if needed:
                raise ConfigError(
                    f"{rates_in}.spm_rate: {fim.spm_rate} asks for the order {key}, which the preset "
                    f"{fim.sentinels!r} does not have; set spm_rate: {int(key == 'psm')}, or give {where}.{key} as a "
                    "list"
                )
            template = usual["spm" if key == "psm" else "psm"] or []
        made.append([_item(item, ids, encode, source, f"{where}.{key}") for item in template])
    return made[0], made[1]


def _item(
    item: str | int, ids: Mapping[str, int], encode: Callable[[str], list[int]], source: OpenedSource, where: str
) -> int | list[int]:
    if isinstance(item, int):
        _require_within(item, "of the template", source, where)
        return [item]
    if item in _PARTS:
        return _PARTS[item]
    if item in _ROLES:
        if item not in ids:
            raise ConfigError(f"{where}: {item} has no token; give sentinels.{_ROLES[item]}, or leave it out")
        return [ids[item]]
    if item in source.tokenizer.special_tokens or item.upper() in _ROLES:
        instead = source.tokenizer.special_tokens.get(item, item.upper())
        raise ConfigError(
            f"{where}: {item!r} would be taken for a text, letter by letter; write {instead} for the token, or choose "
            "other words"
        )
    if not (made := encode(item)):
        raise ConfigError(f"{where}: {item!r} is no token of {source.name!r}; remove it, or give an id")
    return made
