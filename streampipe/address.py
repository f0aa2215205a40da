"""Where the pieces of a round lie in frames, and which of their positions are trained."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.opening import OpenedSource
from streampipe.plan.loss import LossSpans, TrainedSpans, trained_spans, trained_tokens
from streampipe.plan.round_plan import RoundPlan, sums_before
from streampipe.shards.frame_index import FrameIndex


@dataclass(frozen=True)
class Addressed:
    """A round whose pieces know where their tokens lie: arrays over its P pieces, O frames and N sequences.

    Attributes:
        plan: the round.
        source: int32, position in `config.sources`; epoch: int32.
        document: int64, number of the document in its source.
        offset: int64, first token inside the decoded frame, in tokens.
        trained: which positions of each piece are trained; None where all that have a target are.
        trained_count: int64 [P], how many that are.
        trained_before: int64 [N + 1], trained positions of the sequences before each.
        raw_bytes: int64 [O], decoded size of each frame.
        asked: bool [O], whether a frame is being read or has been; views: the decoded frames, filled in as they come.
    """

    plan: RoundPlan
    source: NDArray[np.int32]
    epoch: NDArray[np.int32]
    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    trained: TrainedSpans | None
    trained_count: NDArray[np.int64]
    trained_before: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    asked: NDArray[np.bool_]
    views: list[Any]


def address(plan: RoundPlan, sources: list[OpenedSource], numbers: list[int], *, aligned: bool) -> Addressed:
    """Look up where the pieces of a round lie, and which of their positions are trained.

    Args:
        plan: the round.
        sources: of the blend, in its order.
        numbers: their positions in `config.sources`.
        aligned: how labels stand.
    """
    frames, pieces = plan.frames, plan.pieces
    members = sources[0].members
    masked = any(source.kind != "text" for source in sources)
    payload: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    spans: list[NDArray[np.int64]] = [np.empty((0, 3), np.int64)]  # entry in the line, begin, end
    entries = np.zeros(len(frames) + 1, np.int64)
    first, raw_bytes = np.empty(len(frames), np.int64), np.empty(len(frames), np.int64)
    before = [np.concatenate([[0], np.cumsum(source.shard_documents)]) for source in sources]
    for row, (source, shard, frame) in enumerate(
        zip(frames.source.tolist(), frames.shard.tolist(), frames.frame.tolist(), strict=True)
    ):
        index = sources[source].index(shard)
        begin, end = index.first_document[frame : frame + 2].tolist()
        payload.append(index.payload_offsets[begin * members : end * members])
        entries[row + 1] = entries[row] + len(payload[-1])
        if masked:
            spans.append(_spans(index, begin * members, end * members, int(entries[row])))
        first[row] = before[source][shard] + begin
        raw_bytes[row] = index.raw_bytes[frame]
    entry = entries[pieces.occurrence] + pieces.document * members + pieces.member
    trained = None
    if masked:
        table = np.concatenate(spans)
        starts = np.searchsorted(table[:, 0], np.arange(entries[-1] + 1))
        trained = trained_spans(pieces, entry, LossSpans(starts, table[:, 1], table[:, 2]), aligned=aligned)
    source_of_piece = frames.source[pieces.occurrence]
    count = trained_tokens(pieces, trained, aligned=aligned)
    itemsizes = np.array([source.token_dtype.itemsize for source in sources])
    return Addressed(
        plan,
        np.array(numbers, np.int32)[source_of_piece],
        frames.epoch[pieces.occurrence].astype(np.int32),
        first[pieces.occurrence] + pieces.document,
        np.concatenate(payload)[entry] // itemsizes[source_of_piece] + pieces.start,
        trained,
        count,
        sums_before(count, plan.sequence_start),
        raw_bytes,
        np.zeros(len(frames), bool),
        [None] * len(frames),
    )


def _spans(index: FrameIndex, begin: int, end: int, entry: int) -> NDArray[np.int64]:
    """Return the trained spans of a frame's entries: int64 [K, 3]; without any in the index, all tokens are trained."""
    if index.loss_spans is None:
        lengths = index.lengths[begin:end].astype(np.int64)
        return np.stack([np.arange(len(lengths)) + entry, np.zeros(len(lengths), np.int64), lengths], axis=1)
    offsets = index.loss_spans.offsets[begin : end + 1]
    of = np.repeat(np.arange(end - begin), np.diff(offsets) // 2) + entry
    borders = index.loss_spans.values[offsets[0] : offsets[-1]].reshape(-1, 2).astype(np.int64)
    return np.column_stack([of, borders])
