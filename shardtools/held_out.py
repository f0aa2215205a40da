"""Which documents are held out for validation: those whose content hashes lowest."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardtools.share import Share
from streampipe.errors import ConfigError

MAX_COUNT = 1_000_000

Nearest = list[tuple[int, int]]
"""(held-out number, tokens) of the documents with the lowest numbers, ascending."""


@dataclass(frozen=True)
class HeldOutRule:
    """How many documents to hold out.

    Attributes:
        below: those whose number is below this, of 2^64.
        least: and the lowest so many in any case.
        distinct: copies of a text count once, because only one of them stays.
    """

    below: int
    least: int
    distinct: bool = False

    @classmethod
    def parse(cls, text: str, least: int, *, distinct: bool) -> "HeldOutRule | None":
        """Read a share and a least count; None if nothing is to be held out.

        Raises:
            ConfigError: if that cannot be done.
        """
        if not text:
            return None
        share = Share.parse(text, "--validation")
        count = max(share.count, least)
        if share.fraction == 0 or not 1 <= count <= MAX_COUNT:
            raise ConfigError(
                f"--validation {text} with --validation-min {least}: expected a share above 0 or a count within 1 and "
                f"{MAX_COUNT}"
            )
        return cls(0 if share.fraction is None else int(share.fraction * 2**64), count, distinct)

    def lowest(self, found: Nearest, numbers: NDArray[np.uint64], tokens: NDArray[np.int64]) -> Nearest:
        """Return the lowest `least` of those found before and more documents: numbers and tokens, [documents] each."""
        all_numbers = np.concatenate([np.array([number for number, _ in found], np.uint64), numbers])
        all_tokens = np.concatenate([np.array([count for _, count in found], np.int64), tokens])
        order = np.lexsort((all_tokens, all_numbers))
        if self.distinct:
            ordered = all_numbers[order]
            order = order[np.append(True, ordered[1:] != ordered[:-1])[: len(order)]]
        order = order[: self.least]
        return list(zip(all_numbers[order].tolist(), all_tokens[order].tolist(), strict=True))

    def may_hold(self, numbers: NDArray[np.uint64], nearest: Nearest) -> NDArray[np.bool_]:
        """Tell which documents may be held out, given the lowest of their slice so far."""
        if len(nearest) < self.least:
            return np.ones(len(numbers), bool)
        top = max(nearest[-1][0], self.below - 1)
        return numbers <= np.uint64(top)

    def resolve(self, found: Sequence[Nearest], documents: int) -> int:
        """Return the highest number that is held out, once the lowest of all slices are known.

        Raises:
            ConfigError: if nothing would be left to train on.
        """
        nearest: Nearest = []
        for some in found:
            numbers = np.array([number for number, _ in some], np.uint64)
            nearest = self.lowest(nearest, numbers, np.array([count for _, count in some], np.int64))
        if len(nearest) < self.least or documents <= self.least:
            raise ConfigError(
                f"--validation would hold out {self.least} documents or more of {documents}"
                f"{' and their copies' if self.distinct else ''}; ask for fewer"
            )
        return max(nearest[-1][0], self.below - 1)
