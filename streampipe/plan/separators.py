"""Where the separators of documents lie that consist of parts, such as the files of a repository."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampipe.errors import SourceError
from streampipe.plan.epoch_order import SourceAxis
from streampipe.plan.round_plan import FrameTable

# A document and a place in it as one number, so that all separators of a round stand in one ascending array.
_PLACE_BITS = 32


@dataclass(frozen=True)
class Separators:
    """Separators of the D documents of a round.

    Attributes:
        first: int64 [D + 1]; document d has the separators `first[d]` up to `first[d + 1]`.
        place: int64 [K], which token of its document each is; ascending in each.
    """

    first: NDArray[np.int64]
    place: NDArray[np.int64]

    def between(
        self, document: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which separators lie among the tokens `[begin, end)` of documents.

        Args:
            document: int64 [N].
            begin: int64 [N].
            end: int64 [N].

        Returns:
            int64 [N] both: the first, and the one after the last.
        """
        owner = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        places = owner << _PLACE_BITS | self.place
        low, high = (np.searchsorted(places, document << _PLACE_BITS | border) for border in (begin, end))
        return low, high


def separators_of(
    frames: FrameTable, documents: NDArray[np.int64], axes: Sequence[SourceAxis], split: Sequence[bool]
) -> Separators:
    """Look up the separators of a round's documents, frame after frame.

    Args:
        frames: of the round, O rows.
        documents: int64 [O], documents of each.
        axes: the sources.
        split: of each source, whether its documents are split; those of others are not looked at.

    Raises:
        SourceError: when an index does not list them.
    """
    counts, places = [np.zeros(1, np.int64)], [np.empty(0, np.int64)]
    for row, (source, shard, frame) in enumerate(
        zip(frames.source.tolist(), frames.shard.tolist(), frames.frame.tolist(), strict=True)
    ):
        if not split[source]:
            counts.append(np.zeros(int(documents[row]), np.int64))
            continue
        index = axes[source].lengths.index(shard)
        if index.fragments is None:
            name = axes[source].name
            raise SourceError(
                f"source {name!r}: the index of shard {shard} lists no separators (column `fragments`), though the "
                "manifest says that it does; build the source again",
                name,
            )
        begin, end = index.first_document[frame : frame + 2].tolist()
        offsets = index.fragments.offsets[begin : end + 1]
        counts.append(np.diff(offsets))
        places.append(index.fragments.values[offsets[0] : offsets[-1]].astype(np.int64))
    return Separators(np.cumsum(np.concatenate(counts)), np.concatenate(places))
