"""What a process is told of its batches: how long it waited for them, and what fill-in-the-middle did."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from streampipe.assemble.fim_cuts import INSERTED, fim_rates

# Counts of as many batches are added up at once.
_ADDED_AT_ONCE = 64


class Meter:
    """How long this process has waited for batches, and what fill-in-the-middle did to them."""

    def __init__(self) -> None:
        self._batches = 0
        self._positions = self._tokens = 0
        self._waited = 0.0
        self._began = 0.0
        self._fim: list[list[list[int]]] = []  # to be added up

    def count(self, waited: float, positions: int, tokens: int, fim_counts: list[list[int]] | None) -> None:
        """Take a batch that was delivered.

        Args:
            waited: seconds.
            positions: of it.
            tokens: of it; 0 where `padding` is not asked for.
            fim_counts: of each source with fill-in-the-middle, what `FIM_COUNTS` lists; None where there is no such.
        """
        if not self._batches:
            self._began = time.perf_counter() - waited
        self._batches += 1
        self._positions += positions
        self._tokens += tokens
        self._waited += waited
        if fim_counts is not None:
            self._fim.append(fim_counts)
            if len(self._fim) == _ADDED_AT_ONCE:
                self._fim = [_sums(self._fim)]

    def padding(self) -> float:
        """Return the share of positions without a token."""
        return 1 - self._tokens / self._positions if self._positions else 0.0

    def inserted(self) -> float:
        """Return the share of positions with a token that fill-in-the-middle inserted."""
        inserted = sum(row[INSERTED] for table in self._fim for row in table)
        return inserted / self._positions if self._positions else 0.0

    def read(self, fim_names: Iterable[str]) -> dict[str, Any]:
        """Return `batches, positions_per_second, wait_seconds`, and `fim` where there is any.

        Args:
            fim_names: of the sources that `fim_counts` has, in its order.
        """
        elapsed = time.perf_counter() - self._began
        rate = self._positions / elapsed if self._batches else 0.0
        told = {"batches": self._batches, "positions_per_second": rate, "wait_seconds": self._waited}
        if not self._fim:
            return told
        counts = _sums(self._fim)
        sources = {name: fim_rates(own) for name, own in zip(fim_names, counts, strict=True)}
        return told | {"fim": fim_rates([sum(column) for column in zip(*counts, strict=True)]) | {"sources": sources}}


def tokens_of(batch: Mapping[str, Any]) -> int:
    """Return how many positions of a batch hold a token."""
    if "lengths" in batch:
        return int(batch["lengths"].sum())
    lengths = np.diff(batch["cu_seqlens"].numpy())
    return int(lengths[batch["source_ids"].numpy() >= 0].sum())


def _sums(tables: list[list[list[int]]]) -> list[list[int]]:
    """Add up tables of the same rows and columns."""
    return [[sum(column) for column in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)]
