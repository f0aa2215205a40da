"""Cuts at token borders that are planned with the round give the batches that the tokens give."""

import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import assert_same_future, take
from streams import write_documents

from streampipe import Topology, build_loader, config_from
from streampipe.shards import Document

SEQ_LENGTH = 32
PARTS = ["fim_parts", "horizon"]  # whoever asks for one gets pieces that were made from tokens
TEMPLATES = [
    [77, "SUF", "suffix", 88, 89, "prefix", "middle"],
    ["PRE", "prefix", "suffix", 90, "middle"],
    ["MID", 91, 92, "suffix", "PRE", "prefix", 93, 94, 95, "middle"],
]
# Tokens: around what still fits a sequence with its sentinels, and some that are split.
LENGTHS = [1, 2, 3, 7, 12, 20, 26, 27, 28, 29, 30, 31, 32, 33, 70]


@st.composite
def fims(draw):
    return {
        "level": "token",
        "sentinels": {"prefix": 1, "suffix": 2, "middle": 3},
        "rate": draw(st.sampled_from([0, 0.5, 1])),
        "spm_rate": draw(st.sampled_from([0, 0.5, 1])),
        "psm": draw(st.sampled_from(["psm", *TEMPLATES])),
        "spm": draw(st.sampled_from(["spm", "spmv1", *TEMPLATES])),
        "min_length": draw(st.sampled_from([0, 1, 5])),
        "loss": draw(st.sampled_from(["all", "all", "middle"])),
    }


@st.composite
def corpora(draw):
    """Two sources: documents and how they are written, texts with start and end tokens or not, or conversations."""
    made = []
    for number in range(2):
        chats = number == 1 and draw(st.booleans())
        documents = []
        for document, length in enumerate(draw(st.lists(st.sampled_from(LENGTHS), min_size=12, max_size=30))):
            ids = (np.arange(length) + 1000 * number + 37 * document + 5000).astype(np.uint32)
            spans = np.array([[length // 3, length // 2 + 1]], np.int32) if chats else None
            documents.append(Document(f"{document:06d}", ids, spans))
        ends = {} if chats else {name: "<x>" for name in ("bos", "eos") if draw(st.booleans())}
        options = {"build": ends, "frame_tokens": 60, "token_dtype": draw(st.sampled_from(["uint16", "uint32"]))}
        made.append((documents, options, None if chats or (number and draw(st.booleans())) else draw(fims())))
    return made


@st.composite
def layouts(draw):
    """How documents are packed into batches, and the ranks that share them."""
    layout, by, policy = draw(
        st.sampled_from(
            [
                ("thd", "sequences", "best_fit"),
                ("thd", "sequences", "none"),
                ("thd", "documents", "best_fit"),
                ("sbhd", "sequences", "none"),
            ]
        )
    )
    dp_size = draw(st.sampled_from([1, 2]))
    return {
        "packing": {
            "policy": policy,
            "overlong": "truncate" if by == "documents" else draw(st.sampled_from(["split", "truncate"])),
            "document_multiple": draw(st.sampled_from([1, 8])),
        },
        "batch": {
            "layout": layout,
            "batch_by": by,
            "global_batch_size": draw(st.sampled_from([4, 8, 12])),
            "micro_batch_size": draw(st.sampled_from([1, 2])),
            "labels": draw(st.sampled_from(["aligned", "unshifted"])),
        },
        "plan": {"windows": 2, "window_tokens": 128},
    }, dp_size


def batches_of(raw, fields, dp_size):
    """All batches of all ranks, without what tells of parts; and whether their cuts were planned."""
    config = config_from(raw | {"batch": raw["batch"] | {"fields": fields}})
    batches = [b for rank in range(dp_size) for b in take(config, None, Topology(dp_size=dp_size, dp_rank=rank))]
    with build_loader(config) as loader:
        planned = loader.stream.plan_round(0, lambda: None, 0).ground.copies is not None
    return [{name: value for name, value in batch.items() if name not in PARTS} for batch in batches], planned


@given(corpora(), layouts(), st.integers(0, 2**32), st.sampled_from(PARTS))
def test_planned_cuts_give_the_batches_that_tokens_give(sources, layout, seed, part):
    changes, dp_size = layout
    fields = ["tokens", "labels", "position_ids", "loss_mask", "padding_mask"]
    with tempfile.TemporaryDirectory() as folder:
        raw = {"seed": seed, "seq_length": SEQ_LENGTH, "sources": [], "loader": {"log_every": 0}, **changes}
        for name, (documents, options, fim) in zip("ab", sources, strict=True):
            path = write_documents(f"{folder}/{name}", documents, **options)
            raw["sources"].append(
                {"name": name, "path": path, "epochs": 1, "accept_loss": True} | ({"fim": fim} if fim else {})
            )
        assert_the_same_by_plan_and_by_tokens(raw, fields, part, dp_size)


def assert_the_same_by_plan_and_by_tokens(raw, fields, part, dp_size):
    by_plan, planned = batches_of(raw, fields, dp_size)
    by_tokens, otherwise = batches_of(raw, [*fields, part], dp_size)
    assert planned
    assert not otherwise
    assert_same_future(by_plan, by_tokens)
    assert all(batch["loss_tokens"] == batch["loss_mask"].sum() for batch in by_plan)


@given(fims(), st.none() | fims(), layouts(), st.integers(0, 2**32), st.sampled_from(PARTS))
def test_documents_that_begin_with_their_frame_have_their_sentinels_too(fim, other, layout, seed, part):
    """No token stands before them, as a header does in a real frame: so one mock document is a frame here."""
    changes, dp_size = layout
    mock = {"documents": 12, "mean": 20, "sigma": 0.5, "max": 60, "vocab_size": 1000}
    raw = {"seed": seed, "seq_length": SEQ_LENGTH, "sources": [], "loader": {"log_every": 0}, **changes}
    for name, own in (("a", fim), ("b", other)):
        raw["sources"].append(
            {"name": name, "mock": mock, "epochs": 1, "accept_loss": True} | ({"fim": own} if own else {})
        )
    fields = ["tokens", "labels", "position_ids", "loss_mask", "padding_mask"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streampipe.mock._FRAME_TOKENS", 1)
        assert_the_same_by_plan_and_by_tokens(raw, fields, part, dp_size)
