"""The state of a stream: how far it got, and which stream it is.

A cursor is JSON of under 4 KiB, the same bytes on every rank. It holds planned facts only, so nothing that one rank
alone saw can make it differ.
Paths, URLs and storage options are not in it: a source moved to another bucket is the same source.
"""

from fractions import Fraction
from typing import Annotated, Any

import msgspec

from streampipe.errors import CursorMismatchError

CURSOR_VERSION = 1
# Raised whenever a release changes which document comes when; see the changelog's heading Order.
ORDER_VERSION = 1
Count = Annotated[int, msgspec.Meta(ge=0)]
Size = Annotated[int, msgspec.Meta(ge=1)]


class StreamPast(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The canonical choices of a stream in the phase that a cursor stands in: whatever decides the order.

    Attributes:
        seed: of the run.
        tokenizer: hash of vocabulary, merges and pre-tokenizer, shared by all sources.
        seq_length: of the phase.
        packing: policy, overlong and document_multiple, joined by slashes; where steps count documents, `documents` and
            sequence_multiple for the policy.
        plan: windows x window_tokens.
        round_tokens: the budget of a round as it was resolved when the phase began; an exact fraction.
        before: hash of the phases that are over; "" in the first.
        balance: how sequences are ordered by cost, with the model's width where it is not the default.
        fim: hash of the fill-in-the-middle of all sources of the phase; "" without any.
        exhausted: a letter for each source, in the order of their names: what follows its last epoch, `s` for `stop`,
            `r` for `repeat`, `-` for `renormalise` or no end; "" where all are `-`.
    """

    seed: int
    tokenizer: str
    seq_length: int
    packing: str
    plan: str
    round_tokens: str
    before: str = ""
    balance: str = "off"
    fim: str = ""
    exhausted: Annotated[str, msgspec.Meta(pattern="^[-sr]*$")] = ""


class EraPast(msgspec.Struct, frozen=True, array_like=True):
    """Epochs of a source with the same shards in the same kind of order; see `plan.epoch_order.Era`."""

    epoch: Count
    start: Count
    shards: Size
    shuffle: Count


class SourcePast(msgspec.Struct, frozen=True, array_like=True):
    """What a source is and what the run has planned of it.

    Attributes:
        content: hash of what its first `shards` shards hold.
        shards: how many it had.
        weight: its share of tokens in the phase.
        epochs: its limit.
        shuffle: shards shuffled together in the phase; 0 for none.
        eras: the eras in force from the cursor's round on; none if there has been but one.
        tokens, documents: planned so far.
        truncated_tokens, dropped_documents, dropped_tokens: lost so far to `overlong`.
    """

    content: str
    shards: Count
    weight: str
    epochs: int | None
    shuffle: Count
    eras: list[EraPast] = []
    tokens: Count = 0
    documents: Count = 0
    truncated_tokens: Count = 0
    dropped_documents: Count = 0
    dropped_tokens: Count = 0


class SegmentPast(msgspec.Struct, frozen=True, array_like=True):
    """Where the cursor's stretch of rounds began.

    Attributes:
        first_round: the round.
        offsets: where it found the axis of each source, in the order of their names.
    """

    first_round: Count
    offsets: list[Count]


class Within(msgspec.Struct, frozen=True, array_like=True):
    """A place between the micro batches of one step.

    Attributes:
        micro_batches: how many of the step every rank has been given.
        dp_size, micro_batch_size, global_batch_size: what the step was cut by; it can only be finished with the same.
        beyond: hash of what the step takes of rounds after the cursor's; "" where it takes nothing of them.
        rounds: how many of these.
    """

    micro_batches: Size
    dp_size: Size
    micro_batch_size: Size
    global_batch_size: Size
    beyond: str = ""
    rounds: Count = 0


class Cursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place in a stream.

    Attributes:
        stream, sources: which stream; sources by name.
        phase: number of the phase.
        segment: where its stretch of rounds began; null for the beginning of the run.
        round, offset: the next step begins with sequence `offset` of `round`.
        sequences, positions, step: planned before it.
        skipped: stretches that were skipped: the step, and how many.
        within: set between the micro batches of a step.
        version: of this record. order_version: of the order.
    """

    stream: StreamPast
    sources: dict[str, SourcePast]
    round: Count = 0
    offset: Count = 0
    sequences: Count = 0
    positions: Count = 0
    step: Count = 0
    phase: Count = 0
    segment: SegmentPast | None = None
    skipped: list[list[Count]] = []
    within: Within | None = None
    version: int = CURSOR_VERSION
    order_version: int = ORDER_VERSION

    @property
    def next_round(self) -> int:
        """The first round that nothing has been delivered of, nor will be by the step that the cursor stands in."""
        if self.within is None:
            return self.round + bool(self.offset)
        return self.round + self.within.rounds + 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, for a checkpoint."""
        built: dict[str, Any] = msgspec.to_builtins(self, order="sorted")
        return built

    def to_json(self) -> bytes:
        """Return the canonical JSON."""
        return msgspec.json.encode(self, order="sorted")


def read_cursor(state: Any) -> Cursor:
    """Return a cursor from `to_dict` or `to_json`.

    Raises:
        CursorMismatchError: for a state that is no cursor, or one of another version.
    """
    try:
        data = msgspec.json.decode(state) if isinstance(state, bytes | str) else state
    except msgspec.DecodeError as error:
        raise CursorMismatchError(f"the cursor is not JSON ({error}); load a state that state_dict() gave") from error
    if not isinstance(data, dict):
        raise CursorMismatchError(
            f"a cursor is a JSON object, but got {type(data).__name__}; load a state that state_dict() gave"
        )
    for field, known in (("version", CURSOR_VERSION), ("order_version", ORDER_VERSION)):
        if data.get(field) != known:
            raise CursorMismatchError(
                f"the cursor has {field} {data.get(field)!r}, but this release reads {known}; resume with the release "
                "of streampipe that wrote it",
                (field,),
            )
    try:
        cursor = msgspec.convert(data, Cursor)
        _check_whole(cursor)
    except (ValueError, ZeroDivisionError) as error:  # msgspec's is a ValueError
        raise CursorMismatchError(f"the cursor is damaged ({error}); load a state that state_dict() gave") from error
    return cursor


def _check_whole(cursor: Cursor) -> None:
    """Raise ValueError where parts of a cursor do not fit together."""
    if Fraction(cursor.stream.round_tokens) <= 0:
        raise ValueError("round_tokens is not above 0 - at `$.stream.round_tokens`")
    offsets = len(cursor.segment.offsets) if cursor.segment is not None else len(cursor.sources)
    if offsets != len(cursor.sources):
        raise ValueError(f"{offsets} offsets for {len(cursor.sources)} sources - at `$.segment[1]`")


def refuse_difference(differing: dict[str, tuple[Any, Any]], hint: str = "") -> None:
    """Refuse a cursor that belongs to another stream.

    Args:
        differing: what the cursor has and what the stream has, by field; may be empty.
        hint: why, where that is known.

    Raises:
        CursorMismatchError: naming every field that differs, with both values.
    """
    if not differing:
        return
    listed = "; ".join(
        f"{field}: the cursor has {saved!r}, this stream {now!r}" for field, (saved, now) in differing.items()
    )
    if any(field.endswith(".content") for field in differing):
        hint += " (`content` differs when a shard of the source was changed or removed since)"
    raise CursorMismatchError(
        f"this cursor belongs to another stream: {listed}{hint}; resume with the config and the data that the run was "
        f"started with (what changes in mid-run goes into `phases`), or start a new run without the cursor",
        tuple(differing),
    )
