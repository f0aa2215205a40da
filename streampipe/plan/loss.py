"""Which positions are trained: known from the index, so that every rank knows every step's count without asking."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampipe.plan.pieces import Pieces


@dataclass(frozen=True)
class LossSpans:
    """Trained tokens of the documents (or members of pairs) of a round, in line order.

    Attributes:
        first: int64 [D * members + 1]; entry i holds the spans `first[i]` up to `first[i + 1]`.
        begin, end: int64 [K], the tokens `[begin, end)` of the document are trained.
    """

    first: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]


@dataclass(frozen=True)
class TrainedSpans:
    """Trained positions of pieces: K spans of P pieces.

    Attributes:
        first: int64 [P + 1]; piece p holds the spans `first[p]` up to `first[p + 1]`.
        begin, end: int64 [K], the positions `[begin, end)` of the piece have a trained label.
    """

    first: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]

    def table(self) -> NDArray[np.int64]:
        """Return each span with the piece that it is of: int64 [K, 3]."""
        piece = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        return np.column_stack([piece, self.begin, self.end])


def trained_spans(pieces: Pieces, entry: NDArray[np.int64], spans: LossSpans, *, aligned: bool) -> TrainedSpans:
    """Cut the spans of documents to pieces and turn trained tokens into the positions whose labels they are.

    With aligned labels token t is the target of position t - 1, and the last position of a piece that goes on has a
    target too; with unshifted ones token t is the label of position t, and the first position of a piece has none. A
    document of 6 tokens that trains [2, 5) has aligned positions [1, 4); cut at 3, its pieces have [1, 3) and [0, 1).

    Args:
        pieces: P of them.
        entry: int64 [P], the entry of `spans` that each is of.
        spans: of the documents.
        aligned: how labels stand.
    """
    counts = spans.first[entry + 1] - spans.first[entry]
    piece = np.repeat(np.arange(len(pieces)), counts)
    at = np.arange(len(piece)) - (np.cumsum(counts) - counts)[piece] + spans.first[entry][piece]
    lead = 1 if aligned else 0
    low = np.zeros(len(pieces), np.int64) if aligned else np.ones(len(pieces), np.int64)
    high = pieces.length - 1 + pieces.goes_on if aligned else pieces.length
    begin = np.maximum(spans.begin[at] - lead - pieces.start[piece], low[piece])
    end = np.minimum(spans.end[at] - lead - pieces.start[piece], high[piece])
    held = begin < end
    first = np.concatenate([[0], np.cumsum(np.bincount(piece[held], minlength=len(pieces)))])
    return TrainedSpans(first, begin[held], end[held])


def trained_tokens(pieces: Pieces, spans: TrainedSpans | None, *, aligned: bool) -> NDArray[np.int64]:
    """Return how many positions of each piece are trained: int64 [P].

    Without spans, all that have a target; what fill-in-the-middle takes has been counted when it was planned.
    """
    if spans is None:
        count = pieces.length - 1 + pieces.goes_on if aligned else pieces.length - 1
    else:
        count = np.diff(np.concatenate([[0], np.cumsum(spans.end - spans.begin)])[spans.first])
    return count if pieces.trained is None else np.where(pieces.trained >= 0, pieces.trained, count)
