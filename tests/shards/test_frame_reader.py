"""How far ahead frames are asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streampipe.mock import MockSource
from streampipe.mock_config import MockConfig
from streampipe.shards import Document, Source
from streampipe.shards.frame_reader import FrameReader, StorageConfig


@pytest.mark.parametrize("threads", [None, 2])
def test_what_threads_read_is_asked_for_until_the_budget_is_used_up(
    threads: int | None, tmp_path: Path, documents: list[Document], write_source: Callable[..., Source]
) -> None:
    source = write_source(str(tmp_path), documents)
    reader, views = FrameReader(StorageConfig(1000, threads)), dict[int, Any]()
    reads = [*reader.request(source, [(0, 0)], 600, views.__setitem__)]
    assert not reader.full()
    reads += reader.request(source, [(0, 1)], 600, views.__setitem__)
    assert reader.full()
    reader.consumed(600)
    assert not reader.full()
    for read in reads:
        read.result()
    reader.close()


@pytest.mark.parametrize("threads", [None, 0])
def test_frames_that_no_thread_reads_are_not_asked_for_ahead(threads: int | None) -> None:
    source = MockSource("web", MockConfig(documents=10_000), 1)
    reader, views = FrameReader(StorageConfig("256MiB", threads)), dict[int, Any]()
    reads = reader.request(source, [(0, 0), (0, 1)], 600, views.__setitem__)
    assert reader.full()
    assert not views, "made where they are needed"
    for read in reads:
        read.result()
    assert sorted(views) == [0, 1]
    reader.close()
