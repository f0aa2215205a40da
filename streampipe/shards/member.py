"""One file inside a shard: a tar header, an npy header, the numbers, zeros up to the next block.

The tar header is made here rather than by `tarfile`, whose bytes differ between Python releases (device numbers),
and at a tenth of its cost. A reader takes only headers that equal, byte for byte, what is written here.
"""

import io
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 512
END_MARKER = bytes(2 * BLOCK)
"""Two blocks of zeros end a tar file."""


def tar_header(name: str, size: int) -> bytes:
    """Return the ustar header of a plain file: 512 bytes; mode 0644, owner 0, time 0, no names.

    Raises:
        ValueError: if name or size do not fit plain ustar.
    """
    encoded = name.encode("ascii")
    if not (0 < len(encoded) <= 100 and 0 <= size < 8**11):
        raise ValueError(f"a tar member must have a name of 1 to 100 bytes and under 8 GiB, but got {name!r}, {size}")
    head = encoded.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % size + b"0" * 11 + b"\0"
    tail = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    return head + b"%06o\0 " % (sum(head) + sum(tail) + 8 * ord(" ")) + tail


def padding(size: int) -> int:
    """Return how many zeros follow `size` bytes up to the next block."""
    return -size % BLOCK


@lru_cache(maxsize=4096)
def npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Return the npy (version 1.0) header of a C-ordered array: 128 bytes for the shapes that occur here."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def parse_npy(data: bytes) -> NDArray[Any]:
    """Return the array of a whole npy file, without unpickling anything.

    Raises:
        ValueError: if it is anything but a plain little-endian C-ordered version 1.0 array that fills `data`.
    """
    buffer = io.BytesIO(data)
    if np.lib.format.read_magic(buffer) != (1, 0):
        raise ValueError("expected npy version 1.0")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(buffer)
    if fortran_order or dtype.kind not in "ui" or dtype.newbyteorder("<") != dtype:
        raise ValueError(f"expected little-endian integers in C order, got {dtype.str}, fortran_order {fortran_order}")
    start, count = buffer.tell(), int(np.prod(shape, dtype=np.int64))
    if start + count * dtype.itemsize != len(data) or npy_header(dtype.str, shape) != data[:start]:
        raise ValueError(f"expected {count} numbers of {dtype.itemsize} bytes after a plain header, got {len(data)}")
    return np.frombuffer(data, dtype, count, start).reshape(shape)
