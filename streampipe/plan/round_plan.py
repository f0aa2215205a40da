"""The plan of a round: who lies where, as arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampipe.plan.pieces import Pieces

# Floating-point operations of a layer per token, over those of attention per token pair, for a model about 4,096 wide:
# 6 x width.
COST_OF_A_TOKEN = 24_576


@dataclass(frozen=True)
class FrameTable:
    """The frames of a round, one row for each time that a frame occurs in it: arrays of length O.

    Attributes:
        source: int64, position of the source in the blend.
        epoch, shard, frame: int64, which frame, in which pass over its source.
    """

    source: NDArray[np.int64]
    epoch: NDArray[np.int64]
    shard: NDArray[np.int64]
    frame: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.frame)

    def take(self, rows: NDArray[np.int64]) -> "FrameTable":
        """Return the table of `rows`, in that order."""
        return FrameTable(self.source[rows], self.epoch[rows], self.shard[rows], self.frame[rows])


@dataclass(frozen=True)
class SourceTotals:
    """What a round planned of each source: int64 [sources].

    Attributes:
        taken_tokens: tokens of the frames that the round took.
        truncated_tokens, dropped_documents, dropped_tokens: what `overlong` took away.
    """

    taken_tokens: NDArray[np.int64]
    truncated_tokens: NDArray[np.int64]
    dropped_documents: NDArray[np.int64]
    dropped_tokens: NDArray[np.int64]

    def lost(self) -> NDArray[np.int64]:
        """Return what was lost of each source: int64 [sources, 3]."""
        return np.stack([self.truncated_tokens, self.dropped_documents, self.dropped_tokens], axis=1)


@dataclass(frozen=True)
class RoundPlan:
    """The sequences of one round in canonical order: N sequences, P pieces.

    Attributes:
        round: which round.
        seq_length: positions of a sequence.
        windows: columns of the rectangle; sequence i of the round stands in column `i % windows`.
        frames: the frames of the round.
        pieces: all pieces, sequence after sequence, in canonical order inside each.
        sequence_start: int64 [N + 1]; sequence i holds the pieces `sequence_start[i]` up to `sequence_start[i + 1]`.
        totals: tokens per source, with what was lost.
        running: sums over the sequences before each, for steps to subtract.
        cost: int64 [N], what each sequence costs to train on: a·tokens + Σ slot².
        slots: int64 [N], positions that the pieces of each sequence take.
    """

    round: int
    seq_length: int
    windows: int
    frames: FrameTable
    pieces: Pieces
    sequence_start: NDArray[np.int64]
    totals: SourceTotals
    running: "RunningSums"
    cost: NDArray[np.int64]
    slots: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sequence_start) - 1

    def padding(self) -> float:
        """Return the share of positions that hold no token."""
        return 1.0 - float(self.pieces.length.sum()) / max(1, len(self) * self.seq_length)

    def frames_by_column(self) -> NDArray[np.int64]:
        """Return the pairs (column, row of the frame table) that occur.

        Int64 [pairs, 2], what all ranks read if each has one column.
        """
        column = np.repeat(np.arange(len(self)) % self.windows, np.diff(self.sequence_start))
        pair = np.unique(column * max(1, len(self.frames)) + self.pieces.occurrence)
        return np.stack([pair // max(1, len(self.frames)), pair % max(1, len(self.frames))], axis=1)


@dataclass(frozen=True)
class RunningSums:
    """Sums over the sequences before each one: a span `[first, last)` is one subtraction.

    Attributes:
        tokens, documents: int64 [N + 1, sources]; documents count where they start, a pair once.
    """

    tokens: NDArray[np.int64]
    documents: NDArray[np.int64]


def running_sums(
    source: NDArray[np.int64], sources: int, pieces: Pieces, sequence_start: NDArray[np.int64]
) -> RunningSums:
    """Sum pieces over sequences; `source` is that of each piece, int64 [P]."""
    own = [source == number for number in range(sources)]
    tokens = np.stack([sums_before(np.where(of, pieces.length, 0), sequence_start) for of in own], axis=1)
    begun = pieces.begun()
    documents = np.stack([sums_before(begun & of, sequence_start) for of in own], axis=1)
    return RunningSums(tokens, documents)


def cost_of_sequences(
    slot: NDArray[np.int64], sequence_start: NDArray[np.int64], cost_of_token: int = COST_OF_A_TOKEN
) -> NDArray[np.int64]:
    """Return what each sequence costs to train on, in token pairs: int64 [N]."""
    return np.diff(sums_before(slot * (slot + cost_of_token), sequence_start))


def sums_before(amounts: NDArray[np.generic], sequence_start: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum over the pieces before each sequence, and over all: int64 [N + 1]."""
    return np.concatenate([[0], np.cumsum(amounts, dtype=np.int64)])[sequence_start]
