"""Sequences as the windows of Megatron's fill-in-the-middle: with a word for their draws, and the token that follows.

Megatron takes `seq_length` + 1 tokens at a time and begins the next window at the last of them. The plan of `concat`
holds `seq_length`, and knows what follows.
"""

from dataclasses import replace

import numpy as np

from streampipe.plan.packing import Packed
from streampipe.rng import raw_words


def as_windows(packed: Packed, seed: int, number: int) -> Packed:
    """Let the sequences of a round be windows.

    Words are keyed by (seed, "fim-megatron", round) and counted by the place of the sequence on the line, so that no
    order of making batches decides anything. A sequence that ends where a document ends gets one more piece, of no
    tokens, that goes on with the first token of the next document; only the last of the round has nothing to follow.

    Args:
        packed: by `concat`.
        seed: of the run.
        number: of the round.

    Returns:
        the same sequences, with `fim` the word of each piece's sequence. As many positions are trained as each has
        tokens (with aligned labels; one fewer where nothing follows, or with unshifted ones).
    """
    count = len(packed.window)
    last = np.searchsorted(packed.sequence, np.arange(count), side="right") - 1
    ending = np.flatnonzero(~packed.pieces.goes_on[last] & (last + 1 < len(packed.pieces)))
    pieces = packed.pieces.take(np.concatenate([np.arange(len(packed.pieces)), last[ending] + 1]))
    lent = np.arange(len(pieces)) >= len(packed.pieces)
    sequence = np.concatenate([packed.sequence, ending])
    # Labels go over from document to document: whatever is not last in its window has a target.
    trained = pieces.length.copy()
    trained[last] = -1
    trained[last[ending]] = pieces.length[last[ending]]
    trained[lent] = -1
    pieces = replace(
        pieces,
        length=np.where(lent, 0, pieces.length),
        slot=np.where(lent, 0, pieces.slot),
        goes_on=pieces.goes_on | lent,
        fim=raw_words(count, seed, "fim-megatron", number)[sequence],
        trained=trained,
    )
    return Packed(pieces, sequence, packed.window)
