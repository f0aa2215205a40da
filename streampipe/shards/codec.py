"""How a frame is compressed, and decompressed to exactly what was promised."""

import threading
from array import array
from collections.abc import Sequence
from typing import Protocol

import zstandard

from streampipe.shards.manifest import Compression

_PER_THREAD = threading.local()
"""Holds each thread's decompressor: making one costs as much as decoding a small frame, sharing one is not allowed."""


class FrameCodec(Protocol):
    """Turns the raw bytes of one frame into its bytes on disk."""

    compression: Compression

    def compress(self, raw: bytes) -> bytes:
        """Return what is written; the same bytes for the same input and release of the compressor."""
        ...


class ZstdCodec:
    """One independent zstd frame with content size and content checksum, made by one thread.

    Not for use by several threads at once.
    """

    compression: Compression = "zstd"

    def __init__(self, level: int = 3) -> None:
        self._compressor = zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=True)

    def compress(self, raw: bytes) -> bytes:
        """Return one zstd frame."""
        return self._compressor.compress(raw)


class PlainCodec:
    """Frames are byte ranges of the tar file itself."""

    compression: Compression = "none"

    def compress(self, raw: bytes) -> bytes:
        """Return the bytes as they are."""
        return raw


def codec_for(compression: Compression, level: int = 3) -> FrameCodec:
    """Return a new codec; `level` is zstd's."""
    if compression == "zstd":
        return ZstdCodec(level)
    if compression == "none":
        return PlainCodec()
    raise ValueError(f"compression must be 'zstd' or 'none', but got {compression!r}")


def decompress(data: bytes | memoryview, raw_bytes: int, compression: Compression) -> bytes:
    """Return the `raw_bytes` bytes of one frame; never more are allocated, whatever the frame says.

    Raises:
        ValueError: if the frame does not hold exactly that, or is damaged; says what was expected and found.
    """
    if compression == "none":
        if len(data) != raw_bytes:
            raise ValueError(f"expected {raw_bytes} bytes, got {len(data)}")
        return bytes(data)
    try:
        _check_header(data, raw_bytes)
        raw = _decompressor().decompress(data, max_output_size=raw_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"expected {raw_bytes} bytes inside, zstd says: {error}") from error
    if len(raw) != raw_bytes:
        raise ValueError(f"expected {raw_bytes} bytes inside, got {len(raw)}")
    return raw


def decompress_into(data: bytes | memoryview, room: memoryview, compression: Compression) -> None:
    """Fill `room` with the bytes of one frame, which must be exactly as many.

    Raises:
        ValueError: if the frame does not hold exactly that, or is damaged; says what was expected and found.
    """
    if compression == "none":
        if len(data) != len(room):
            raise ValueError(f"expected {len(room)} bytes, got {len(data)}")
        room[:] = data
        return
    try:
        _check_header(data, len(room))
        # In one call, with room for all of it, zstd decodes straight into the buffer and checks its own checksum.
        reader = _decompressor().stream_reader(data, read_across_frames=False)
        filled = reader.readinto(room)
        rest = reader.read(1)
    except zstandard.ZstdError as error:
        raise ValueError(f"expected {len(room)} bytes inside, zstd says: {error}") from error
    if filled != len(room) or rest:
        raise ValueError(f"expected {len(room)} bytes inside, got {filled}{' and more' if rest else ''}")


def decompress_many(frames: Sequence[bytes | memoryview], raw_bytes: Sequence[int]) -> list[memoryview]:
    """Return the bytes of zstd frames, decoded in one call that lets the interpreter lock go once for all of them.

    Args:
        frames: each as it is stored.
        raw_bytes: how many bytes each must hold.

    Raises:
        ValueError: if any does not hold exactly that, or is damaged; `decompress` tells which.
    """
    if "multi_decompress_to_buffer" not in zstandard.backend_features:
        return [memoryview(decompress(data, size, "zstd")) for data, size in zip(frames, raw_bytes, strict=True)]
    if not frames:
        return []  # which the library divides by
    try:
        for data, size in zip(frames, raw_bytes, strict=True):
            _check_header(data, size)
            _check_end(data)
        sizes = array("Q", raw_bytes).tobytes()
        made = _decompressor().multi_decompress_to_buffer(list(frames), decompressed_sizes=sizes)
    except zstandard.ZstdError as error:
        raise ValueError(f"zstd says: {error}") from error
    return [memoryview(made[number]) for number in range(len(made))]  # type: ignore[arg-type]


def _check_header(data: bytes | memoryview, raw_bytes: int) -> None:
    parameters = zstandard.get_frame_parameters(data)
    if parameters.content_size != raw_bytes:
        raise ValueError(f"expected {raw_bytes} bytes inside, the zstd header says {parameters.content_size}")
    if not parameters.has_checksum:
        raise ValueError("expected a zstd content checksum, found none")


def _check_end(data: bytes | memoryview) -> None:
    """Refuse what has more or less behind the header than one frame: the library ignores what follows it.

    A frame is a header, blocks, each behind three bytes that tell its size, its type and whether it is the last, and a
    checksum of four bytes (RFC 8878, section 3.1.1).
    """
    at, last = zstandard.frame_header_size(data), False
    while not last and at + 3 <= len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        last, repeated = bool(head & 1), head >> 1 & 3 == 1  # a repeated byte stands there once
        at += 3 + (1 if repeated else head >> 3)
    if not last or at + 4 != len(data):
        raise ValueError(f"expected one frame of {at + 4} bytes, got {len(data)}")


def _decompressor() -> zstandard.ZstdDecompressor:
    try:
        decompressor: zstandard.ZstdDecompressor = _PER_THREAD.decompressor
    except AttributeError:
        decompressor = _PER_THREAD.decompressor = zstandard.ZstdDecompressor()
    return decompressor
