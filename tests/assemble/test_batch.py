"""Batches as DESIGN section 6 has them; masks come from positions, never from token values."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampipe.assemble.batch import IGNORED, Paper
from streampipe.assemble.batch import assemble as assemble_views
from streampipe.assemble.batch_config import BatchConfig
from streampipe.assemble.segments import Segments, lay_out
from streampipe.errors import ConfigError, SourceError
from streampipe.shards.buffers import FrameBuffers


def assemble(pieces, frames, shape, config, pad_id):
    padding = np.full(shape[1], pad_id, frames[0].dtype if frames else np.uint16)
    views = [memoryview(frame) for frame in [*frames, padding]]
    ground = lay_out(pieces, *shape, len(frames), one_per_row=config.layout == "sbhd")
    return assemble_views(ground, views, Paper(1, *shape, pad_id), config, FrameBuffers())[0]


ALL = ("tokens", "labels", "position_ids", "loss_mask", "padding_mask")


def segments(pieces, multiple=1):
    """Pieces as (row, frame, offset, length, goes_on)."""
    row, frame, offset, length, goes_on = (np.array(column) for column in zip(*pieces, strict=True))
    count = np.arange(len(pieces))
    slot = -(-length // multiple) * multiple
    return Segments(
        row,
        frame,
        offset,
        length,
        slot,
        goes_on.astype(bool),
        count.astype(np.int32) % 2,
        count.astype(np.int32),
        count,
    )


def test_the_example_of_the_design_byte_for_byte():
    frames = [np.array([0, 0, 11, 12, 13, 14, 15, 0, 21, 22], np.uint16)]  # headers are zeros here
    two = segments([(0, 0, 2, 5, 0), (0, 0, 8, 2, 0)], multiple=4)
    batch = assemble(two, frames, (1, 16), BatchConfig(fields=ALL), pad_id=99)
    p = 99
    assert batch["tokens"].tolist() == [11, 12, 13, 14, 15, p, p, p, 21, 22, p, p, p, p, p, p]
    assert batch["labels"].tolist() == [12, 13, 14, 15, *[-100] * 4, 22, *[-100] * 7]
    assert batch["position_ids"].tolist() == [*range(8), *range(4), *range(4)]
    assert batch["loss_mask"].tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert batch["padding_mask"].tolist() == [False] * 5 + [True] * 3 + [False] * 2 + [True] * 6
    assert batch["cu_seqlens"].tolist() == [0, 5, 7, 11]
    assert batch["cu_seqlens_padded"].tolist() == [0, 8, 12, 16]
    assert (batch["max_seqlen"], type(batch["max_seqlen"])) == (8, int)
    assert batch["document_ids"].tolist() == [0, 1, -1]
    assert batch["source_ids"].tolist() == [0, 1, -1]
    assert batch["epochs"].tolist() == [0, 1, -1]
    assert batch["loss_tokens"] == 5
    names = (*ALL, "cu_seqlens", "cu_seqlens_padded", "source_ids", "document_ids", "epochs")
    dtypes = {name: str(batch[name].dtype) for name in names}
    assert dtypes == {
        "tokens": "int64", "labels": "int64", "position_ids": "int64", "loss_mask": "float32", "padding_mask": "bool",
        "cu_seqlens": "int32", "cu_seqlens_padded": "int32", "source_ids": "int32", "document_ids": "int64",
        "epochs": "int32",
    }  # fmt: skip


def test_boundaries_are_the_very_same_array_when_nothing_is_padded_inside():
    batch = assemble(segments([(0, 0, 0, 5, 0)]), [np.arange(9, dtype=np.uint16)], (1, 8), BatchConfig(), 0)
    assert batch["cu_seqlens"] is batch["cu_seqlens_padded"]
    assert batch["cu_seqlens"].tolist() == [0, 5, 8]


def test_a_piece_that_goes_on_keeps_its_last_true_target():
    frames = [np.arange(10, 20, dtype=np.uint32)]
    split = segments([(0, 0, 0, 4, 1), (1, 0, 4, 2, 0)])
    batch = assemble(split, frames, (2, 4), BatchConfig(), 0)
    assert batch["labels"].tolist() == [11, 12, 13, 14, 15, -100, -100, -100]
    assert batch["loss_tokens"] == 5
    unshifted = assemble(split, frames, (2, 4), BatchConfig(labels="unshifted"), 0)
    assert unshifted["labels"].tolist() == [-100, 11, 12, 13, -100, 15, -100, -100]
    assert unshifted["loss_tokens"] == 4 == (unshifted["loss_mask"] == 1).sum()


def test_rooms_of_more_than_two_bytes_are_counted_through():
    batch = assemble(segments([(0, 0, 0, 5, 0)]), [np.arange(9, dtype=np.uint16)], (1, 70_000), BatchConfig(), 0)
    assert batch["position_ids"].tolist() == [*range(5), *range(69_995)]


def test_a_frame_that_is_shorter_than_its_index_says_is_an_error():
    pieces = segments([(0, 0, 0, 16, False)])
    with pytest.raises(SourceError, match="16 positions of micro batches got 10 tokens"):
        assemble(pieces, [np.arange(10, dtype=np.uint16)], (1, 16), BatchConfig(), 0)


def test_padded_rows_hold_one_document_each():
    batch = assemble(
        segments([(0, 0, 0, 3, 0), (1, 0, 3, 4, 0)]),
        [np.arange(8, dtype=np.uint16)],
        (3, 4),
        BatchConfig(layout="sbhd"),
        7,
    )
    assert batch["tokens"].tolist() == [[0, 1, 2, 7], [3, 4, 5, 6], [7, 7, 7, 7]]
    assert batch["labels"].tolist() == [[1, 2, -100, -100], [4, 5, 6, -100], [-100] * 4]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3]] * 3
    assert batch["lengths"].tolist() == [3, 4, 0]
    assert batch["document_ids"].tolist() == [0, 1, -1]
    assert "cu_seqlens" not in batch


def test_an_empty_batch_is_fully_masked():
    none = Segments(
        *(np.empty(0, np.int64) for _ in range(5)),
        np.empty(0, bool),
        *(np.empty(0, np.int32) for _ in range(2)),
        np.empty(0, np.int64),
    )
    batch = assemble(none, [], (2, 4), BatchConfig(fields=ALL), 5)
    assert batch["tokens"].tolist() == [5] * 8
    assert batch["loss_mask"].sum() == 0 == batch["loss_tokens"]
    assert batch["cu_seqlens"].tolist() == [0, 4, 8]
    assert batch["document_ids"].tolist() == [-1, -1]


@st.composite
def rows_of_pieces(draw):
    """Up to three rows of 24 positions, filled with aligned pieces of frames of known tokens."""
    multiple = draw(st.sampled_from([1, 4, 8]))
    pieces = []
    for row in range(draw(st.integers(1, 3))):
        room = 24
        while room and draw(st.booleans()):
            length = draw(st.integers(1, room))
            pieces.append((row, draw(st.integers(0, 2)), draw(st.integers(0, 30)), length, draw(st.booleans())))
            room -= -(-length // multiple) * multiple
            if room <= 0:
                break
    return row + 1, multiple, pieces


def plain_batch(rows, multiple, pieces, frames, pad, aligned):
    """The same batch, one position after another."""
    out = {name: [] for name in ALL} | {"cu": [0], "padded": [0]}

    def put(token, label, position, trained, padding):
        for name, value in zip(ALL, (token, label, position, trained, padding), strict=True):
            out[name].append(value)

    def empty(count, position):
        for i in range(count):
            put(pad, IGNORED, position + i, 0.0, True)

    for row in range(rows):
        for _, frame, offset, length, goes_on in (piece for piece in pieces if piece[0] == row):
            text = frames[frame][offset : offset + length + 1].tolist()
            for i in range(length):
                has_target = i < length - 1 or goes_on
                if aligned:
                    put(text[i], text[i + 1] if has_target else IGNORED, i, float(has_target), False)
                else:
                    put(text[i], text[i] if i else IGNORED, i, float(i > 0), False)
            slot = -(-length // multiple) * multiple
            empty(slot - length, length)
            out["cu"].append(out["cu"][-1] + length)
            out["padded"].append(out["padded"][-1] + slot)
        tail = (row + 1) * 24 - len(out["tokens"])
        if tail:
            empty(tail, 0)
            out["cu"].append(out["cu"][-1] + tail)
            out["padded"].append(out["padded"][-1] + tail)
    return out


@given(
    rows_of_pieces(),
    st.sampled_from(["aligned", "unshifted"]),
    st.sampled_from(["int64", "int32"]),
    st.sampled_from([np.uint16, np.uint32]),
)
def test_a_batch_equals_the_one_written_position_by_position(made, labels, dtype, stored):
    rows, multiple, pieces = made
    if not pieces:
        return
    # Token values repeat and equal the pad id: only positions may decide about masks.
    frames = [(np.arange(60) % 7 + frame).astype(stored) for frame in range(3)]
    config = BatchConfig(fields=ALL, labels=labels, token_dtype=dtype)
    batch = assemble(segments(pieces, multiple), frames, (rows, 24), config, pad_id=3)
    plain = plain_batch(rows, multiple, pieces, frames, 3, labels == "aligned")
    for name in ALL:
        assert batch[name].tolist() == plain[name], name
    assert batch["cu_seqlens"].tolist() == plain["cu"]
    assert batch["cu_seqlens_padded"].tolist() == plain["padded"]
    assert batch["loss_tokens"] == sum(plain["loss_mask"]) == (batch["labels"] != IGNORED).sum()
    assert batch["tokens"].dtype == dtype
    # The contract of varlen kernels (B88): starts at 0, rises strictly, ends where the tokens end.
    assert plain["padded"][-1] == rows * 24
    assert (np.diff(batch["cu_seqlens_padded"]) > 0).all()
    assert batch["max_seqlen"] == np.diff(batch["cu_seqlens_padded"]).max()


@given(rows_of_pieces(), st.sampled_from(["aligned", "unshifted"]), st.booleans(), st.data())
def test_micro_batches_made_at_once_equal_each_made_alone(made, labels, masked, data):
    rows, multiple, pieces = made
    if not pieces:
        return
    frames = [memoryview((np.arange(60) % 7 + frame).astype(np.uint16)) for frame in range(3)]
    frames.append(memoryview(np.full(24, 3, np.uint16)))
    parts = segments(pieces, multiple)
    if masked:
        ends = [data.draw(st.integers(0, piece[3])) for piece in pieces]
        parts = replace(
            parts, trained=np.array([(n, 0, end) for n, end in enumerate(ends) if end], np.int64).reshape(-1, 3)
        )
    ground = lay_out(parts, rows, 24, 3)
    config = BatchConfig(fields=ALL, labels=labels)
    at_once = assemble_views(ground, frames, Paper(rows, 1, 24, 3), config, FrameBuffers())
    assert len(at_once) == rows
    for row, batch in enumerate(at_once):
        alone = assemble_views(ground.between(row, row + 1), frames, Paper(1, 1, 24, 3), config, FrameBuffers())[0]
        assert list(batch) == list(alone)
        for name, value in alone.items():
            assert np.array_equal(batch[name], value), name
            assert getattr(batch[name], "dtype", None) == getattr(value, "dtype", None), name
        assert (batch["cu_seqlens"] is batch["cu_seqlens_padded"]) == (
            alone["cu_seqlens"] is alone["cu_seqlens_padded"]
        )


@pytest.mark.parametrize("left_out", ["labels", "position_ids", "loss_mask"])
def test_fields_that_the_model_derives_can_be_left_out(left_out):
    fields = tuple(name for name in BatchConfig().fields if name != left_out)
    batch = assemble(
        segments([(0, 0, 0, 5, 0)]), [np.arange(9, dtype=np.uint16)], (1, 8), BatchConfig(fields=fields), 0
    )
    assert left_out not in batch
    assert set(fields) < set(batch)


@pytest.mark.parametrize(
    ("config", "policy", "message"),
    [
        (BatchConfig(layout="sbhd"), "best_fit", r"\$\.batch\.layout: sbhd gives one document a row"),
        (BatchConfig(fields=("labels",)), "best_fit", "tokens cannot be left out"),
        (BatchConfig(fields=("tokens", "tokens")), "best_fit", "listed twice"),
        (BatchConfig(micro_batch_size=0), "best_fit", r"\$\.batch\.micro_batch_size"),
    ],
)
def test_a_batch_without_meaning_is_refused(config, policy, message):
    with pytest.raises(ConfigError, match=message):
        config.check(policy)
