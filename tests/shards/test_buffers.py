"""Memory is used again, and never while somebody looks at it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampipe.shards.buffers import FrameBuffers


def test_memory_that_nobody_looks_at_is_given_again():
    buffers = FrameBuffers()
    first = np.frombuffer(buffers.take(1000), np.uint8)
    address = first.ctypes.data
    part = first[10:20]
    del first
    assert np.frombuffer(buffers.take(1000), np.uint8).ctypes.data != address, "a part of it is still looked at"
    del part
    assert np.frombuffer(buffers.take(2000), np.uint8).ctypes.data == address


@given(st.lists(st.tuples(st.integers(1, 200_000), st.booleans()), max_size=40))
def test_no_memory_is_given_twice_while_in_use(steps):
    buffers = FrameBuffers()
    kept = []
    for number, (size, drop) in enumerate(steps):
        room = buffers.take(size)
        assert len(room) == size
        room[:] = bytes([number % 256]) * size
        kept.append((room, number % 256))
        if drop:
            kept.pop(0)
        for held, value in kept:
            assert held[0] == held[-1] == value
