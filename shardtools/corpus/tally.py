"""What was read, what was left out, and why."""

from collections import Counter
from typing import Literal

from streampipe.errors import SourceError

OnBadRow = Literal["error", "count"]
MAX_EXAMPLES = 20

SKIPPED = ("missing", "null", "empty", "blank", "no_tokens", "not_text")
"""Rows without a text, and files in folders that are not text: always counted, never an error."""


class Tally:
    """Counts rows by reason, and applies the user's rule for bad ones: those that cannot be read.

    Attributes:
        reasons: how many rows were left out, by reason.
        bad_reasons: those of them that the rule is for; schemas have reasons of their own.
        examples: the first bad rows in words.
        fields: the fields of the first row that lacked the wanted one.
    """

    def __init__(self, on_bad_row: OnBadRow = "error") -> None:
        self._on_bad_row = on_bad_row
        self.reasons: Counter[str] = Counter()
        self.bad_reasons: set[str] = set()
        self.examples: list[str] = []
        self.fields: list[str] = []

    def skip(self, reason: str) -> None:
        """Count a row without a text."""
        self.reasons[reason] += 1

    def not_text(self, where: str, why: str) -> None:
        """Count a file found in a folder that is not text: never an error, since nobody asked for it by name."""
        self.reasons["not_text"] += 1
        self._show(where, why)

    def bad(self, reason: str, where: str, why: str) -> None:
        """Count a bad row, or stop.

        Raises:
            SourceError: if the rule is `error`.
        """
        if self._on_bad_row == "error":
            raise SourceError(
                f"{where}: {why}; mend the input, or use --on-bad-row count to leave such rows out and count them",
                path=where,
            )
        self.reasons[reason] += 1
        self.bad_reasons.add(reason)
        self._show(where, why)

    @property
    def left_out(self) -> int:
        """How many rows gave nothing."""
        return sum(self.reasons[reason] for reason in {*SKIPPED, *self.bad_reasons})

    def _show(self, where: str, why: str) -> None:
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{where}: {why}")
