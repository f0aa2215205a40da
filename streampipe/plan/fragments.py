"""Pieces of which parts are transformed by themselves."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Fragments:
    """The parts of P pieces that fill-in-the-middle takes: K of them, piece after piece.

    Attributes:
        first: int64 [P + 1]; piece p has the fragments `first[p]` up to `first[p + 1]`.
        begin, end: int64 [K], the tokens `[begin, end)` of the piece; ascending in each.
        choice: int64 [K], what is done, as `plan.fim` has it, without the highest bit.
    """

    first: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    choice: NDArray[np.int64]

    def take(self, pieces: NDArray[np.int64]) -> "Fragments":
        """Return the fragments of `pieces`, in that order."""
        counts = self.first[pieces + 1] - self.first[pieces]
        first = np.concatenate([[0], np.cumsum(counts)])
        at = np.repeat(self.first[pieces] - first[:-1], counts) + np.arange(first[-1])
        return Fragments(first, self.begin[at], self.end[at], self.choice[at])

    def table(self) -> NDArray[np.int64]:
        """Return a row for each: piece, begin, end, choice: int64 [K, 4]."""
        piece = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        return np.column_stack([piece, self.begin, self.end, self.choice])
