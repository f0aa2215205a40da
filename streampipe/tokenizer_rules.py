"""What a tokenizer.json says of how it treats texts, as far as cuts inside tokens must know it."""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streampipe.assemble.byte_table import ByteTable, may_hold_border

# Ways to say that what a pattern matches is a word. The second, of files made from tiktoken's, would remove the rest,
# but patterns that end in `\s+` leave none.
_KEEPING = (("Isolated", False), ("Removed", True))
_CONTRACTIONS = {
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    "'(?i:[sdmt]|ll|ve|re)",
    *(f"'{s}" for s in ("s", "t", "re", "ve", "m", "ll", "d")),
}
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = {
    f"{lead}{upper}{lower}(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    for lead in (r"[^\r\n\p{L}\p{N}]?",)
    for upper, lower in ((f"{_UPPER}*", f"{_LOWER}+"), (f"{_UPPER}+", f"{_LOWER}*"))
}
_WORDS = {
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?+\p{L}+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?\p{L}+",
}
_MARKS = {
    r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]++[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[\p{P}\p{S}]+[\r\n]*",
}
# Alternatives of pre-tokenizer patterns (GPT-2, cl100k, o200k, Llama 3, Qwen, DeepSeek). None goes on over what
# `byte_table` takes for a border, or looks beyond it. A pattern made of others is not refused: its texts are encoded
# whole.
_ALTERNATIVES = {
    *_CONTRACTIONS,
    *_O200K,
    *_WORDS,
    *_MARKS,
    r" ?\p{N}+",
    r"\p{N}",
    r"\p{N}+",
    r"\p{N}{1,3}",
    r"\p{N}{1,3}+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"\s*[\r\n]+",
    r"\s*[\r\n]",
    r"[\r\n]+",
    r"[\r\n]",
    r"\s+(?!\S)",
    r"\s++$",
    r"\s+$",
    r"\s+",
    r"\s",
}


def steps_of(step: Mapping[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer, sequences flattened."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [part for inner in step[key] for part in steps_of(inner, key)]
    return [dict(step)]


def without_prefix(content: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer that puts no space before a text."""
    bare = json.loads(json.dumps(content))
    normalizers = steps_of(bare.get("normalizer"), "normalizers")
    kept = [step for step in normalizers if step["type"] != "Prepend"]
    if len(kept) < len(normalizers):
        bare["normalizer"] = {"type": "Sequence", "normalizers": kept} if kept else None
    splitters = steps_of(bare.get("pre_tokenizer"), "pretokenizers")
    changed = False
    for step in splitters:
        if step["type"] == "ByteLevel" and step.get("add_prefix_space"):
            step["add_prefix_space"] = False
            changed = True
        if step["type"] == "Metaspace" and (step.get("prepend_scheme", "always") != "never"):
            step["prepend_scheme"] = "never"
            step.pop("add_prefix_space", None)
            changed = True
    if changed:
        single = len(splitters) == 1
        bare["pre_tokenizer"] = splitters[0] if single else {"type": "Sequence", "pretokenizers": splitters}
    return dict(bare)


def bytes_of_ids(content: Mapping[str, Any]) -> ByteTable | None:
    """Return the bytes of the ids of a byte-level tokenizer; None for others."""
    steps = steps_of(content.get("pre_tokenizer"), "pretokenizers")
    model = content["model"]
    if not any(step["type"] == "ByteLevel" for step in steps) or model.get("type", "BPE") != "BPE":
        return None
    letters = byte_letters()
    added = {token["id"]: token for token in content.get("added_tokens") or []}
    ids = {i: text for text, i in model["vocab"].items()} | {i: token["content"] for i, token in added.items()}
    pieces: list[bytes | None] = [None] * (max(ids) + 1)
    for i, text in ids.items():
        if i in added:
            pieces[i] = None if added[i]["special"] else text.encode()
        elif all(letter in letters for letter in text):
            pieces[i] = bytes(letters[letter] for letter in text)
    return ByteTable(pieces)


def byte_letters() -> dict[str, int]:
    """Return the byte of each letter that byte-level vocabularies are written in (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


def splits_at_safe_borders(content: Mapping[str, Any]) -> bool:
    """Return whether texts always fall apart at safe borders, and nothing is changed before."""
    model = content["model"]
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    normalizers = steps_of(content.get("normalizer"), "normalizers")
    if any(step["type"] != "NFC" for step in normalizers):
        return False  # a part of a text in NFC is in NFC; other normalizers make no such promise
    tokens = content.get("added_tokens") or []
    if normalizers and not all(unicodedata.is_normalized("NFC", token["content"]) for token in tokens):
        return False  # the library seeks another text than this one
    if _come_out_at_cuts(tokens):
        return False
    *steps, last = steps_of(content.get("pre_tokenizer"), "pretokenizers")
    if last["type"] != "ByteLevel":
        return False  # a step behind it would see the letters of bytes
    splits = bool(last.get("use_regex", True))
    for step in steps:
        if step["type"] == "Split" and (step["behavior"], step.get("invert", False)) in _KEEPING:
            alternatives = _alternatives(step["pattern"].get("Regex", ""))
            if not alternatives <= _ALTERNATIVES:
                return False
            splits |= _splits(alternatives)
        elif step["type"] != "Digits":
            return False
    return splits


def _splits(alternatives: set[str]) -> bool:
    """Return whether a pattern matches all letters, marks and spaces; what it leaves out sticks together."""
    words = _WORDS & alternatives or alternatives >= _O200K
    return bool(words and _MARKS & alternatives and r"\s+" in alternatives)


def _come_out_at_cuts(tokens: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a cut may let an added token appear that reaches over a stored border.

    The library takes the leftmost and longest of them, first among those that it seeks before it normalizes. So what
    overlaps one that is cut may appear, as may what a special token of the same search hides, which is found as well,
    though here it is text. Without such pairs, a border between stored ids is inside no added token of the parts
    either.
    """
    plain = [token for token in tokens if not token["special"]]
    if any(token.get("lstrip") or token.get("rstrip") or token.get("single_word") for token in plain):
        return True
    kinds = [(bool(token["special"]), bool(token.get("normalized", True))) for token in tokens]
    hiding_early, hiding, early, late = (
        [token["content"] for token, own in zip(tokens, kinds, strict=True) if own == kind]
        for kind in ((True, False), (True, True), (False, False), (False, True))
    )
    crossing, early_begin = _beginnings(filter(may_hold_border, (*early, *late))), _beginnings(early)
    return (
        any(_ends_in(text, crossing) for text in (*early, *late))
        or any(_ends_in(text, early_begin) for text in late if may_hold_border(text))
        or _hides(hiding_early, early)
        or _hides(hiding, late)
    )


def _hides(special: Sequence[str], added: Sequence[str]) -> bool:
    begin = _beginnings(added)
    return any(_ends_in(one, begin) or any(text in one for text in added) for one in special)


def _beginnings(texts: Iterable[str]) -> set[str]:
    return {text[:size] for text in texts for size in range(1, len(text))}


def _ends_in(text: str, beginnings: set[str]) -> bool:
    return any(text[at:] in beginnings for at in range(1, len(text)))


def _alternatives(pattern: str) -> set[str]:
    """Return the alternatives of a pattern: split at each `|` that is in no bracket."""
    pattern = pattern.replace("\r", r"\r").replace("\n", r"\n")
    parts = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|[()|]|[^\\\[()|]+", pattern)
    found, depth = [""], 0
    for part in parts:
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            found.append("")
        else:
            found[-1] += part
    return set(found)
