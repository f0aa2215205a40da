"""What the plan knows of fill-in-the-middle from lengths alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampipe import config_from
from streampipe.plan.fim import HOLDS_BEGINNING, HOLDS_END, ORDER_BITS, TOO_LONG, FimPlan, Line, with_choices
from streampipe.plan.fim_windows import as_windows
from streampipe.plan.loss import trained_tokens
from streampipe.plan.packing import pack
from streampipe.plan.pieces import PackingConfig, cut_documents
from streampipe.plan.round_plan import FrameTable
from streampipe.stream import open_stream


def planned(lengths, plan, *, seq_length=64, multiple=1, epoch=0):
    packing = PackingConfig(overlong="split", document_multiple=multiple)
    documents = np.array([len(part) for part in np.array_split(lengths, 3)])
    pieces, _ = cut_documents(np.array(lengths), documents, seq_length, packing)
    three = np.arange(3)
    frames = FrameTable(three * 0, three * 0 + epoch, three * 0, three)
    return pieces, with_choices(
        pieces, Line(frames, documents, np.array(lengths), ["code"], 1), [plan], seq_length, packing
    )


LENGTHS = st.lists(st.integers(1, 200), min_size=3, max_size=60)


@given(lengths=LENGTHS, multiple=st.sampled_from([1, 8]), slack=st.integers(0, 6), spm_rate=st.floats(0, 1))
def test_every_slot_holds_its_piece_with_sentinels_and_fits_a_sequence(lengths, multiple, slack, spm_rate):
    before, after = planned(lengths, FimPlan(0.7, spm_rate, (3, 5), slack), multiple=multiple)
    order = (after.fim & np.uint64(ORDER_BITS)).astype(int)
    added = np.array([0, 3, 5, 0])[order]
    assert (after.slot >= before.length + added).all()
    assert (after.slot <= 64).all()
    assert (after.slot % multiple == 0).all()
    assert np.array_equal(after.slot[added == 0], before.slot[added == 0])
    assert np.array_equal(after.length, before.length)
    assert (before.length[order == TOO_LONG] + 3 > 64 - 2).all()
    held = after.fim[order > 0].astype(np.uint64)
    begins, ends = held & np.uint64(HOLDS_BEGINNING) > 0, held & np.uint64(HOLDS_END) > 0
    assert np.array_equal(begins, before.start[order > 0] == 0)
    assert np.array_equal(ends, ~before.goes_on[order > 0])


@given(lengths=LENGTHS)
def test_the_choice_of_a_document_depends_on_no_other(lengths):
    """Rates aside: a rate that rises adds documents and changes none."""
    _, few = planned(lengths, FimPlan(0.3, 0.5, (3, 3)))
    _, many = planned(lengths, FimPlan(0.8, 0.5, (3, 3)))
    hit = few.fim > 0
    assert np.array_equal(few.fim[hit], many.fim[hit])
    longer = list(lengths)
    longer[0] = 1 + lengths[0] % 60
    if lengths[0] <= 64:
        _, other = planned(longer, FimPlan(0.3, 0.5, (3, 3)))
        assert np.array_equal(few.fim[1:], other.fim[1:])


def test_other_epochs_choose_otherwise():
    _, first = planned([30] * 300, FimPlan(0.5, 0.5, (3, 3)))
    _, second = planned([30] * 300, FimPlan(0.5, 0.5, (3, 3)), epoch=1)
    assert 90 < ((first.fim > 0) != (second.fim > 0)).sum() < 210


def test_it_costs_less_than_a_thousandth_of_padding():
    """Mean of 1,000 tokens, half of the documents, slack 4; and no piece is longer than its slot, no slot too long."""
    mock = {"documents": 200_000, "mean": 1000, "max": 8000}
    fim = {"rate": 0.5, "level": "token", "sentinels": {"prefix": 1, "suffix": 2, "middle": 3}}
    raw = {"seq_length": 8192, "plan": {"windows": 16}, "sources": [{"name": "m", "mock": mock, "fim": fim}]}
    stream = open_stream(config_from(raw))
    sequences = used = 0
    for number in range(4):
        plan = stream.planner.round(number)
        pieces = plan.pieces
        transformed = (pieces.fim & np.uint64(ORDER_BITS)) % np.uint64(TOO_LONG) > 0
        assert (pieces.slot == pieces.length + 3 * transformed).all()
        filled = np.add.reduceat(pieces.slot, plan.sequence_start[:-1])
        assert filled.max() <= 8192
        sequences, used = sequences + len(plan), used + int(pieces.slot.sum())
    assert 1 - used / (sequences * 8192) < 0.003


@given(lengths=st.lists(st.integers(1, 40), max_size=60), seq_length=st.integers(2, 16))
def test_a_window_goes_on_with_the_next_token_of_the_line_and_trains_as_many_as_it_holds(lengths, seq_length):
    documents = np.array([len(part) for part in np.array_split(lengths, 3)])
    packing = PackingConfig(policy="concat", overlong="split")
    pieces, _ = cut_documents(np.array(lengths, np.int64), documents, seq_length, packing)
    packed = as_windows(pack("concat", pieces, seq_length, 2, lambda: None), 5, 9)
    # Each token of the line by frame, document and place.
    frames = np.repeat(np.arange(3), documents)
    rows = np.concatenate([np.arange(n) for n in documents]).astype(int)
    line = [(f, d, place) for f, d, n in zip(frames, rows, lengths, strict=True) for place in range(n)]
    words = set()
    for number in range(len(packed.window)):
        own = packed.pieces.take(np.flatnonzero(packed.sequence == number))
        held = [
            (f, d, place)
            for f, d, start, length in zip(own.occurrence, own.document, own.start, own.length, strict=True)
            for place in range(start, start + length)
        ]
        begin = number * seq_length
        assert held == line[begin : begin + seq_length]
        after = line[begin + seq_length : begin + seq_length + 1]
        assert bool(own.goes_on[-1]) == bool(after)
        if after:
            assert [(own.occurrence[-1], own.document[-1], own.start[-1] + own.length[-1])] == after
        assert trained_tokens(own, None, aligned=True).sum() == len(held) - (not after)
        assert trained_tokens(own, None, aligned=False).sum() == len(held) - 1
        assert own.slot.sum() == len(held)
        words |= set(own.fim.tolist())
    assert len(words) == len(packed.window)
