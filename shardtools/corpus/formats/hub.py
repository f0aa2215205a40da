"""Data sets of the Hugging Face Hub, `hf:owner/name:split`, streamed through `datasets`.

Rows are what `datasets` makes of the files. No code of a data set is run: `datasets` takes none since release 4.
"""

import datetime
import decimal
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any

import xxhash

from shardtools.corpus.corpus import ROWS, SAMPLE_ROWS, Corpus, NumberedRow, Options, Reading, never
from shardtools.corpus.files import InputFile
from shardtools.corpus.formats.columnar import json_decoders, with_own_fields
from shardtools.corpus.units import Scan, Unit, changed
from streampipe.errors import ConfigError, SourceError

PREFIX = "hf:"
_ADDRESS = re.compile(r"hf:(?P<path>[^:@]+)(@(?P<revision>[^:]+))?(:(?P<name>[^:]+))?:(?P<split>[^:]+)")
_PART = re.compile(r"(.*)#(\d+)/(\d+)")


def _find(argument: str, options: Options) -> list[InputFile]:
    """Return one entry for each part of a split that can be streamed alone; nothing but its description is read."""
    count = max(1, int(_stream(argument).num_shards))
    return [
        InputFile(f"{argument}#{part:05d}/{count}", f"{argument}#{part:05d}/{count}", "", 0, "hub")
        for part in range(count)
    ]


def _stream(argument: str) -> Any:
    return _opened(argument, os.getpid())  # what was opened before a fork stays there


@lru_cache(maxsize=8)
def _opened(argument: str, process: int) -> Any:
    match = _ADDRESS.fullmatch(argument)
    if match is None:
        raise ConfigError(
            f"{argument}: expected hf:owner/name:split, hf:owner/name:config:split or hf:owner/name@revision:split"
        )
    try:
        import datasets  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{argument}: needs the package `datasets`; pip install 'streampipe-llm[datasets]'"
        ) from error
    try:
        stream = datasets.load_dataset(
            match["path"], match["name"], split=match["split"], revision=match["revision"], streaming=True
        )
    except Exception as error:  # of this library, of its readers, and of the network
        raise SourceError(
            f"{argument}: cannot be opened: {type(error).__name__}: {error}; check the name, the split, the network, "
            f"and for private data sets `hf auth login`",
            path=argument,
        ) from error
    media = {"Image", "Audio", "Video", "Pdf", "Nifti", "Mesh"}
    held = [name for name, kind in (stream.features or {}).items() if type(kind).__name__ in media]
    return stream.remove_columns(held) if held else stream


def _rows_of(file: InputFile, start: int) -> Iterator[tuple[int, Any]]:
    match = _PART.fullmatch(file.path)
    if match is None:
        raise ConfigError(f"{file.path}: expected a part of a data set")
    argument, part, count = match[1], int(match[2]), int(match[3])
    stream = _stream(argument)
    if max(1, int(stream.num_shards)) != count:
        raise SourceError(
            f"{argument}: has {stream.num_shards} parts, but had {count}; name a revision, hf:owner/name@revision:split"
        )
    stream = stream.shard(count, part) if count > 1 else stream
    try:
        yield from enumerate(stream.skip(start) if start else stream, start)
    except Exception as error:
        raise SourceError(
            f"{file.address}: cannot be read on: {type(error).__name__}: {error}; run the command again to go on",
            path=file.address,
        ) from error


def _scan(file: InputFile, unit_length: int, options: Options) -> Scan:
    """Stream all rows once: what is hashed is their JSON."""
    whole, digest, size, start, stop = hashlib.sha256(), xxhash.xxh3_64(), 0, 0, 0
    found: list[tuple[int, int, str]] = []
    for number, row in _rows_of(file, 0):
        data = _canonical(file, number, row)
        whole.update(data)
        digest.update(data)
        size, stop = size + len(data), number + 1
        if stop - start >= unit_length:
            found.append((start, stop - start, digest.hexdigest()))
            start, digest = stop, xxhash.xxh3_64()
    if stop > start:
        found.append((start, stop - start, digest.hexdigest()))
    seen = replace(file, bytes=size)
    units = tuple(Unit(seen, start, length, start + 1, digest) for start, length, digest in found)
    return Scan(seen, whole.hexdigest(), units)


def _canonical(file: InputFile, number: int, row: Any) -> bytes:
    try:
        return json.dumps(row, sort_keys=True, default=_plain).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"{file.place(number)}: holds what JSON cannot: {error}; take the column out of the data set",
            path=file.address,
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta | decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    raise TypeError(f"{type(value).__name__}")


def _read(file: InputFile, units: Sequence[Unit], reading: Reading) -> Iterator[NumberedRow]:
    rows = _rows_of(file, units[0].start)
    for unit in units:
        digest, count = xxhash.xxh3_64(), 0
        for number, row in islice(rows, unit.length):
            digest.update(_canonical(file, number, row))
            count += 1
            yield number, _own(file, row) if reading.own_fields else row
        if count != unit.length or digest.hexdigest() != unit.digest:
            raise changed(file, unit)


def _own(file: InputFile, row: Any) -> Any:
    """Return a row without other rows' fields; columns of JSON have none, and are decoded already."""
    json_columns = _json_columns(file.path.partition("#")[0])
    return {name: value if name in json_columns else with_own_fields(value) for name, value in row.items()}


@lru_cache(maxsize=8)
def _json_columns(argument: str) -> frozenset[str]:
    features = _stream(argument).features
    return frozenset(json_decoders(features.to_dict() if features else {}))


def _sample(file: InputFile, spots: int, reading: Reading) -> tuple[int, list[Any]]:
    rows = [_own(file, row) if reading.own_fields else row for _, row in islice(_rows_of(file, 0), SAMPLE_ROWS)]
    return len(rows), rows


HUB = Corpus(
    "hub",
    "data sets of the Hugging Face Hub (hf:owner/name:split)",
    never,
    _scan,
    _read,
    _sample,
    guess=ROWS,
    prefix=PREFIX,
    find=_find,
)
