"""JSON lines: plain, .gz, .zst."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import xxhash

from shardtools.corpus.blocks import START, Block, Seek, chunks, decompressed
from shardtools.corpus.corpus import SAMPLE_BYTES, Corpus, NumberedRow, Options, Reading
from shardtools.corpus.files import InputFile, Packing
from shardtools.corpus.formats.records import BAD_ROW, BOM, parse_line
from shardtools.corpus.units import HashedChunks, Scan, Unit, changed

NAME = re.compile(r"\.(jsonl|ndjson)(\.gz|\.zst)?$", re.IGNORECASE)


def packing_of(name: str) -> Packing:
    """Return how a file is packed, by the end of its name."""
    ending = name.lower()
    return "gz" if ending.endswith((".gz", ".tgz")) else "zst" if ending.endswith(".zst") else ""


def _packing(name: str, records: bool) -> Packing | None:
    return packing_of(name) if NAME.search(name) else None


def _scan(file: InputFile, unit_length: int, options: Options) -> Scan:
    hashed = HashedChunks(file, options)
    return hashed.finish(tuple(_units(file, decompressed(file, iter(hashed)), unit_length)))


def _units(file: InputFile, blocks: Iterator[Block], unit_length: int) -> Iterator[Unit]:
    """Cut after the first line end at which a unit is long enough."""
    start = position = lines = 0
    first_line, seek, digest = 1, START, xxhash.xxh3_64()
    for block, block_seek in blocks:
        at = 0
        while at < len(block):
            if position == start:
                seek = block_seek
            earliest = at + max(0, start + unit_length - 1 - position)
            end = block.find(b"\n", earliest) + 1 if earliest < len(block) else 0
            stop = end or len(block)
            digest.update(memoryview(block)[at:stop])
            lines += block.count(b"\n", at, stop)
            position += stop - at
            at = stop
            if end:
                yield Unit(file, start, position - start, first_line, digest.hexdigest(), seek)
                start, first_line, digest = position, 1 + lines, xxhash.xxh3_64()
    if position > start:
        yield Unit(file, start, position - start, first_line, digest.hexdigest(), seek)


def _read(file: InputFile, units: Sequence[Unit], reading: Reading) -> Iterator[NumberedRow]:
    number = units[0].first_line - 2
    for line in _split(file, units, reading.options):
        number += 1
        content = line.removeprefix(BOM)
        del line  # a line may be large: one copy at a time
        if not content or content.isspace():
            continue
        row = parse_line(content, file.place(number), reading.tally)
        del content
        if row is not BAD_ROW:
            yield number, row


def _split(file: InputFile, units: Sequence[Unit], options: Options) -> Iterator[bytes]:
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
                    raise changed(file, unit)
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
        if digest.hexdigest() != unit.digest:
            raise changed(file, unit)
        if pieces:
            yield b"".join(pieces)


def _sample(file: InputFile, spots: int, reading: Reading) -> tuple[int, list[Any]]:
    """Look at plain lines in `spots` places, at compressed ones at their start."""
    apart = not file.packing and file.bytes > spots * SAMPLE_BYTES
    length, rows = 0, list[Any]()
    for start in [file.bytes * i // spots for i in range(spots)] if apart else [0]:
        part = first_bytes(file, start, reading.options)
        lines = part.split(b"\n")[1 if start else 0 : -1 if len(part) == SAMPLE_BYTES else None]
        if not lines:  # one line that reaches over the whole part
            length += len(part)
            rows.append(part.decode(errors="replace"))
            continue
        length += sum(len(line) + 1 for line in lines)
        parsed = [parse_line(line.removeprefix(BOM), "", reading.tally) for line in lines if line.strip()]
        rows += [row for row in parsed if row is not BAD_ROW]
    return length, rows


def first_bytes(file: InputFile, start: int, options: Options) -> bytes:
    """Return `SAMPLE_BYTES` decompressed bytes from a place where decompression can start, or what there is."""
    part = b""
    for block, _ in decompressed(file, chunks(file, start, options), Seek(start, start)):
        part += block
        if len(part) >= SAMPLE_BYTES:
            break
    return part[:SAMPLE_BYTES]


LINES = Corpus("lines", "JSON lines (.jsonl, .ndjson, .json; plain, .gz, .zst)", _packing, _scan, _read, _sample)
