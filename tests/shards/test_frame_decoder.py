"""Frames decoded beside the thread that reads them: the same bytes, each error to whoever asked, nobody waits on."""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampipe.errors import ShardCorruptError
from streampipe.shards import Document, Source
from streampipe.shards.frame import StoredFrame
from streampipe.shards.frame_decoder import FrameDecoder

SECONDS = 10


@pytest.fixture(scope="module", params=["zstd", "none"])
def source(request: pytest.FixtureRequest, documents: list[Document], write_source: Callable[..., Source]) -> Source:
    return write_source(f"memory://decoder/{request.param}", documents, compression=request.param)


@pytest.fixture(scope="module")
def decoder() -> Iterator[FrameDecoder]:
    decoder = FrameDecoder()
    yield decoder
    decoder.close()


def damaged(frame: StoredFrame) -> StoredFrame:
    """Return a frame whose stored bytes are as the index has them, but hold one byte less than it promises."""
    raw_bytes = frame.index.raw_bytes.copy()
    raw_bytes[frame.number] += 1
    return replace(frame, index=replace(frame.index, raw_bytes=raw_bytes))


@given(data=st.data())
def test_each_request_gets_its_frames_or_its_own_error(
    data: st.DataObject, source: Source, decoder: FrameDecoder
) -> None:
    every = [(s, f) for s, entry in enumerate(source.shards) for f in range(entry.frames)]
    asked = data.draw(st.lists(st.lists(st.sampled_from(every), max_size=6), max_size=8))
    broken = data.draw(st.sets(st.integers(0, 7)))
    waiting = []
    for number, frames in enumerate(asked):
        stored = source.fetch_frames(frames)
        if number in broken and stored:
            stored[-1] = damaged(stored[-1])
        found: dict[int, Any] = {}
        waiting.append((decoder.submit(stored, found.__setitem__), found))
    for number, (frames, (done, found)) in enumerate(zip(asked, waiting, strict=True)):
        if number in broken and frames:
            with pytest.raises(ShardCorruptError, match=f"frame {frames[-1][1]} at bytes"):
                done.result(SECONDS)
        else:
            done.result(SECONDS)
            assert [bytes(found[i]) for i in range(len(frames))] == [bytes(raw) for raw in source.read_frames(frames)]


def test_an_error_while_frames_are_put_in_place_is_told_and_ends_nothing(source: Source, decoder: FrameDecoder) -> None:
    def refuse(number: int, raw: Any) -> None:
        raise RuntimeError("no room")

    stored = source.fetch_frames([(0, 0)])
    with pytest.raises(RuntimeError, match="no room"):
        decoder.submit(stored, refuse).result(SECONDS)
    decoder.submit(stored, lambda number, raw: None).result(SECONDS)


def test_whoever_waits_when_it_is_closed_is_told(source: Source) -> None:
    decoder, begun, go_on = FrameDecoder(), Event(), Event()

    def hold(number: int, raw: Any) -> None:
        begun.set()
        go_on.wait(SECONDS)

    stored = source.fetch_frames([(0, 0)])
    first = decoder.submit(stored, hold)
    assert begun.wait(SECONDS)
    waiting = [decoder.submit(stored, hold) for _ in range(3)]
    decoder.close()
    go_on.set()
    first.result(SECONDS)
    for late in [*waiting, decoder.submit(stored, hold)]:
        with pytest.raises(CancelledError):
            late.result(SECONDS)
