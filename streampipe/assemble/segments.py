"""Where each piece of a batch comes from and where it goes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Segments:
    """The pieces of one micro batch: arrays of length P, in the order of their sequences.

    Attributes:
        row: int64, the sequence of the micro batch that each lies in, ascending.
        frame: int64, position in the list of decoded frames.
        offset: int64, the piece's first token inside that frame, in tokens.
        length, slot: int64, tokens of the piece, and the room that it takes.
        goes_on: bool, whether the token after the piece is the target of its last one.
        source, epoch: int32; document: int64: whose document it is.
        trained: int64 [K, 3], sorted: a piece and the positions `[begin, end)` of it that are trained; None where all
            that have a target are.
        fim: uint64, what fill-in-the-middle does to each, as `plan.fim` drew it; None where no source has any.
        trained_count: int64, how many positions of each are trained, as planned; None likewise.
        fragments: int64 [K, 4], sorted: a piece, tokens `[begin, end)` of it that are transformed by themselves, and
            their choice, as `plan.fim` drew it; None where no source is split.
    """

    row: NDArray[np.int64]
    frame: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    slot: NDArray[np.int64]
    goes_on: NDArray[np.bool_]
    source: NDArray[np.int32]
    epoch: NDArray[np.int32]
    document: NDArray[np.int64]
    trained: NDArray[np.int64] | None = None
    fim: NDArray[np.uint64] | None = None
    trained_count: NDArray[np.int64] | None = None
    fragments: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.row)

    def arrays(self) -> tuple[str, ...]:
        """Return the names of the arrays that have an element for each piece."""
        return _ALWAYS if self.fim is None else _WITH_FIM


_ALWAYS = ("row", "frame", "offset", "length", "slot", "goes_on", "source", "epoch", "document")
_WITH_FIM = (*_ALWAYS, "fim", "trained_count")


@dataclass(frozen=True)
class Ground:
    """The rows of a batch, cut into segments: S pieces and dummy documents, in memory order.

    Attributes:
        begin: int64 [S], first position of each segment.
        room: int64 [S], positions of each segment; they cover all rows.
        real: int64 [S], tokens of each segment; a dummy document's are its whole room.
        piece: int64 [S], the piece that stands in it; -1 for a dummy document.
        place: int64 [P], the segment of each piece.
    """

    begin: NDArray[np.int64]
    room: NDArray[np.int64]
    real: NDArray[np.int64]
    piece: NDArray[np.int64]
    place: NDArray[np.int64]


def lay_out(segments: Segments, rows: int, seq_length: int) -> Ground:
    """Give every piece its positions; what a row has left over becomes a dummy document.

    So rows end where sequences end. Slots 8 and 4 in a row of 16 give segments that begin at 0, 8 and 12, the last of
    them a dummy document of 4.
    """
    pieces = len(segments)
    used = np.bincount(segments.row, weights=segments.slot, minlength=rows).astype(np.int64)
    tailed = used < seq_length
    # A dummy document stands behind the pieces of its row: pieces move up by the dummies of the rows before theirs.
    dummies = np.cumsum(tailed)
    place = np.arange(pieces) + (dummies - tailed)[segments.row]
    count = pieces + int(dummies[-1])
    room, real, piece = np.zeros(count, np.int64), np.zeros(count, np.int64), np.full(count, -1)
    room[place], real[place], piece[place] = segments.slot, segments.length, np.arange(pieces)
    tails = piece < 0
    room[tails] = real[tails] = (seq_length - used)[tailed]
    return Ground(np.cumsum(room) - room, room, real, piece, place)


Frames = Sequence[memoryview]
