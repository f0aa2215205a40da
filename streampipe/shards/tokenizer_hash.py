"""Hashes of a tokenizer.json by what it says, not by how it is laid out. No tokenizer library is needed."""

import hashlib
import json
from typing import Any

TOKENIZER_NAME = "tokenizer.json"
CORE = ("model", "normalizer", "pre_tokenizer")
"""What decides the ids of plain text. Added tokens are left out, so that a tokenizer with a few more of them agrees."""


def tokenizer_hashes(data: bytes) -> tuple[str, str]:
    """Return the hash of all that a tokenizer.json says, and that of its core; FORMAT.md gives the rule.

    Args:
        data: the bytes of the file.

    Raises:
        ValueError: if it is not a tokenizer.json.
    """
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise ValueError("it has no model")
    return _canonical_hash(content), _canonical_hash({key: content.get(key) for key in CORE})


def _canonical_hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
