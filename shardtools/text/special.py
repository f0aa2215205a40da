"""Which special tokens a tokenizer has, and which of them ends a document."""

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from streampipe.errors import ConfigError

DOCUMENT_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<｜end▁of▁sentence｜>", "<|endofdocument|>")
"""Names of the token that ends a document in well-known base models."""

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "[SEP]")
"""Asked only where there is none of the above."""

PADS = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<｜▁pad▁｜>", "<|finetune_right_pad_id|>")
BEGINNINGS = ("<s>", "<|begin_of_text|>", "<bos>", "<｜begin▁of▁sentence｜>", "[CLS]")

CONTROL = re.compile(r"<[|｜].*[|｜]>$", re.DOTALL)
"""Added tokens of this form are control tokens even where a tokenizer.json forgets to call them special."""

_BRACKETED = re.compile(r"[<\[].+[>\]]", re.DOTALL)


def configured(config: bytes | None, key: str) -> str | None:
    """Return the token that a `tokenizer_config.json` names as `eos_token`, `bos_token` or `pad_token`.

    Raises:
        ConfigError: if the file is not JSON.
    """
    if config is None:
        return None
    try:
        token = json.loads(config).get(key)
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f"tokenizer_config.json beside the tokenizer is not a JSON object ({error}); mend or move it away"
        ) from error
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def own_end_token(ids: Mapping[str, int], config: bytes | None) -> str:
    """Return the tokenizer's own end token.

    Args:
        ids: the whole vocabulary, added tokens included.
        config: the `tokenizer_config.json` beside the tokenizer, if there is one.

    Raises:
        ConfigError: if there is none, or more than one could be meant.
    """
    named = configured(config, "eos_token")
    if named is not None:
        if named not in ids:
            raise ConfigError(
                f"tokenizer_config.json names {named!r} as eos_token, but the tokenizer has no such token; "
                f"use --eos TOKEN or --no-eos"
            )
        return named
    for group in (DOCUMENT_ENDS, TURN_ENDS):
        found = [name for name in group if name in ids]
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(
                f"the tokenizer has several tokens that may end a document ({', '.join(found)}); "
                f"choose one by --eos TOKEN, or use --no-eos"
            )
    raise ConfigError(
        "the tokenizer has no token known to end a document; name one by --eos TOKEN (it must be in the vocabulary), "
        "or use --no-eos"
    )


def known(ids: Mapping[str, int], config: bytes | None, key: str, names: tuple[str, ...]) -> int | None:
    """Return the id of a token that the config names, or the one of the well-known `names`; None if not certain."""
    named = configured(config, key)
    if named is not None:
        return ids.get(named)
    found = [name for name in names if name in ids]
    return ids[found[0]] if len(found) == 1 else None


def named_token(ids: Mapping[str, int], token: str, option: str) -> int:
    """Return the id of a token that the user named.

    Raises:
        ConfigError: if the tokenizer has no such token; names the closest.
    """
    if token not in ids:
        near = difflib.get_close_matches(token, [name for name in ids if _BRACKETED.fullmatch(name)], n=3, cutoff=0.5)
        closest = f" (closest are {', '.join(map(repr, near))})" if near else ""
        raise ConfigError(
            f"{option} {token!r}: the tokenizer has no such token{closest}; give one of its tokens exactly as it is "
            "written, or add it by --add-special-tokens"
        )
    return ids[token]


def special_contents(added: list[dict[str, Any]]) -> list[str]:
    """Return the contents of those added tokens that steer a model, so that text that quotes them stays text."""
    return [str(token["content"]) for token in added if token.get("special") or CONTROL.match(str(token["content"]))]
