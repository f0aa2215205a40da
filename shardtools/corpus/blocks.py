"""Bytes of a file from some point on, decompressed, checked to their end.

zstandard's and zlib's stream readers return a truncated file as a short one without a word, and some read only the
first frame; so frames (zstd) and members (gzip) are walked here one by one, and each must end.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import zstandard

from shardtools.corpus.files import InputFile, filesystem_of
from streampipe.errors import SourceError, StorageError

BLOCK_BYTES = 1 << 20
ZSTD_FEED_BYTES = 8 << 10
"""Compressed bytes given to zstd at once: a block of 4 bytes can expand to 128 KiB, so this bounds the output."""


class Seek(NamedTuple):
    """A place where decompression can start: byte of the file, and the decompressed byte that it stands for."""

    packed: int = 0
    raw: int = 0


START = Seek()

Block = tuple[bytes, Seek]
"""Decompressed bytes, and the nearest place before them to start from."""


def open_input(file: InputFile, options: Mapping[str, Any]) -> BinaryIO:
    """Open a file for reading.

    Raises:
        SourceError: if it has gone or cannot be opened.
    """
    try:
        if not file.url:
            return Path(file.path).open("rb")
        filesystem, _ = filesystem_of(file.url, options)
        opened: BinaryIO = filesystem.open(file.path, "rb", block_size=8 << 20)
    except StorageError:
        raise
    except Exception as error:
        raise SourceError(f"{file.address}: cannot open it: {error}; check the path", path=file.address) from error
    return opened


def chunks(file: InputFile, start: int, options: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the file's own bytes from `start` on.

    Raises:
        SourceError: if reading fails.
    """
    with open_input(file, options) as opened:
        try:
            opened.seek(start)
            while chunk := opened.read(BLOCK_BYTES):
                yield chunk
        except (OSError, ValueError) as error:
            raise SourceError(f"{file.address}: cannot read it: {error}; check the disk", path=file.address) from error


def decompressed(file: InputFile, packed: Iterator[bytes], seek: Seek = START) -> Iterator[Block]:
    """Yield what `packed`, the file's bytes from `seek.packed` on, stand for.

    Raises:
        SourceError: if the data are truncated, damaged, or followed by something else.
    """
    if file.packing == "":
        raw = seek.raw
        for chunk in packed:
            yield chunk, Seek(raw, raw)
            raw += len(chunk)
    else:
        yield from _members(file, packed, seek, _GzipMember if file.packing == "gz" else _ZstdFrame)


class _Member(Protocol):
    """One gzip member or zstd frame being decompressed."""

    def feed(self, data: bytes) -> Iterator[bytes]: ...

    @property
    def ended(self) -> bool: ...

    @property
    def rest(self) -> bytes: ...


class _GzipMember:
    def __init__(self) -> None:
        self._decompressor = zlib.decompressobj(31)

    def feed(self, data: bytes) -> Iterator[bytes]:
        while True:
            yield self._decompressor.decompress(data, BLOCK_BYTES)
            data = self._decompressor.unconsumed_tail
            if not data:
                return

    @property
    def ended(self) -> bool:
        return self._decompressor.eof

    @property
    def rest(self) -> bytes:
        return self._decompressor.unused_data


class _ZstdFrame:
    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor().decompressobj()
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), ZSTD_FEED_BYTES):
            yield self._decompressor.decompress(data[start : start + ZSTD_FEED_BYTES])
            if self._decompressor.eof:
                self._rest = self._decompressor.unused_data + data[start + ZSTD_FEED_BYTES :]
                return

    @property
    def ended(self) -> bool:
        return self._decompressor.eof

    @property
    def rest(self) -> bytes:
        return self._rest


def _members(file: InputFile, packed: Iterator[bytes], seek: Seek, new: Callable[[], _Member]) -> Iterator[Block]:
    member: _Member | None = None
    here = raw = 0
    here, raw = seek
    count = 0
    for chunk in packed:
        data = chunk
        while data:
            if member is None:
                if count and file.packing == "gz" and not data.strip(b"\0"):
                    here, data = here + len(data), b""  # gzip allows zeros as padding behind the last member
                    continue
                member, seek = new(), Seek(here, raw)
            try:
                for block in member.feed(data):
                    if block:
                        yield block, seek
                        raw += len(block)
            except (zlib.error, zstandard.ZstdError) as error:
                what = "holds something else behind its compressed data" if count else "is damaged"
                raise _damaged(file, f"{what} (at byte {here}: {error})") from error
            rest = member.rest if member.ended else b""
            here += len(data) - len(rest)
            data = rest
            if member.ended:
                member, count = None, count + 1
    if member is not None or (count == 0 and seek.packed == 0):
        raise _damaged(
            file, f"ends inside its compressed data (byte {here})" if here else "is empty, not compressed data"
        )


def _damaged(file: InputFile, what: str) -> SourceError:
    return SourceError(f"{file.address}: the .{file.packing} file {what}; copy or compress it again", path=file.address)
