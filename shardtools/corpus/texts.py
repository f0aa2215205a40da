"""From the units of a task to its texts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import msgspec
import xxhash

from shardtools.corpus.blocks import Seek, chunks, decompressed
from shardtools.corpus.fields import MISSING, AmbiguousFieldError, FieldPath
from shardtools.corpus.inputs import InputFile
from shardtools.corpus.rows import read_rows
from shardtools.corpus.scan import Unit
from shardtools.corpus.tally import Tally
from streampipe.errors import SourceError

SAMPLE_BYTES = 1 << 17
SAMPLE_ROWS = 256

BOM = b"\xef\xbb\xbf"
_BAD = object()


@dataclass(frozen=True)
class TextReader:
    """Reads texts out of units.

    Attributes:
        text_field: where the text is in a row.
        options: for the filesystems of URLs.
    """

    text_field: FieldPath
    options: Mapping[str, Any] = field(default_factory=dict)

    def read(self, units: Sequence[Unit], tally: Tally) -> Iterator["Text"]:
        """Yield the texts of units that follow each other, and count the rows that have none.

        Raises:
            SourceError: for a bad row (unless `tally` counts it), a damaged file, or one that changed since the scan.
        """
        for file, of_file in groupby(units, key=lambda unit: unit.file):
            run = list(of_file)
            if file.kind == "lines":
                yield from self._lines(file, run, tally)
            elif file.kind == "parquet":
                yield from self._rows(file, run, tally)
            else:
                yield from self._plain(file, run, tally)

    def sample(self, file: InputFile, spots: int) -> tuple[int, list[str]]:
        """Return texts of a file, and how much of it they take: bytes, or rows of Parquet.

        Plain lines are looked at in `spots` places, anything else at its start.
        """
        tally = Tally("count")
        if file.kind == "parquet":
            rows = islice(read_rows(file, self.text_field, (0, SAMPLE_ROWS), self.options), SAMPLE_ROWS)
            accepted = [
                [] if isinstance(row, UnicodeDecodeError) else list(self._accept(row, file, 0, tally)) for row in rows
            ]
            return len(accepted), [found.text[:SAMPLE_BYTES] for texts in accepted for found in texts]
        apart = file.kind == "lines" and not file.packing and file.bytes > spots * SAMPLE_BYTES
        length, texts = 0, list[str]()
        for start in [file.bytes * i // spots for i in range(spots)] if apart else [0]:
            part = self._part(file, start)
            lines = part.split(b"\n")[1 if start else 0 : -1 if len(part) == SAMPLE_BYTES else None]
            if file.kind == "plain" or not lines:  # one document, or one line that reaches over the whole part
                length += len(part)
                texts.append(part.decode(errors="replace"))
                continue
            length += sum(len(line) + 1 for line in lines)
            parsed = [_parse(line.removeprefix(BOM), "", tally) for line in lines if line.strip()]
            texts += [text.text for row in parsed if row is not _BAD for text in self._accept(row, file, 0, tally)]
        return length, texts

    def _part(self, file: InputFile, start: int) -> bytes:
        part = b""
        for block, _ in decompressed(file, chunks(file, start, self.options), Seek(start, start)):
            part += block
            if len(part) >= SAMPLE_BYTES:
                break
        return part[:SAMPLE_BYTES]

    def _lines(self, file: InputFile, units: Sequence[Unit], tally: Tally) -> Iterator["Text"]:
        number = units[0].first_line - 2
        for line in _split_lines(file, units, self.options):
            number += 1
            content = line.removeprefix(BOM)
            del line  # a line may be large: one copy at a time
            if not content or content.isspace():
                continue
            row = _parse(content, _place(file, number), tally)
            del content
            if row is not _BAD:
                yield from self._accept(row, file, number, tally)

    def _rows(self, file: InputFile, units: Sequence[Unit], tally: Tally) -> Iterator["Text"]:
        start, stop = units[0].start, units[-1].start + units[-1].length
        for number, row in enumerate(read_rows(file, self.text_field, (start, stop), self.options), start):
            if isinstance(row, UnicodeDecodeError):
                tally.bad("not_utf8", _place(file, number), f"the text is not UTF-8 ({row.reason})")
            else:
                yield from self._accept(row, file, number, tally)

    def _plain(self, file: InputFile, units: Sequence[Unit], tally: Tally) -> Iterator["Text"]:
        data = b"".join(chunks(file, 0, self.options))
        _check_unchanged(file, units[0], xxhash.xxh3_64_hexdigest(data), len(data))
        try:
            text = data.removeprefix(BOM).decode()
        except UnicodeDecodeError as error:
            why = f"not UTF-8 text ({error.reason} at byte {error.start})"
            if file.named:
                tally.bad("not_utf8", file.address, why)
            else:
                tally.not_text(file.address, why)
            return
        yield from _document(text, file, 0, tally)

    def _accept(self, row: Any, file: InputFile, number: int, tally: Tally) -> Iterator["Text"]:
        """Yield the text of a row, or count why it has none."""
        where = _place(file, number)
        if not isinstance(row, Mapping):
            tally.bad("not_an_object", where, f"expected a JSON object, but got {type(row).__name__}")
            return
        try:
            text = self.text_field.find(row)
        except AmbiguousFieldError as error:
            tally.bad("ambiguous", where, str(error))
            return
        if text is MISSING:
            if not tally.fields:
                tally.fields = [str(key) for key in row][:20]
            tally.skip("missing")
        elif text is None:
            tally.skip("null")
        elif not isinstance(text, str):
            tally.bad(
                "wrong_type", where, f"expected text in {self.text_field.literal!r}, but got {type(text).__name__}"
            )
        else:
            yield from _document(text, file, number, tally)


@dataclass(frozen=True, slots=True)
class Text:
    """One document to be.

    Attributes:
        file: where it was.
        row: its line or row there, from 0.
        text: not empty, not only whitespace, encodable.
    """

    file: InputFile
    row: int
    text: str

    @property
    def where(self) -> str:
        """The file and the place in it, for messages."""
        return _place(self.file, self.row)


def _place(file: InputFile, row: int) -> str:
    if file.kind == "plain":
        return file.address
    return f"{file.address}:{row + 1}" if file.kind == "lines" else f"{file.address}: row {row + 1}"


def _document(text: str, file: InputFile, row: int, tally: Tally) -> Iterator[Text]:
    if not text:
        tally.skip("empty")
    elif text.isspace():
        tally.skip("blank")
    elif (position := _lone_surrogate(text)) is not None:
        tally.bad(
            "lone_surrogate",
            _place(file, row),
            f"half of a surrogate pair at character {position}, which is no character",
        )
    else:
        yield Text(file, row, text)


def _lone_surrogate(text: str) -> int | None:
    if text.isascii():
        return None
    try:
        for start in range(0, len(text), 1 << 20):
            text[start : start + (1 << 20)].encode()
    except UnicodeEncodeError as error:
        return start + error.start
    return None


def _parse(line: bytes, where: str, tally: Tally) -> Any:
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
    return _BAD


def _split_lines(file: InputFile, units: Sequence[Unit], options: Mapping[str, Any]) -> Iterator[bytes]:
    r"""Yield the lines of units that follow each other, without their `\n` (nothing else ends a line)."""
    seek = units[0].seek
    source = (block for block, _ in decompressed(file, chunks(file, seek.packed, options), seek))
    skip = units[0].start - seek.raw
    block, at = b"", 0
    for unit in units:
        digest, missing, pieces = xxhash.xxh3_64(), unit.length, list[bytes]()
        while missing:
            while at >= len(block):
                following = next(source, None)
                if following is None:
                    _check_unchanged(file, unit, "", unit.length - missing)
                    return
                block, at = following, min(skip, len(following))
                skip -= at
            stop = min(len(block), at + missing)
            digest.update(memoryview(block)[at:stop])
            missing -= stop - at
            while (end := block.find(b"\n", at, stop)) >= 0:
                pieces.append(block[at:end])
                line = b"".join(pieces)
                pieces.clear()
                yield line
                at = end + 1
            if at < stop:
                pieces.append(block[at:stop])
                at = stop
        _check_unchanged(file, unit, digest.hexdigest(), unit.length)
        if pieces:
            yield b"".join(pieces)


def _check_unchanged(file: InputFile, unit: Unit, digest: str, length: int) -> None:
    if digest != unit.digest or length != unit.length:
        raise SourceError(
            f"{file.address}: changed since the build looked at it (bytes {unit.start} to {unit.start + unit.length}); "
            f"wait until nobody writes to it and run the build again",
            path=file.address,
        )
