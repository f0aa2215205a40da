"""Documents cut to pieces that fit a sequence; what is lost is counted under the reason that the user chose."""

from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampipe.errors import ConfigError, DocumentTooLongError
from streampipe.plan.fragments import Fragments

Policy = Literal["best_fit", "concat", "none"]
Overlong = Literal["split", "truncate", "drop", "error"]


class PackingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How documents are laid into sequences.

    Attributes:
        policy: `best_fit` keeps documents whole and fills sequences from a window; `concat` cuts at every `seq_length`,
            GPT style; `none` puts one document into each sequence.
        overlong: what happens to a document longer than a sequence; null for `split` where documents are text, and for
            `error` where they are conversations or pairs.
        document_multiple: every piece takes a multiple of this many positions (context parallelism, FP8).
    """

    policy: Policy = "best_fit"
    overlong: Overlong | None = None
    document_multiple: int = 1

    def check(self, seq_length: int) -> None:
        """Refuse what has no meaning.

        Raises:
            ConfigError: naming the two settings that contradict each other.
        """
        if self.document_multiple < 1:
            raise ConfigError(f"$.packing.document_multiple: must be at least 1, but got {self.document_multiple}")
        if seq_length % self.document_multiple:
            raise ConfigError(
                f"$.packing.document_multiple: {self.document_multiple} does not divide seq_length {seq_length}, so a "
                "full sequence "
                f"could not be aligned; choose a divisor of seq_length"
            )
        if self.policy == "concat" and self.document_multiple > 1:
            raise ConfigError(
                "$.packing: `concat` leaves no padding between documents, so `document_multiple` above 1 has no "
                "meaning with it; "
                "set document_multiple: 1, or policy: best_fit"
            )


@dataclass(frozen=True)
class Pieces:
    """The parts of documents that will lie in sequences: arrays of the same length P, in the order of their documents.

    Attributes:
        occurrence: int64, row of the round's frame table.
        document: int64, row of the document in its frame.
        start, length: int64, the tokens `[start, start + length)` of the document; a length of 0 only lends its
            sequence the token after it (`plan.fim_windows`).
        slot: int64, the room the piece takes in its sequence: `length` rounded up to `document_multiple`.
        goes_on: bool, whether the document's next token is delivered too, in another piece.
        member: int64, which token member of the document it is of: 0; of a pair 0 for chosen, 1 for rejected.
        fim: uint64, what fill-in-the-middle does to it, as `plan.fim` has it; None where no source has any.
        trained: int64, how many of its positions are trained then; -1 for as many as without.
        fragments: parts of them that it takes by themselves; None where no source is split.
    """

    occurrence: NDArray[np.int64]
    document: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    slot: NDArray[np.int64]
    goes_on: NDArray[np.bool_]
    member: NDArray[np.int64]
    fim: NDArray[np.uint64] | None = None
    trained: NDArray[np.int64] | None = None
    fragments: Fragments | None = None

    def __len__(self) -> int:
        return len(self.length)

    def begun(self) -> NDArray[np.bool_]:
        """Return which pieces begin a document, a pair once: bool [P]."""
        return np.asarray((self.start == 0) & (self.member == 0) & (self.length > 0))

    def take(self, rows: NDArray[np.int64]) -> "Pieces":
        """Return the pieces at `rows`, in that order."""
        taken = Pieces(*(getattr(self, field)[rows] for field in _FIELDS))
        if self.fim is None or self.trained is None:
            return taken
        fragments = None if self.fragments is None else self.fragments.take(rows)
        return replace(taken, fim=self.fim[rows], trained=self.trained[rows], fragments=fragments)


_FIELDS = ("occurrence", "document", "start", "length", "slot", "goes_on", "member")


@dataclass(frozen=True)
class Lost:
    """What `overlong` took away: arrays over the frame table, int64 [O].

    Attributes:
        truncated_tokens: tokens cut off the ends of overlong documents.
        dropped_documents, dropped_tokens: overlong documents left out, and their tokens.
    """

    truncated_tokens: NDArray[np.int64]
    dropped_documents: NDArray[np.int64]
    dropped_tokens: NDArray[np.int64]


def cut_documents(
    lengths: NDArray[np.int64], documents: NDArray[np.int64], seq_length: int, packing: PackingConfig
) -> tuple[Pieces, Lost]:
    """Cut documents to pieces of at most `seq_length` tokens.

    Args:
        lengths: int64 [D], tokens of each document, frame after frame.
        documents: int64 [O], documents of each frame of the round.
        seq_length: tokens of a sequence.
        packing: with `overlong` resolved.

    Raises:
        DocumentTooLongError: with `overlong: error`.
    """
    occurrence, document = _rows(documents)
    overlong = lengths > seq_length
    nothing = np.zeros(len(documents), np.int64)
    lost = Lost(nothing, nothing, nothing)
    if not overlong.any() or (packing.policy == "concat" and packing.overlong == "split"):
        return _whole(occurrence, document, lengths, packing), lost
    if packing.overlong == "error":
        raise _too_long(lengths, seq_length, f"has {int(lengths.max())} tokens", "split, truncate or drop")
    if packing.overlong == "drop":
        kept = ~overlong
        return _whole(occurrence[kept], document[kept], lengths[kept], packing), _dropped(
            occurrence, lengths, overlong, nothing
        )
    if packing.overlong == "truncate":
        lost = Lost(_per_frame(occurrence, np.where(overlong, lengths - seq_length, 0), nothing), nothing, nothing)
        return _whole(occurrence, document, np.minimum(lengths, seq_length), packing), lost
    return _split(occurrence, document, lengths, seq_length, packing), lost


def cut_pairs(
    lengths: NDArray[np.int64], documents: NDArray[np.int64], seq_length: int, packing: PackingConfig
) -> tuple[Pieces, NDArray[np.int64], Lost]:
    """Let pairs be packed as one: a piece stands for chosen and rejected together until `unfold_pairs`.

    A truncated pair keeps as much of either member as the other leaves room for, half a sequence at least.

    Args:
        lengths: int64 [D, 2], tokens of chosen and rejected.
        documents: int64 [O], pairs of each frame of the round.
        seq_length: tokens of a sequence.
        packing: with `overlong` resolved; pairs are never split.

    Returns:
        the pieces, the tokens kept of each member (int64 [P, 2]), and what was lost.

    Raises:
        DocumentTooLongError: with `overlong: error`.
    """
    occurrence, document = _rows(documents)
    nothing = np.zeros(len(documents), np.int64)
    lost = Lost(nothing, nothing, nothing)
    room = rounded_up(lengths, packing)
    overlong = room.sum(axis=1) > seq_length
    kept = lengths
    if overlong.any():
        if packing.overlong == "error":
            needed = room.sum(axis=1)
            raise _too_long(needed, seq_length, f"takes {int(needed.max())} positions", "truncate or drop")
        if packing.overlong == "drop":
            lost = _dropped(occurrence, lengths.sum(axis=1), overlong, nothing)
            occurrence, document, kept = occurrence[~overlong], document[~overlong], lengths[~overlong]
        else:
            half = seq_length // 2 // packing.document_multiple * packing.document_multiple
            most = seq_length - np.minimum(room[:, ::-1], half)
            kept = np.where(overlong[:, None], np.minimum(lengths, most), lengths)
            lost = Lost(_per_frame(occurrence, (lengths - kept).sum(axis=1), nothing), nothing, nothing)
    whole = _whole(occurrence, document, kept.sum(axis=1), packing)
    slot = rounded_up(kept, packing).sum(axis=1)
    return Pieces(occurrence, document, whole.start, whole.length, slot, whole.goes_on, whole.member), kept, lost


def unfold_pairs(pieces: Pieces, kept: NDArray[np.int64], packing: PackingConfig) -> Pieces:
    """Return chosen and rejected of each pair as pieces of their own, one after the other: twice as many pieces."""
    twice = np.repeat(np.arange(len(pieces)), 2)
    both = pieces.take(twice)
    length = kept.reshape(-1)
    member = np.tile(np.array([0, 1], np.int64), len(pieces))
    return Pieces(both.occurrence, both.document, both.start, length, rounded_up(length, packing), both.goes_on, member)


def _rows(documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return frame and row in the frame of each document: 2 and 1 documents give frames 0, 0, 1 and rows 0, 1, 0."""
    occurrence = np.repeat(np.arange(len(documents)), documents)
    return occurrence, np.arange(len(occurrence)) - (np.cumsum(documents) - documents)[occurrence]


