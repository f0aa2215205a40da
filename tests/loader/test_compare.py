"""A loader of some of the ranks alone does not wait for the others."""

import logging
from pathlib import Path

import pytest
import torch
from streams import stream_of

from streampipe import Topology, build_loader


class _FourRanks:
    """torch.distributed as it looks in a launch of four, where nobody else will answer."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return 4

    def all_gather_object(self, gathered: object, mine: object) -> None:
        raise AssertionError("this would wait for ever")


def test_a_loader_that_only_rank_0_uses_waits_for_nobody(
    corpora: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "distributed", _FourRanks())
    with caplog.at_level(logging.WARNING), build_loader(stream_of(corpora), Topology()) as loader:
        next(loader)
    assert "4 ranks, the topology of this loader 1" in caplog.text
    with pytest.raises(AssertionError, match="wait for ever"):
        next(build_loader(stream_of(corpora), Topology(dp_size=4)))
