"""A source as an endless axis of tokens: epoch 0, epoch 1, ..., each a permutation of its frames."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streampipe.rng import keyed_permutation
from streampipe.shards.frame_index import Ragged


class FrameLengths(Protocol):
    """What the plan reads of a shard's index: F frames, D documents.

    Attributes:
        tokens: int64 [F], tokens of each frame.
        first_document: int64 [F + 1]; frame f holds the documents `first_document[f]` up to `first_document[f + 1]`.
        lengths: int32 [D], tokens of each document.
        fragments: of each document where its separators are; None where that is not known.
    """

    @property
    def tokens(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def first_document(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def lengths(self) -> NDArray[np.int32]: ...  # noqa: D102
    @property
    def fragments(self) -> Ragged | None: ...  # noqa: D102


class Lengths(Protocol):
    """A source, as far as the plan sees it."""

    @property
    def shard_tokens(self) -> NDArray[np.int64]:
        """Tokens of each shard: int64 [shards]."""

    def index(self, shard: int) -> FrameLengths:
        """Return the lengths of a shard's documents, by frame."""


@dataclass(frozen=True)
class FrameRun:
    """Frames of one source in the order of its axis: arrays of the same length.

    Attributes:
        epoch, shard, frame: int64, which frame.
        starts: int64, axis position of the frame's first token.
    """

    epoch: NDArray[np.int64]
    shard: NDArray[np.int64]
    frame: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True)
class Era:
    """Epochs of a source that have the same shards in the same kind of order.

    Attributes:
        epoch: the first of them.
        start: axis position at which it begins.
        shards: how many shards of the manifest take part, from the first on.
        shuffle: shards whose frames are permuted together; 0 for everything in the order of the manifest.
    """

    epoch: int
    start: int
    shards: int
    shuffle: int


@dataclass(frozen=True)
class _Epoch:
    start: int  # axis position at which it begins
    order: NDArray[np.int64]  # shards in the order of this epoch
    group: int  # shards of a group
    group_start: NDArray[np.int64]  # [groups + 1] token position inside the epoch at which a group of shards begins


