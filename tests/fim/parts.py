"""Reads transformed pieces back out of batches, by what the batch says of itself."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from laws import plain

from streampipe import build_loader
from streampipe.assemble.fim_cuts import FIM_COUNTS

NONE, PREFIX, SUFFIX, MIDDLE, SENTINEL = range(5)


@dataclass
class Piece:
    """A piece as it was delivered: tokens of each kind, in order, and what was trained."""

    source: int
    document: int
    epoch: int
    tokens: np.ndarray
    kinds: np.ndarray
    trained: np.ndarray
    labels: np.ndarray
    horizon: np.ndarray | None
    transformed: bool = field(init=False)

    def __post_init__(self):
        self.transformed = bool((self.kinds == SENTINEL).any())

    def of(self, kind):
        return self.tokens[self.kinds == kind].tolist()

    def restored(self):
        """The parts put back, with start and end tokens where they were."""
        if not self.transformed:
            return self.tokens.tolist()
        outside = np.flatnonzero(self.kinds == NONE)
        start = self.tokens[outside[outside == 0]].tolist()
        end = self.tokens[outside[outside == len(self.tokens) - 1]].tolist()
        return start + self.of(PREFIX) + self.of(MIDDLE) + self.of(SUFFIX) + end

    def order(self):
        """Kinds as they follow each other; empty parts do not show."""
        changes = np.flatnonzero(np.diff(self.kinds, prepend=-1))
        return self.kinds[changes].tolist()


def fim_counts(batch):
    """What was done to the only source with fill-in-the-middle."""
    ((*counts,),) = batch["fim_counts"]
    return Counter(dict(zip(FIM_COUNTS, counts, strict=True)))


def inserted_as_metrics_tell(config):
    """Read a finite stream; what metrics tell of padding and of inserted tokens must be what the batches hold."""
    positions = tokens = 0
    with build_loader(config) as loader:
        assert loader.metrics()["padding"] == 0
        for batch in loader:
            positions += batch["tokens"].numel()
            tokens += int(batch["cu_seqlens"].diff()[batch["source_ids"] >= 0].sum())
        told = loader.metrics()
    assert told["padding"] == pytest.approx(1 - tokens / positions)
    assert told["fim"]["inserted"] == tokens - told["tokens"]
    return told["fim"]["inserted"]


def pieces_of(batch):
    arrays = plain(batch)
    begins, reals = arrays["cu_seqlens_padded"], np.diff(arrays["cu_seqlens"])
    for number, source in enumerate(arrays["source_ids"].tolist()):
        if source < 0:
            continue
        own = slice(int(begins[number]), int(begins[number]) + int(reals[number]))
        assert np.array_equal(arrays["position_ids"][own], np.arange(own.stop - own.start))
        assert np.array_equal(arrays["labels"][own] >= 0, arrays["loss_mask"][own] == 1)
        yield Piece(
            source,
            int(arrays["document_ids"][number]),
            int(arrays["epochs"][number]),
            arrays["tokens"][own],
            arrays["fim_parts"][own],
            arrays["loss_mask"][own] == 1,
            arrays["labels"][own],
            arrays["horizon"][own] if "horizon" in arrays else None,
        )
