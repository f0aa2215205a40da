"""A tar as a stream of samples: adjacent files whose names agree up to the first dot.

`tarfile` takes a tar that was cut between two files for a whole one, so headers are walked here; it only parses them.
"""

import re
import tarfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from shardtools.corpus.blocks import Block, Seek
from shardtools.corpus.files import InputFile
from streampipe.errors import SourceError

BLOCK = 512
MAX_MEMBER_BYTES = 1 << 31
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
_LONG_NAME, _LONG_LINK = b"L", b"K"
_PAX, _PAX_GLOBAL = b"x", b"g"
_PAX_FIELD = re.compile(rb"\d+ (path|size)=([^\n]*)\n")


@dataclass
class Sample:
    """Files of one key.

    Attributes:
        key: their name up to the first dot.
        start: the byte of the tar where the first header begins.
        end: the byte where its last file ends.
        seek: where decompression can start to reach it.
        files: their contents, by what follows the first dot; links and devices are None.
        repeated: an extension that was there twice.
    """

    key: str
    start: int
    end: int
    seek: Seek
    files: dict[str, bytes | None] = field(default_factory=dict)
    repeated: str = ""


def samples(file: InputFile, blocks: Iterator[Block], start: int, *, to_end: bool) -> Iterator[Sample]:
    """Yield the samples of a tar.

    Args:
        file: for messages.
        blocks: of the tar from the header at byte `start` on.
        start: where the first header begins.
        to_end: whether the blocks go to the end of the tar, whose end marker must then be there.

    Raises:
        SourceError: if the tar is cut or damaged.
    """
    stream = _Stream(file, blocks, start)
    sample: Sample | None = None
    for name, kind, begin, seek, data in _members(file, stream, to_end=to_end):
        match = _NAME.fullmatch(name)
        if match is None or kind == tarfile.DIRTYPE:
            continue
        key, extension = match[1], match[2].lower()
        if sample is None or sample.key != key:
            if sample:
                yield sample
            sample = Sample(key, begin, stream.at, seek)
        if extension in sample.files:
            sample.repeated = extension
        sample.files[extension], sample.end = data, stream.at
    if sample:
        yield sample


def _members(
    file: InputFile, stream: "_Stream", *, to_end: bool
) -> Iterator[tuple[str, bytes, int, Seek, bytes | None]]:
    long_name, size_said = "", None
    begin, seek = stream.at, stream.seek()
    while True:
        header = stream.read(BLOCK, at_end=not to_end)
        if not header.strip(b"\0"):
            if to_end:
                stream.check_end()
            return
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.TarError as error:
            raise _damaged(file, f"a header at byte {stream.at - BLOCK} is damaged ({error})") from error
        size = info.size if size_said is None else size_said
        kind = info.type
        regular = kind in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
        special = kind in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL)
        if size < 0 or size > MAX_MEMBER_BYTES or (special and size > 1 << 20):
            raise _damaged(file, f"{info.name!r} claims {size} bytes, expected {MAX_MEMBER_BYTES} at most")
        data = stream.read(size + -size % BLOCK)[:size] if regular or special else None
        if special:
            if kind == _LONG_NAME:
                long_name = data.rstrip(b"\0").decode(errors="surrogateescape") if data else ""
            elif kind == _PAX and data:
                said = dict(_PAX_FIELD.findall(data))
                long_name = said[b"path"].decode(errors="surrogateescape") if b"path" in said else long_name
                size_said = int(said[b"size"]) if said.get(b"size", b"").isdigit() else None
            continue
        yield long_name or info.name, kind, begin, seek, data
        long_name, size_said = "", None
        begin, seek = stream.at, stream.seek()


class _Stream:
    """Bytes of the blocks, in the pieces asked for."""

    def __init__(self, file: InputFile, blocks: Iterator[Block], start: int) -> None:
        self._file, self._blocks = file, blocks
        self._held = bytearray()
        self._places: deque[tuple[int, Seek]] = deque()  # of each block held: where it ends, and how to reach it
        self.at = start

    def seek(self) -> Seek:
        """Return where decompression can start to reach the byte at hand."""
        while self._places and self._places[0][0] <= self.at:
            self._places.popleft()
        if not self._places and not self._more():
            return Seek()
        return self._places[0][1]

    def _more(self) -> bool:
        found = next(self._blocks, None)
        if found is None:
            return False
        self._held += found[0]
        self._places.append((self.at + len(self._held), found[1]))
        return True

    def read(self, count: int, *, at_end: bool = False) -> bytes:
        """Return `count` bytes; none at the end of the blocks, if that may be here."""
        while len(self._held) < count:
            if not self._more():
                if at_end and not self._held:
                    return b""
                raise _damaged(self._file, f"it ends at byte {self.at + len(self._held)} without its end marker")
        part = bytes(self._held[:count])
        del self._held[:count]
        self.at += count
        return part

    def check_end(self) -> None:
        """Refuse anything but zeros behind the end marker, such as another tar."""
        while True:
            if self._held.strip(b"\0"):
                raise _damaged(self._file, f"something follows its end marker at byte {self.at}; split joined tars")
            self._held.clear()
            if not self._more():
                return


def _damaged(file: InputFile, what: str) -> SourceError:
    return SourceError(
        f"{file.address}: the tar is not whole: {what}; copy or write it again, or leave it out (--include)",
        path=file.address,
    )
