"""Text and code: a file is one document."""

from collections.abc import Iterator, Sequence
from typing import Any

import xxhash

from shardtools.corpus.blocks import chunks
from shardtools.corpus.corpus import Corpus, NumberedRow, Options, Reading
from shardtools.corpus.files import InputFile, Packing
from shardtools.corpus.formats.lines import first_bytes
from shardtools.corpus.formats.records import BOM
from shardtools.corpus.units import HashedChunks, Scan, Unit, changed

FIELD = "text"
"""The field that the text of a file stands for."""


def _packing(name: str, records: bool) -> Packing | None:
    return ""


def _scan(file: InputFile, unit_length: int, options: Options) -> Scan:
    hashed, digest = HashedChunks(file, options), xxhash.xxh3_64()
    for chunk in hashed:
        digest.update(chunk)
    return hashed.finish((Unit(file, 0, file.bytes, digest=digest.hexdigest()),))


def _read(file: InputFile, units: Sequence[Unit], reading: Reading) -> Iterator[NumberedRow]:
    data = b"".join(chunks(file, 0, reading.options))
    if len(data) != units[0].length or xxhash.xxh3_64_hexdigest(data) != units[0].digest:
        raise changed(file, units[0])
    try:
        text = data.removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        why = f"not UTF-8 text ({error.reason} at byte {error.start})"
        if file.named:
            reading.tally.bad("not_utf8", file.address, why)
        else:
            reading.tally.not_text(file.address, why)
        return
    yield 0, {FIELD: text}


def _sample(file: InputFile, spots: int, reading: Reading) -> tuple[int, list[Any]]:
    part = first_bytes(file, 0, reading.options)
    return len(part), [part.decode(errors="replace")] if part else []


PLAIN = Corpus("plain", "text or code, a file a document (anything else)", _packing, _scan, _read, _sample)
