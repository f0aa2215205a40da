"""Which positions are trained, and pairs that stay pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampipe.errors import DocumentTooLongError
from streampipe.plan.fragments import Fragments
from streampipe.plan.loss import LossSpans, trained_spans, trained_tokens
from streampipe.plan.pieces import PackingConfig, Pieces, cut_documents, cut_pairs, unfold_pairs


@st.composite
def documents_with_spans(draw):
    """Documents as (length, sorted disjoint trained spans)."""
    made = []
    for _ in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 40))
        cuts = sorted(draw(st.sets(st.integers(0, length), max_size=6)))
        made.append((length, list(zip(cuts[::2], cuts[1::2], strict=False))))
    return made


def spans_of(documents):
    first = np.cumsum([0, *(len(spans) for _, spans in documents)])
    flat = np.array([span for _, spans in documents for span in spans], np.int64).reshape(-1, 2)
    return LossSpans(first, flat[:, 0], flat[:, 1])


@given(documents_with_spans(), st.booleans())
def test_positions_are_trained_where_their_label_is_a_trained_token_of_the_piece(documents, aligned):
    lengths = np.array([length for length, _ in documents])
    pieces, _ = cut_documents(lengths, np.array([len(documents)]), 8, PackingConfig(overlong="split"))
    trained = trained_spans(pieces, pieces.document, spans_of(documents), aligned=aligned)
    counts = trained_tokens(pieces, trained, aligned=aligned)
    for piece in range(len(pieces)):
        _, spans = documents[int(pieces.document[piece])]
        start, length, goes_on = (int(a[piece]) for a in (pieces.start, pieces.length, pieces.goes_on))
        marked = [False] * length
        for begin, end in zip(
            *(a[trained.first[piece] : trained.first[piece + 1]] for a in (trained.begin, trained.end)), strict=True
        ):
            marked[begin:end] = [True] * (end - begin)
        due = []
        for position in range(start, start + length):
            target = position + 1 if aligned else position
            reachable = target < start + length + goes_on if aligned else position > start
            due.append(reachable and any(begin <= target < end for begin, end in spans))
        assert marked == due
        assert counts[piece] == sum(due)


@given(documents_with_spans(), st.booleans())
def test_a_document_trained_throughout_equals_one_without_spans(documents, aligned):
    """The fast path of text, which knows no spans, against the plain one."""
    lengths = np.array([length for length, _ in documents])
    pieces, _ = cut_documents(lengths, np.array([len(documents)]), 8, PackingConfig(overlong="split"))
    whole = spans_of([(length, [(0, length)]) for length in lengths.tolist()])
    with_spans = trained_tokens(pieces, trained_spans(pieces, pieces.document, whole, aligned=aligned), aligned=aligned)
    assert with_spans.tolist() == trained_tokens(pieces, None, aligned=aligned).tolist()


def test_spans_are_told_with_their_pieces():
    documents = [(6, [(2, 5)]), (4, []), (3, [(0, 1), (2, 3)])]
    pieces, _ = cut_documents(np.array([6, 4, 3]), np.array([3]), 8, PackingConfig())
    trained = trained_spans(pieces, pieces.document, spans_of(documents), aligned=False)
    assert trained.table().tolist() == [[0, 2, 5], [2, 2, 3]]


PAIRS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=8)


@given(PAIRS, st.sampled_from([1, 4]), st.sampled_from(["drop", "truncate"]))
def test_pairs_fit_a_sequence_whole_and_what_is_cut_is_counted(pairs, multiple, overlong):
    lengths = np.array(pairs)
    packing = PackingConfig(overlong=overlong, document_multiple=multiple)
    units, kept, lost = cut_pairs(lengths, np.array([len(pairs)]), 16, packing)
    assert (units.slot <= 16).all()
    assert (kept >= 1).all()
    assert kept.sum() + lost.truncated_tokens.sum() + lost.dropped_tokens.sum() == lengths.sum()
    assert len(units) + lost.dropped_documents.sum() == len(pairs)
    both = unfold_pairs(units, kept, packing)
    assert both.member.tolist() == [0, 1] * len(units)
    assert both.document.tolist() == np.repeat(units.document, 2).tolist()
    assert (both.slot.reshape(-1, 2).sum(axis=1) == units.slot).all()
    assert (both.slot % multiple == 0).all()


def test_a_truncated_pair_gives_each_side_what_the_other_leaves():
    _, kept, _ = cut_pairs(
        np.array([[30, 3], [9, 20], [12, 12]]), np.array([3]), 16, PackingConfig(overlong="truncate")
    )
    assert kept.tolist() == [[13, 3], [8, 8], [8, 8]]


def test_pairs_that_are_too_long_are_an_error_until_the_user_chooses():
    with pytest.raises(DocumentTooLongError, match="1 documents are longer than seq_length 16"):
        cut_pairs(np.array([[10, 7]]), np.array([1]), 16, PackingConfig(overlong="error"))


def test_pairs_that_rounding_makes_too_long_are_told_by_the_room_they_take_and_what_pairs_may_do():
    told = r"1 documents are longer than seq_length 128 \(the longest takes 144 positions\); .*: truncate or drop, or"
    with pytest.raises(DocumentTooLongError, match=told):
        cut_pairs(np.array([[57, 71]]), np.array([1]), 128, PackingConfig(overlong="error", document_multiple=16))


def test_no_field_of_a_piece_is_forgotten_when_rows_are_taken():
    fragments = Fragments(np.array([0, 2, 2, 3]), *(np.arange(3) + 10 * n for n in range(3)))
    taken = vars(Pieces(*(np.arange(3) + 10 * n for n in range(9)), fragments).take(np.array([2, 0])))
    assert [part.tolist() for part in vars(taken.pop("fragments")).values()] == [
        [0, 1, 3],
        *([2 + 10 * n, 10 * n, 1 + 10 * n] for n in range(3)),
    ]
    assert [column.tolist() for column in taken.values()] == [[2 + 10 * n, 10 * n] for n in range(9)]
