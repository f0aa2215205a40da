"""WebDataset tars of text or JSON: `.txt`, `.json` and `.jsonl` files, plain, .gz or .zst; so may be the tar.

A `.json` file is a row, a `.txt` file its field `text`; each line of a `.jsonl` file is a row of its own. Files of
other kinds are left alone.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import xxhash

from shardtools.corpus.blocks import chunks, decompressed
from shardtools.corpus.corpus import SAMPLE_BYTES, SAMPLE_ROWS, Corpus, NumberedRow, Options, Reading
from shardtools.corpus.files import InputFile, Packing
from shardtools.corpus.formats.lines import packing_of
from shardtools.corpus.formats.records import BAD_ROW, BOM, parse_line
from shardtools.corpus.formats.tar_stream import MAX_MEMBER_BYTES, Sample, samples
from shardtools.corpus.units import HashedChunks, Scan, Unit, changed
from streampipe.errors import SourceError

NAME = re.compile(r"\.(tar(\.gz|\.zst)?|tgz)$", re.IGNORECASE)
KINDS = re.compile(r"(txt|json|jsonl)(?:\.(?:gz|zst))?")


def _packing(name: str, records: bool) -> Packing | None:
    return packing_of(name) if NAME.search(name) else None


def _scan(file: InputFile, unit_length: int, options: Options) -> Scan:
    hashed = HashedChunks(file, options)
    return hashed.finish(tuple(_units(file, hashed, unit_length)))


def _units(file: InputFile, hashed: HashedChunks, unit_length: int) -> Iterator[Unit]:
    """Cut between samples."""
    keys: set[bytes] = set()
    first: Sample | None = None
    digest, row, first_row, end = xxhash.xxh3_64(), 0, 0, 0
    for sample in samples(file, decompressed(file, iter(hashed)), 0, to_end=True):
        key = xxhash.xxh3_128_digest(sample.key.encode(errors="surrogateescape"))
        if key in keys:
            raise SourceError(
                f"{file.address}: files of {sample.key!r} stand in two places, so one sample would become two; "
                f"write the tar with the files of each sample together, or leave it out (--include)",
                path=file.address,
            )
        keys.add(key)
        if first is not None and sample.start - first.start >= unit_length:
            yield Unit(file, first.start, sample.start - first.start, first_row + 1, digest.hexdigest(), first.seek)
            first, digest, first_row = None, xxhash.xxh3_64(), row
        first = first or sample
        _add(digest, sample)
        row += _rows_in(file, sample)
        end = sample.end
    if first is not None:
        yield Unit(file, first.start, end - first.start, first_row + 1, digest.hexdigest(), first.seek)


def _add(digest: Any, sample: Sample) -> None:
    for name, data in sample.files.items():
        digest.update(f"{sample.key}.{name}\0{len(data or b'')}\0".encode(errors="surrogateescape"))
        digest.update(data or b"")


def _parts(sample: Sample) -> dict[str, str]:
    """Return the extension of each kind of file that is read; an extension that comes second is `repeated`."""
    parts: dict[str, str] = {}
    for extension in sample.files:
        if match := KINDS.fullmatch(extension):
            if match[1] in parts:
                sample.repeated = extension
            parts[match[1]] = extension
    return parts


def _rows_in(file: InputFile, sample: Sample) -> int:
    """Return how many rows a sample takes, good or bad: one, and one for each line of .jsonl."""
    extension = _parts(sample).get("jsonl")
    if extension is None or (data := sample.files[extension]) is None:
        return 1
    return 1 + len(_lines(_unpacked(file, sample, extension, data)))


def _unpacked(file: InputFile, sample: Sample, extension: str, data: bytes) -> bytes:
    packing = packing_of(extension)
    if not packing:
        return data
    member = InputFile(file.name, f"{file.address}: {sample.key}.{extension}", "", len(data), "plain", packing)
    parts, size = list[bytes](), 0
    for block, _ in decompressed(member, iter([data])):
        parts.append(block)
        size += len(block)
        if size > MAX_MEMBER_BYTES:
            raise SourceError(
                f"{member.address}: unpacks to more than {MAX_MEMBER_BYTES} bytes; split it", path=file.address
            )
    return b"".join(parts)


def _read(file: InputFile, units: Sequence[Unit], reading: Reading) -> Iterator[NumberedRow]:
    for unit in units:
        digest, row = xxhash.xxh3_64(), unit.first_line - 1
        for sample in samples(file, _blocks(file, unit, reading.options), unit.start, to_end=False):
            _add(digest, sample)
            yield from _rows(file, sample, row, reading)
            row += _rows_in(file, sample)
        if digest.hexdigest() != unit.digest:
            raise changed(file, unit)


def _blocks(file: InputFile, unit: Unit, options: Options) -> Iterator[tuple[bytes, Any]]:
    skip, left = unit.start - unit.seek.raw, unit.length
    for block, seek in decompressed(file, chunks(file, unit.seek.packed, options), unit.seek):
        part = block[skip : skip + left]
        skip, left = max(0, skip - len(block)), left - len(part)
        yield part, seek
        if not left:
            return


def _rows(file: InputFile, sample: Sample, row: int, reading: Reading) -> Iterator[NumberedRow]:
    where, tally, parts = f"{file.place(row)} ({sample.key})", reading.tally, _parts(sample)
    if sample.repeated:
        tally.bad("ambiguous", where, f"has more than one .{sample.repeated} file")
        return
    contents: dict[str, bytes] = {}
    for kind, extension in parts.items():
        data = sample.files[extension]
        if data is None:
            tally.bad("not_a_file", where, f"its .{extension} is a link or device, which is not followed")
            return
        contents[kind] = _unpacked(file, sample, extension, data).removeprefix(BOM)
    if not parts:
        tally.skip("missing")
    if "json" in contents or "txt" in contents:
        found = _row(where, contents, reading)
        if found is not BAD_ROW:
            yield row, found
    for number, line in enumerate(_lines(contents.get("jsonl", b"")), row + 1):
        if line and not line.isspace():
            value = parse_line(line.removeprefix(BOM), f"{file.place(number)} ({sample.key})", tally)
            if value is not BAD_ROW:
                yield number, value


def _row(where: str, contents: dict[str, bytes], reading: Reading) -> Any:
    row = parse_line(contents["json"], where, reading.tally) if "json" in contents else {}
    if row is BAD_ROW or "txt" not in contents:
        return row
    if not isinstance(row, dict):
        return row
    if "text" in row:
        reading.tally.bad("ambiguous", where, "has both a .txt file and a field 'text' in its .json file")
        return BAD_ROW
    try:
        return {**row, "text": contents["txt"].decode()}
    except UnicodeDecodeError as error:
        reading.tally.bad("not_utf8", where, f"not UTF-8 text ({error.reason} at byte {error.start})")
        return BAD_ROW


def _lines(data: bytes) -> list[bytes]:
    return data.split(b"\n") if data else []


def _sample(file: InputFile, spots: int, reading: Reading) -> tuple[int, list[Any]]:
    found: list[Any] = []
    end = 0
    blocks = decompressed(file, chunks(file, 0, reading.options))
    for sample in samples(file, blocks, 0, to_end=False):
        found += [row for _, row in _rows(file, sample, 0, reading)]
        end = sample.end
        if end >= SAMPLE_BYTES or len(found) >= SAMPLE_ROWS:
            break
    return end, found


FILES = "WebDataset tars of .txt, .json, .jsonl files (.tar, .tar.gz, .tar.zst)"
TARS = Corpus("tar", FILES, _packing, _scan, _read, _sample)