def _too_long(needed: NDArray[np.int64], seq_length: int, longest: str, choices: str) -> DocumentTooLongError:
    return DocumentTooLongError(
        f"{int((needed > seq_length).sum())} documents are longer than seq_length {seq_length} (the longest "
        f"{longest}); choose packing.overlong: {choices}, or a longer seq_length"
    )


def _dropped(
    occurrence: NDArray[np.int64], lengths: NDArray[np.int64], overlong: NDArray[np.bool_], nothing: NDArray[np.int64]
) -> Lost:
    tokens = np.where(overlong, lengths, 0)
    return Lost(nothing, _per_frame(occurrence, overlong, nothing), _per_frame(occurrence, tokens, nothing))


def _whole(
    occurrence: NDArray[np.int64], document: NDArray[np.int64], length: NDArray[np.int64], packing: PackingConfig
) -> Pieces:
    zero = np.zeros(len(length), np.int64)
    return Pieces(occurrence, document, zero, length, rounded_up(length, packing), zero.astype(bool), zero)


def _split(
    occurrence: NDArray[np.int64],
    document: NDArray[np.int64],
    lengths: NDArray[np.int64],
    seq_length: int,
    packing: PackingConfig,
) -> Pieces:
    """Cut every document at multiples of `seq_length`: 20 tokens at 8 give 8, 8, 4."""
    parts = np.maximum(1, -(-lengths // seq_length))
    row = np.repeat(np.arange(len(lengths)), parts)
    part = np.arange(len(row)) - (np.cumsum(parts) - parts)[row]
    start = part * seq_length
    length = np.minimum(seq_length, lengths[row] - start)
    goes_on = part < parts[row] - 1
    return Pieces(
        occurrence[row],
        document[row],
        start,
        length,
        rounded_up(length, packing),
        goes_on,
        np.zeros(len(row), np.int64),
    )


def rounded_up(length: NDArray[np.int64], packing: PackingConfig) -> NDArray[np.int64]:
    """Return the slots of lengths, multiples of `document_multiple`: int64, same shape."""
    multiple = packing.document_multiple
    return length if multiple == 1 else -(-length // multiple) * multiple


def _per_frame(
    occurrence: NDArray[np.int64], amounts: NDArray[np.generic], nothing: NDArray[np.int64]
) -> NDArray[np.int64]:
    # bincount sums in float64, exact below 2^53 tokens of one round.
    return np.bincount(occurrence, weights=amounts.astype(np.float64), minlength=len(nothing)).astype(np.int64)
