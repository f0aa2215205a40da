"""Where the pieces of a round lie in frames, and which of their positions are trained."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampipe.assemble.batch_config import BatchConfig
from streampipe.assemble.fim_copies import PlannedFim, with_copies
from streampipe.assemble.segments import Ground, Segments, lay_out
from streampipe.opening import OpenedSource
from streampipe.plan.loss import LossSpans, trained_spans, trained_tokens
from streampipe.plan.round_plan import RoundPlan, sums_before
from streampipe.shards.frame_index import FrameIndex


@dataclass(frozen=True)
class Addressed:
    """A round whose pieces know where their tokens lie: N sequences, O frames and one more, of padding.

    Attributes:
        plan: the round.
        ground: its sequences, one a row, laid out as `slot` has it, and behind them a row without a piece.
        trained_before: int64 [N + 1], trained positions of the sequences before each.
        raw_bytes: int64 [O], decoded size of each frame.
        asked: bool [O + 1], whether a frame is being read or has been; views: the decoded frames, filled in as they
            come.
    """

    plan: RoundPlan
    ground: Ground
    trained_before: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    asked: NDArray[np.bool_]
    views: list[Any]


def address(
    plan: RoundPlan,
    sources: list[OpenedSource],
    numbers: list[int],
    padding: memoryview,
    config: BatchConfig,
    fim: PlannedFim | None = None,
) -> Addressed:
    """Look up where the pieces of a round lie, and which of their positions are trained.

    Args:
        plan: the round.
        sources: of the blend, in its order.
        numbers: their positions in `config.sources`.
        padding: a sequence without a token, in the stored dtype of the stream.
        config: layout and labels are read.
        fim: how pieces are transformed, where that needs no token.
    """
    aligned = config.labels == "aligned"
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
    source = frames.source[pieces.occurrence]
    count = trained_tokens(pieces, trained, aligned=aligned)
    itemsizes = np.array([opened.token_dtype.itemsize for opened in sources])
    segments = Segments(
        row=np.repeat(np.arange(len(plan)), np.diff(plan.sequence_start)),
        frame=pieces.occurrence,
        offset=np.concatenate(payload)[entry] // itemsizes[source] + pieces.start,
        length=pieces.length,
        slot=pieces.slot,
        goes_on=pieces.goes_on,
        source=np.array(numbers, np.int32)[source],
        epoch=frames.epoch[pieces.occurrence].astype(np.int32),
        document=first[pieces.occurrence] + pieces.document,
        trained=None if trained is None else trained.table(),
        fim=pieces.fim,
        trained_count=None if pieces.fim is None else count,
        fragments=None if pieces.fragments is None else pieces.fragments.table(),
    )
    pad_frame = len(frames)
    ground = lay_out(segments, len(plan) + 1, plan.seq_length, pad_frame, one_per_row=config.layout == "sbhd")
    if fim is not None:
        ground = with_copies(ground, fim, pad_frame, aligned=aligned)
    return Addressed(
        plan,
        ground,
        sums_before(count, plan.sequence_start),
        raw_bytes,
        np.arange(pad_frame + 1) >= len(frames),
        [*[None] * len(frames), padding],
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
