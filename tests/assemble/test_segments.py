"""Laid-out rows can be taken in any order, cut, joined and taken apart, and stay what they were."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampipe.assemble.segments import DOCUMENT, FRAME, LENGTH, ROOM, SOURCE, Segments, joined, lay_out

SEQ_LENGTH, PAD_FRAME = 12, 5


@st.composite
def rows_of_pieces(draw):
    """Rows of pieces that fit them, some empty, some with trained spans; with or without fill-in-the-middle."""
    rows = draw(st.integers(1, 5))
    row, length, slot, spans = [], [], [], []
    for number in range(rows):
        room = SEQ_LENGTH
        while room and draw(st.integers(0, 3)):
            takes = draw(st.integers(1, room))
            length.append(draw(st.integers(1, takes)))
            cuts = sorted(draw(st.sets(st.integers(0, length[-1]), max_size=4)))
            spans += [(len(row), begin, end) for begin, end in zip(cuts[::2], cuts[1::2], strict=False)]
            slot.append(takes)
            row.append(number)
            room -= takes
    count = np.arange(len(row))
    pieces = Segments(
        row=np.array(row, np.int64),
        frame=count % PAD_FRAME,
        offset=count * 7,
        length=np.array(length, np.int64),
        slot=np.array(slot, np.int64),
        goes_on=count % 3 == 0,
        source=(count % 2).astype(np.int32),
        epoch=(count % 4).astype(np.int32),
        document=count,
    )
    if draw(st.booleans()):
        pieces = replace(pieces, trained=np.array(spans, np.int64).reshape(-1, 3))
    if draw(st.booleans()):
        pieces = replace(pieces, fim=count.astype(np.uint64) << np.uint64(60), trained_count=count)
    if draw(st.booleans()):
        fragments = [(*span, 2**62 + number) for number, span in enumerate(spans)]
        pieces = replace(pieces, fragments=np.array(fragments, np.int64).reshape(-1, 4))
    if draw(st.booleans()):
        copies = [(piece, 0, begin, end, number) for number, (piece, begin, end) in enumerate(spans)]
        pieces = replace(pieces, copies=np.array(copies, np.int64).reshape(-1, 5))
    return pieces, rows


def told(ground):
    """Each row as its segments with their columns, trained spans, fragments and copies."""
    lists = [own.numbered().tolist() for own in (ground.trained, ground.fragments, ground.copies) if own is not None]
    return [
        [
            (ground.table[:, s].tolist(), [[line[1:] for line in lines if line[0] == s] for lines in lists])
            for s in range(first, last)
        ]
        for first, last in pairwise(ground.first.tolist())
    ]


@given(rows_of_pieces())
def test_rows_are_filled_and_hold_their_pieces_in_order(made):
    pieces, rows = made
    ground = lay_out(pieces, rows, SEQ_LENGTH, PAD_FRAME)
    room = [int(ground.table[ROOM, first:last].sum()) for first, last in pairwise(ground.first.tolist())]
    assert room == [SEQ_LENGTH] * rows
    assert (ground.table[ROOM] > 0).all()
    dummies = ground.table[SOURCE] < 0
    assert (ground.table[FRAME, dummies] == PAD_FRAME).all()
    assert (ground.table[LENGTH, dummies] == ground.table[ROOM, dummies]).all()
    assert ground.table[DOCUMENT, ~dummies].tolist() == pieces.document.tolist()


@given(rows_of_pieces())
def test_pieces_come_back_as_they_were_laid_out(made):
    pieces, rows = made
    again = lay_out(pieces, rows, SEQ_LENGTH, PAD_FRAME).pieces()
    for name, value in vars(pieces).items():
        back = getattr(again, name)
        assert (value is None) == (back is None), name
        assert value is None or (value.dtype == back.dtype and value.tolist() == back.tolist()), name


@given(rows_of_pieces(), st.data())
def test_rows_can_be_taken_cut_and_joined(made, data):
    pieces, rows = made
    ground = lay_out(pieces, rows, SEQ_LENGTH, PAD_FRAME)
    whole = told(ground)
    order = data.draw(st.lists(st.integers(0, rows - 1), max_size=8))
    assert told(ground.take(np.array(order, np.int64))) == [whole[row] for row in order]
    begin = data.draw(st.integers(0, rows))
    end = data.draw(st.integers(begin, rows))
    assert told(ground.between(begin, end)) == whole[begin:end]
    parts = [ground.between(0, begin), ground.between(begin, rows)]
    assert told(joined(parts, [0, 0])) == whole
    frames = joined(parts, [0, 10]).table[FRAME] - ground.table[FRAME]
    assert frames.tolist() == [0] * int(ground.first[begin]) + [10] * int(ground.first[-1] - ground.first[begin])
