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


@given(st.lists(st.booleans(), min_size=200, max_size=400))
def test_buffers_that_somebody_keeps_block_no_others(kept_ones):
    """A batch that a user keeps for good must not make the loader's memory grow without end."""
    buffers, kept, addresses = FrameBuffers(), [], set()
    for number, keep in enumerate(kept_ones):
        room = buffers.take(1000)
        addresses.add(np.frombuffer(room, np.uint8).ctypes.data)
        if number == 0 or (keep and len(kept) < 5):
            kept.append(room)
        del room
    assert len(addresses) <= len(kept) + 1
