"""The laws of DESIGN.md section 2 over delivered batches, written once."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from streampipe import StreamConfig, Topology, build_loader
from streampipe.tools.digest import row_digests

Batch = dict[str, Any]


@dataclass(frozen=True, order=True)
class Delivered:
    """A piece as its tokens tell it (`streams.spelled`): tokens `[start, start + length)` of a document."""

    source: int
    document: int
    epoch: int
    start: int
    length: int


def plain(batch: Mapping[str, Any]) -> Batch:
    """Return a batch with arrays for tensors."""
    return {name: v.numpy() if isinstance(v, torch.Tensor) else v for name, v in batch.items()}


def pieces_of(batch: Mapping[str, Any], seq_length: int) -> list[Delivered]:
    """Read a micro batch back from its tokens, and check on the way that every array of it tells the same story.

    Positions restart at each piece; labels are the next token of the same document; what holds no token has no loss.
    """
    arrays = plain(batch)
    names = ("tokens", "labels", "loss_mask", "position_ids")
    tokens, labels, mask, positions = (arrays[name].reshape(-1) for name in names)
    trained = np.zeros(len(tokens), bool)
    found: list[Delivered] = []
    for number, (begin, length) in enumerate(_extents(arrays, seq_length)):
        source = int(arrays["source_ids"][number])
        if source < 0:
            assert arrays["document_ids"][number] == arrays["epochs"][number] == -1
            continue
        said = tokens[begin : begin + length]
        start = int(said[0] & 0xFFF)
        assert np.array_equal(said, said[0] + np.arange(length)), "a piece is a run of one document's tokens"
        assert (said[0] >> 28, said[0] >> 12 & 0xFFFF) == (source, arrays["document_ids"][number])
        assert np.array_equal(positions[begin : begin + length], np.arange(length))
        inner = slice(begin, begin + length - 1)
        assert np.array_equal(labels[inner], tokens[inner] + 1)
        assert labels[begin + length - 1] in (-100, said[-1] + 1), "never the next document's first token"
        trained[inner] = True
        trained[begin + length - 1] = labels[begin + length - 1] != -100
        found.append(Delivered(source, int(said[0] >> 12 & 0xFFFF), int(arrays["epochs"][number]), start, length))
    assert np.array_equal(mask, trained.astype(np.float32))
    assert np.all(labels[~trained] == -100)
    assert batch["loss_tokens"] == trained.sum()
    return found


def _extents(arrays: Batch, seq_length: int) -> list[tuple[int, int]]:
    """Return where each segment begins and how many tokens it holds, and check the contract of cu_seqlens."""
    if "lengths" in arrays:
        return [(row * seq_length, int(length)) for row, length in enumerate(arrays["lengths"])]
    padded, real = arrays["cu_seqlens_padded"], arrays["cu_seqlens"]
    assert padded.dtype == real.dtype == np.int32
    assert padded[0] == real[0] == 0
    assert padded[-1] == len(arrays["tokens"].reshape(-1))
    assert np.all(np.diff(padded) > 0)
    assert np.all(np.diff(real) <= np.diff(padded))
    assert type(arrays["max_seqlen"]) is int
    assert arrays["max_seqlen"] == np.diff(padded).max()
    assert set(range(0, int(padded[-1]), seq_length)) <= set(padded.tolist()), "no segment crosses a sequence"
    return list(zip(padded[:-1].tolist(), np.diff(real).tolist(), strict=True))


def documents_of(batches: Iterable[Mapping[str, Any]], seq_length: int) -> list[Delivered]:
    """Return all pieces of micro batches, in the order of delivery."""
    return [piece for batch in batches for piece in pieces_of(batch, seq_length)]


def assert_each_document_once_an_epoch(
    pieces: Sequence[Delivered], lengths: Mapping[int, Sequence[int]], epochs: Mapping[int, int]
) -> None:
    """Law 4: of every source and epoch, each token of each document is delivered exactly once.

    Args:
        pieces: all that all ranks were given.
        lengths: tokens of every document, by source number.
        epochs: how many passes each source was to give.
    """
    of_document: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for piece in pieces:
        place = (piece.source, piece.epoch, piece.document)
        of_document.setdefault(place, []).append((piece.start, piece.length))
    due = {
        (source, epoch, document)
        for source, documents in lengths.items()
        for epoch in range(epochs[source])
        for document in range(len(documents))
    }
    assert of_document.keys() == due
    for (source, _, document), parts in of_document.items():
        end = 0
        for start, length in sorted(parts):
            assert start == end, f"document {document} of source {source}: token {end} is missing, or came twice"
            end = start + length
        assert end == lengths[source][document]


def assert_lockstep(of_ranks: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Law 6: all ranks deliver the same number of batches of the same shape, with the same counts and cursors."""
    told = ("step", "micro_batch", "num_micro_batches", "step_loss_tokens", "cursor")
    stories = [[(b["tokens"].shape, *(b[name] for name in told)) for b in batches] for batches in of_ranks]
    assert all(story == stories[0] for story in stories)


def take(
    config: StreamConfig, batches: int | None, topology: Topology | None = None, cursor: Any = None
) -> list[Batch]:
    """Return the next micro batches of one rank's loader; all of a finite run for None."""
    with build_loader(config, topology) as loader:
        if cursor is not None:
            loader.load_state_dict(cursor)
        return list(islice(loader, batches))


def take_all_ranks(config: StreamConfig, dp_size: int, batches: int | None = None) -> list[list[Batch]]:
    """Return the micro batches of every rank, rank by rank."""
    return [take(config, batches, Topology(dp_size=dp_size, dp_rank=rank)) for rank in range(dp_size)]


def sequences_of(batches: Iterable[Mapping[str, Any]], seq_length: int) -> dict[int, bytes]:
    """Return the digest of each sequence by its canonical number; none may come twice."""
    found: dict[int, bytes] = {}
    for batch in batches:
        rows = row_digests(plain(batch), seq_length)
        assert not rows.keys() & found.keys(), "a sequence came twice"
        found |= rows
    return found


def same_batch(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two batches are byte-identical: names, types, shapes, values, cursor."""
    a, b = plain(one), plain(other)
    if a.keys() != b.keys():
        return False
    for name, value in a.items():
        if isinstance(value, np.ndarray):
            if value.dtype != b[name].dtype or not np.array_equal(value, b[name]):
                return False
        elif type(value) is not type(b[name]) or value != b[name]:
            return False
    return True


def assert_same_future(got: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]], what: str = "") -> None:
    """Law 2: from here on the very same batches come, to the last byte and to the last batch."""
    assert len(got) == len(expected), what
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert same_batch(one, other), f"{what}: batch {number} of the future differs"


def assert_resumes_anywhere(
    future: Callable[[Any], Sequence[Mapping[str, Any]]], whole: Sequence[Mapping[str, Any]]
) -> None:
    """Grain's test: take the state after every batch but the last, go on from each, and demand the same whole future.

    `future` gives all batches from a cursor to the end of `whole`.
    """
    for number, batch in enumerate(whole[:-1]):
        assert_same_future(future(batch["cursor"]), whole[number + 1 :], f"resumed after batch {number}")


def shares_of_tokens(pieces: Iterable[Delivered]) -> dict[int, int]:
    """Return the tokens delivered of each source."""
    tokens: Counter[int] = Counter()
    for piece in pieces:
        tokens[piece.source] += piece.length
    return dict(tokens)
