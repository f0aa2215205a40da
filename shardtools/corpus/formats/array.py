"""One JSON array of rows, as many fine-tuning sets are stored; plain, .gz, .zst."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import xxhash

from shardtools.corpus.blocks import START, Block, chunks, decompressed
from shardtools.corpus.corpus import Corpus, NumberedRow, Options, Reading, never
from shardtools.corpus.files import InputFile
from shardtools.corpus.formats.lines import first_bytes
from shardtools.corpus.formats.records import BOM
from shardtools.corpus.tally import Tally
from shardtools.corpus.units import HashedChunks, Scan, Unit, changed

_DECODER = json.JSONDecoder(strict=False)
_BLANK = re.compile(r"[ \t\r\n]*")
_OUTSIDE = re.compile(rb'["\[\]{},]')
_INSIDE = re.compile(rb'["\\]')


def is_array(start: bytes) -> bool:
    """Tell from its first bytes whether a JSON file is an array of rows rather than lines (which may be lists)."""
    content = start.removeprefix(BOM).lstrip()
    line, _, rest = content.partition(b"\n")
    try:
        lines_of_lists = bool(rest.strip()) and isinstance(json.loads(line), list)
    except ValueError:
        lines_of_lists = False
    return content.startswith(b"[") and not lines_of_lists


def _scan(file: InputFile, unit_length: int, options: Options) -> Scan:
    hashed = HashedChunks(file, options)
    return hashed.finish(tuple(_units(file, decompressed(file, iter(hashed)), unit_length)))


def _units(file: InputFile, blocks: Iterator[Block], unit_length: int) -> Iterator[Unit]:
    """Cut behind commas between rows; only the last unit, which may be empty, has none at its end."""
    cutter, held, start, first, seek = _Cutter(), bytearray(), 0, 1, START
    for block, block_seek in blocks:
        if not held:
            seek = block_seek
        held += block
        while cutter.find_comma(held, unit_length):
            end, cutter.at = cutter.at, 0
            yield Unit(file, start, end, first, xxhash.xxh3_64_hexdigest(held[:end]), seek)
            start, first, seek = start + end, 1 + cutter.commas, block_seek
            del held[:end]
    if cutter.at_comma and held:  # truncated behind a comma
        yield Unit(file, start, len(held), first, xxhash.xxh3_64_hexdigest(held), seek)
        start, first = start + len(held), 1 + cutter.commas
        held.clear()
    yield Unit(file, start, len(held), first, xxhash.xxh3_64_hexdigest(held), seek)


class _Cutter:
    """Finds the commas between rows, looking at each byte once.

    Attributes:
        at: how far the bytes have been looked at.
        commas: how many were found.
        at_comma: whether nothing but blanks has come since the last of them.
    """

    def __init__(self) -> None:
        self.at = self.commas = 0
        self.at_comma = False
        self._depth = 0
        self._in_string = False

    def find_comma(self, held: bytearray, least: int) -> bool:
        """Go on to the first comma between rows that ends `least` bytes or more; False if there is none yet."""
        while mark := (_INSIDE if self._in_string else _OUTSIDE).search(held, self.at):
            found = mark[0]
            if found == b"\\":
                if mark.end() == len(held):
                    self.at = mark.start()
                    return False
                self.at = mark.end() + 1
                continue
            self.at = mark.end()
            self.at_comma = found == b"," and self._depth == 1
            if found == b'"':
                self._in_string = not self._in_string
            elif found != b",":
                self._depth += 1 if found in b"[{" else -1
            elif self.at_comma:
                self.commas += 1
                if self.at >= least:
                    return True
        self.at_comma = self.at_comma and not held[self.at :].strip()
        self.at = len(held)
        return False


def _read(file: InputFile, units: Sequence[Unit], reading: Reading) -> Iterator[NumberedRow]:
    seek = units[0].seek
    source = (block for block, _ in decompressed(file, chunks(file, seek.packed, reading.options), seek))
    held, skip = bytearray(), units[0].start - seek.raw
    for unit in units:
        while len(held) < skip + unit.length and (block := next(source, None)) is not None:
            held += block
            cut = min(skip, len(held))
            del held[:cut]
            skip -= cut
        part = bytes(held[: unit.length])
        del held[: unit.length]
        if len(part) != unit.length or xxhash.xxh3_64_hexdigest(part) != unit.digest:
            raise changed(file, unit)
        yield from _rows(part, unit, reading.tally)


def _rows(part: bytes, unit: Unit, tally: Tally) -> Iterator[NumberedRow]:
    """Yield the rows of a unit. Behind one that is no JSON nothing of the unit can be told apart: one bad row."""
    file, number = unit.file, unit.first_line - 1
    text = part.decode(errors="surrogateescape")
    whole = _is_whole(text)
    at = text.index("[") + 1 if unit.start == 0 else 0
    separated, goes_on = True, False
    while True:
        at = _blank_end(text, at)
        if at == len(text) and goes_on:
            return  # with the next unit
        if text.startswith("]", at) and not (separated and number):
            if text[at + 1 :].strip():
                tally.bad("malformed", file.place(number), "something stands behind the end of the array")
            return
        begin = at
        try:
            if not separated:
                raise ValueError("expected a comma or the end of the array")
            row, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            place = unit.start + len(text[: getattr(error, "pos", at)].encode(errors="surrogateescape"))
            what = "the file ends inside its array" if at >= len(text) else f"not JSON ({_short(error)})"
            tally.bad("malformed", file.place(number), f"{what} at byte {place}; the rest cannot be read")
            return
        if whole or _is_whole(text[begin:at]):
            yield number, row
        else:
            tally.bad("not_utf8", file.place(number), "not UTF-8")
        number += 1
        at = _blank_end(text, at)
        separated = goes_on = text.startswith(",", at)
        at += separated


def _blank_end(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(getattr(error, "msg", error))


def _sample(file: InputFile, spots: int, reading: Reading) -> tuple[int, list[Any]]:
    part = first_bytes(file, 0, reading.options)
    return len(part), [row for _, row in _rows(part, Unit(file, 0, len(part)), Tally("count"))]


ARRAY = Corpus("array", "a JSON array of rows (.json; plain, .gz, .zst)", never, _scan, _read, _sample)
