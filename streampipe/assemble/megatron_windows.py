"""The rows of a micro batch through Megatron's fill-in-the-middle, before they are laid into a batch.

The windows that come out become one more frame, and each row one segment of it: what documents it held, and where they
ended, is lost as it is in Megatron.
"""

from array import array
from bisect import bisect
from dataclasses import dataclass

import numpy as np

from streampipe.assemble.fim import Marks
from streampipe.assemble.fim_cuts import Counts
from streampipe.assemble.megatron_fim import Codec, MegatronFim
from streampipe.assemble.segments import Frames, Segments
from streampipe.rng import mixed_word


@dataclass(frozen=True)
class MegatronWindows:
    """How the windows of a stream are transformed.

    Attributes:
        fim: the options.
        codec: the tokenizer.
        sources: numbers of all sources.
    """

    fim: MegatronFim
    codec: Codec
    sources: tuple[int, ...]


class KeyedDraws:
    """The choices of one window, mixed from its word one after the other; `megatron_fim.Draws`."""

    def __init__(self, word: int) -> None:
        self._word = word
        self._drawn = 0

    def hit(self, rate: float) -> bool:
        """Return whether a coin falls to a rate; never at 0, always at 1."""
        return self._next() >> 11 < round(rate * 2**53)

    def two(self, most: int) -> tuple[int, int]:
        """Return two places within 0 and `most`."""
        mixed = self._next()
        return (mixed >> 32) * (most + 1) >> 32, (mixed & 0xFFFFFFFF) * (most + 1) >> 32

    def _next(self) -> int:
        self._drawn += 1
        return mixed_word(self._word, self._drawn)


def transform_windows(segments: Segments, frames: Frames, windows: MegatronWindows) -> tuple[Segments, Frames, Marks]:
    """Transform the rows of a micro batch.

    Args:
        segments: of a micro batch; `fim` holds the word of each row, and the last segment of a row goes on where a
            token follows the row.
        frames: the decoded frames.
        windows: how.

    Returns:
        one segment for each row, with the source, epoch and document of its first token; the frames, with one more that
        holds the windows; what was done.
    """
    marks = Marks(counts={number: Counts() for number in windows.sources})
    if segments.fim is None or not len(segments):
        return segments, frames, marks
    first = np.flatnonzero(np.diff(segments.row, prepend=-1))
    end = np.append(first[1:], len(segments))
    made = array(frames[int(segments.frame[0])].format)
    sizes: list[int] = []
    places = list(zip(segments.frame.tolist(), segments.offset.tolist(), segments.length.tolist(), strict=True))
    sources = segments.source.tolist()
    for lo, hi in zip(first.tolist(), end.tolist(), strict=True):
        ids: list[int] = []
        starts: list[int] = []
        for frame, offset, length in places[lo:hi]:
            starts.append(len(ids))
            ids += frames[frame][offset : offset + length].tolist()
        if segments.goes_on[hi - 1]:
            ids.append(frames[frame][offset + length])

        def tally(begin: int, starts: list[int] = starts, lo: int = lo) -> Counts:
            return marks.counts[sources[lo + bisect(starts, begin) - 1]]

        made.extend(windows.fim.window(ids, KeyedDraws(int(segments.fim[lo])), windows.codec, tally))
        sizes.append(len(ids))
    lengths = np.add.reduceat(segments.length, first)
    rows = Segments(
        row=segments.row[first],
        frame=np.full(len(first), len(frames)),
        offset=np.cumsum(sizes, dtype=np.int64) - sizes,
        length=lengths,
        slot=lengths,
        goes_on=segments.goes_on[end - 1],
        source=segments.source[first],
        epoch=segments.epoch[first],
        document=segments.document[first],
    )
    return rows, [*frames, memoryview(made)], marks
