"""One line of JSON."""

import json
from typing import Any

import msgspec

from shardtools.corpus.tally import Tally

BOM = b"\xef\xbb\xbf"
BAD_ROW = object()
"""Returned for a line that was counted as bad."""


def parse_line(line: bytes, where: str, tally: Tally) -> Any:
    """Decode one line; what the strict decoder refuses gets a second look by a tolerant one.

    NaN, numbers of any size, raw control characters and lone surrogates in other fields are common in real files and
    do not touch the text.
    """
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return json.loads(line.decode(), strict=False)
    except UnicodeDecodeError as error:
        tally.bad("not_utf8", where, f"not UTF-8 ({error.reason} at byte {error.start} of the line)")
    except RecursionError:
        tally.bad("malformed", where, "JSON nested too deeply")
    except ValueError as error:
        tally.bad("malformed", where, f"not one JSON object on the line ({error})")
    return BAD_ROW