class SourceAxis:
    """The frames of one source in the order in which the blend consumes them.

    Shards are permuted, then taken in groups of `shuffle`; the frames of a group are permuted together. A source that
    grows, or whose `shuffle` changes, begins a new era with its next epoch.

    Args:
        name: of the source; part of every key.
        lengths: of its documents.
        seed: of the run.
        eras: in order; the first may begin later than epoch 0 where earlier ones are over.
        order: shards in an order of the user's own, instead of a permutation.
    """

    def __init__(
        self, name: str, lengths: Lengths, seed: int, eras: Sequence[Era], order: NDArray[np.int64] | None = None
    ) -> None:
        self.name = name
        self.lengths = lengths
        self.eras = tuple(eras)
        self._seed = seed
        self._order = order
        self._before = np.concatenate([[0], np.cumsum(lengths.shard_tokens)])
        self._epochs: OrderedDict[int, _Epoch] = OrderedDict()
        self._groups: OrderedDict[tuple[int, int], FrameRun] = OrderedDict()

    def epoch_tokens(self, era: Era) -> int:
        """Return the tokens of each epoch of an era."""
        return int(self._before[era.shards])

    def epoch_at(self, position: int) -> tuple[int, int]:
        """Return the epoch that an axis position lies in, and where that epoch begins."""
        era = max((era for era in self.eras if era.start <= position), key=lambda era: era.epoch, default=self.eras[0])
        passed = (position - era.start) // self.epoch_tokens(era)
        return era.epoch + passed, era.start + passed * self.epoch_tokens(era)

    def start_of(self, epoch: int) -> int:
        """Return the axis position at which an epoch begins."""
        era = self._era_of(epoch)
        return era.start + (epoch - era.epoch) * self.epoch_tokens(era)

    def epochs_until(self, position: int) -> float:
        """Return how many passes an axis position stands for."""
        epoch, start = self.epoch_at(position)
        return epoch + (position - start) / max(1, self.start_of(epoch + 1) - start)

    def changed(self, position: int, shards: int, shuffle: int) -> "SourceAxis":
        """Return the axis that takes in `shards` and `shuffle` with the first epoch to begin at `position` or later."""
        epoch, start = self.epoch_at(position)
        if start < position:
            epoch += 1
        kept = [era for era in self.eras if era.epoch < epoch] or []
        era = Era(epoch, self.start_of(epoch), shards, shuffle)
        return SourceAxis(self.name, self.lengths, self._seed, [*kept, era], self._order)

    def frames_between(self, start: int, stop: int) -> FrameRun:
        """Return the frames whose first token lies in `[start, stop)` of the axis, in axis order."""
        runs: list[FrameRun] = []
        position = start
        while position < stop:
            number, base = self.epoch_at(position)
            end = min(stop, self.start_of(number + 1))
            group_start = self._epoch(number).group_start
            first = int(np.searchsorted(group_start, position - base, side="right")) - 1
            last = int(np.searchsorted(group_start, end - base, side="left"))
            for group in range(first, last):
                run = self._group(number, group)
                lo, hi = np.searchsorted(run.starts, (position, end), side="left")
                if lo < hi:
                    runs.append(FrameRun(run.epoch[lo:hi], run.shard[lo:hi], run.frame[lo:hi], run.starts[lo:hi]))
            position = end
        return _joined(runs)

    def shard_order(self, epoch: int) -> NDArray[np.int64]:
        """Return the shards in the order of an epoch."""
        return self._epoch(epoch).order

    def _era_of(self, epoch: int) -> Era:
        return max((era for era in self.eras if era.epoch <= epoch), key=lambda era: era.epoch, default=self.eras[0])

    def _epoch(self, epoch: int) -> _Epoch:
        if epoch not in self._epochs:
            era = self._era_of(epoch)
            group = era.shuffle or 1
            if self._order is not None:
                order = self._order
            elif not era.shuffle:
                order = np.arange(era.shards)
            else:
                order = keyed_permutation(era.shards, self._seed, "shards", self.name, epoch)
            ends = np.cumsum(self.lengths.shard_tokens[order])
            # The last shard of each group closes it; the last group may be smaller.
            closing = np.minimum(np.arange(group, len(order) + group, group), len(order)) - 1
            starts = np.concatenate([[0], ends[closing]])
            self._epochs[epoch] = _Epoch(self.start_of(epoch), order, era.shuffle, starts)
            _keep(self._epochs, 2)
        return self._epochs[epoch]

    def _group(self, epoch: int, group: int) -> FrameRun:
        key = (epoch, group)
        if key not in self._groups:
            self._groups[key] = self._load_group(epoch, group)
            _keep(self._groups, 4)
        self._groups.move_to_end(key)
        return self._groups[key]

    def _load_group(self, number: int, group: int) -> FrameRun:
        epoch = self._epoch(number)
        size = epoch.group or 1
        shards = epoch.order[group * size : (group + 1) * size]
        frame_tokens = [self.lengths.index(int(shard)).tokens for shard in shards]
        shard = np.repeat(shards, [len(tokens) for tokens in frame_tokens])
        frame = np.concatenate([np.arange(len(tokens)) for tokens in frame_tokens])
        tokens = np.concatenate(frame_tokens)
        if epoch.group:
            shuffled = keyed_permutation(len(frame), self._seed, "frames", self.name, number, group)
            shard, frame, tokens = shard[shuffled], frame[shuffled], tokens[shuffled]
        ends = np.cumsum(tokens) + epoch.start + epoch.group_start[group]
        return FrameRun(np.full(len(frame), number), shard, frame, ends - tokens)


def _joined(runs: list[FrameRun]) -> FrameRun:
    if not runs:
        none = np.empty(0, np.int64)
        return FrameRun(none, none, none, none)
    return FrameRun(
        *(np.concatenate([getattr(run, field) for run in runs]) for field in ("epoch", "shard", "frame", "starts"))
    )


def _keep(cache: OrderedDict[Any, Any], most: int) -> None:
    while len(cache) > most:
        cache.popitem(last=False)
