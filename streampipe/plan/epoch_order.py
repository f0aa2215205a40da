"""A source as an endless axis of tokens: epoch 0, epoch 1, ..., each a permutation of its frames."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streampipe.rng import keyed_permutation


class FrameLengths(Protocol):
    """What the plan reads of a shard's index: F frames, D documents.

    Attributes:
        tokens: int64 [F], tokens of each frame.
        first_document: int64 [F + 1]; frame f holds the documents `first_document[f]` up to `first_document[f + 1]`.
        lengths: int32 [D], tokens of each document.
    """

    @property
    def tokens(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def first_document(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def lengths(self) -> NDArray[np.int32]: ...  # noqa: D102


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
class _Epoch:
    order: NDArray[np.int64]  # shards in the order of this epoch
    group_start: NDArray[np.int64]  # [groups + 1] token position inside the epoch at which a group of shards begins


class SourceAxis:
    """The frames of one source in the order in which the blend consumes them.

    Shards are permuted, then taken in groups of `shuffle_shards`; the frames of a group are permuted together.
    `shuffle_shards=None` leaves everything in the order of the manifest.
    """

    def __init__(self, name: str, lengths: Lengths, seed: int, shuffle_shards: int | None) -> None:
        self.name = name
        self.lengths = lengths
        self.epoch_tokens = int(lengths.shard_tokens.sum())
        self._seed = seed
        self._shuffle_shards = shuffle_shards
        self._epochs: OrderedDict[int, _Epoch] = OrderedDict()
        self._groups: OrderedDict[tuple[int, int], FrameRun] = OrderedDict()

    def frames_between(self, start: int, stop: int) -> FrameRun:
        """Return the frames whose first token lies in `[start, stop)` of the axis, in axis order."""
        runs: list[FrameRun] = []
        position = start
        while position < stop:
            epoch = position // self.epoch_tokens
            base = epoch * self.epoch_tokens
            end = min(stop, base + self.epoch_tokens)
            group_start = self._epoch(epoch).group_start
            first = int(np.searchsorted(group_start, position - base, side="right")) - 1
            last = int(np.searchsorted(group_start, end - base, side="left"))
            for group in range(first, last):
                run = self._group(epoch, group)
                lo, hi = np.searchsorted(run.starts, (position, end), side="left")
                if lo < hi:
                    runs.append(FrameRun(run.epoch[lo:hi], run.shard[lo:hi], run.frame[lo:hi], run.starts[lo:hi]))
            position = end
        return _joined(runs)

    def _epoch(self, epoch: int) -> _Epoch:
        if epoch not in self._epochs:
            tokens = self.lengths.shard_tokens
            if self._shuffle_shards is None:
                order, group = np.arange(len(tokens)), 1
            else:
                order, group = (
                    keyed_permutation(len(tokens), self._seed, "shards", self.name, epoch),
                    self._shuffle_shards,
                )
            ends = np.cumsum(tokens[order])
            # The last shard of each group closes it; the last group may be smaller.
            closing = np.minimum(np.arange(group, len(tokens) + group, group), len(tokens)) - 1
            self._epochs[epoch] = _Epoch(order, np.concatenate([[0], ends[closing]]))
            _keep(self._epochs, 2)
        return self._epochs[epoch]

    def _group(self, epoch: int, group: int) -> FrameRun:
        key = (epoch, group)
        if key not in self._groups:
            self._groups[key] = self._load_group(epoch, group)
            _keep(self._groups, 4)
        self._groups.move_to_end(key)
        return self._groups[key]

    def _load_group(self, epoch: int, group: int) -> FrameRun:
        order = self._epoch(epoch).order
        size = self._shuffle_shards or 1
        shards = order[group * size : (group + 1) * size]
        frame_tokens = [self.lengths.index(int(shard)).tokens for shard in shards]
        shard = np.repeat(shards, [len(tokens) for tokens in frame_tokens])
        frame = np.concatenate([np.arange(len(tokens)) for tokens in frame_tokens])
        tokens = np.concatenate(frame_tokens)
        if self._shuffle_shards is not None:
            shuffled = keyed_permutation(len(frame), self._seed, "frames", self.name, epoch, group)
            shard, frame, tokens = shard[shuffled], frame[shuffled], tokens[shuffled]
        ends = np.cumsum(tokens) + epoch * self.epoch_tokens + self._epoch(epoch).group_start[group]
        return FrameRun(np.full(len(frame), epoch), shard, frame, ends - tokens)


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
