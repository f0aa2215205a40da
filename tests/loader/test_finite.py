"""Laws 4 and 6: with `epochs`, every document once an epoch, and all ranks end together."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import (
    Batch,
    assert_each_document_once_an_epoch,
    assert_lockstep,
    assert_same_future,
    documents_of,
    plain,
    take,
    take_all_ranks,
)
from streams import CODE, SEQ_LENGTH, WEB, raw_stream, write_source

from streampipe import StreamConfig, StreampipeError, Topology, build_loader, config_from

POLICIES: dict[str, dict[str, Any]] = {
    "best_fit": {},
    "concat": {"packing.policy": "concat"},
    "none": {"packing.policy": "none"},
    "sbhd": {"packing.policy": "none", "batch.layout": "sbhd"},
    "in order": {"shuffle.shards": False},
}


def finite(folder: Path, epochs: tuple[int, int], changes: dict[str, Any] | None = None) -> StreamConfig:
    raw = raw_stream(folder, changes)
    for source, limit in zip(raw["sources"], epochs, strict=True):
        source["epochs"] = limit
    return config_from(raw)


def single(url: str, epochs: int, **batch: Any) -> StreamConfig:
    return config_from(
        {
            "seq_length": SEQ_LENGTH,
            "sources": [{"name": "only", "path": url, "epochs": epochs}],
            "plan": {"windows": 4, "window_tokens": 1024},
            "batch": {"global_batch_size": 8, **batch},
        }
    )


def together(ranks: list[list[Batch]]) -> list[Batch]:
    return [batch for batches in ranks for batch in batches]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("epochs", "dp_size"), [((1, 1), 1), ((1, 1), 4), ((2, 1), 2), ((1, 2), 8), ((2, 2), 4)])
def test_every_document_comes_once_an_epoch_and_all_ranks_end_together(
    corpora: Path, policy: str, epochs: tuple[int, int], dp_size: int
) -> None:
    ranks = take_all_ranks(finite(corpora, epochs, POLICIES[policy]), dp_size)
    assert_lockstep(ranks)
    pieces = documents_of(together(ranks), SEQ_LENGTH)
    assert_each_document_once_an_epoch(pieces, {0: WEB, 1: CODE}, dict(enumerate(epochs)))


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_a_single_source_ends_after_its_epochs_and_no_epoch_mixes_with_the_next(corpora: Path, epochs: int) -> None:
    batches = take(single(f"{corpora}/web", epochs), None)
    pieces = documents_of(batches, SEQ_LENGTH)
    assert_each_document_once_an_epoch(pieces, {0: WEB}, {0: epochs})


@pytest.mark.parametrize("policy", POLICIES)
def test_the_last_step_is_completed_with_sequences_that_train_nothing(corpora: Path, policy: str) -> None:
    ranks = take_all_ranks(finite(corpora, (1, 1), POLICIES[policy] | {"batch.global_batch_size": 48}), 4)
    last = [plain(batch) for batches in ranks for batch in batches if batch["step"] == batches[-1]["step"]]
    used, empty = [], []
    for batch in last:
        mask, rows = batch["loss_mask"].reshape(2, -1), batch["source_ids"]
        starts = batch["cu_seqlens_padded"][:-1] if "lengths" not in batch else [0, SEQ_LENGTH]
        for row, trained in enumerate(mask):
            of_row = [s for s, at in zip(rows, starts, strict=True) if at // SEQ_LENGTH == row]
            (empty if max(of_row) < 0 else used).append(trained)
    assert used, "the last step holds what is left"
    assert empty, "this corpus does not fill its last step"
    assert not any(trained.any() for trained in empty)
    assert sum(batch["loss_tokens"] for batch in last) == last[0]["step_loss_tokens"] > 0
    assert all(batch["tokens"].shape == ranks[0][0]["tokens"].shape for batch in last)


def test_the_run_after_the_end_gives_the_same_batches(corpora: Path) -> None:
    config = finite(corpora, (1, 2))
    with build_loader(config, Topology(dp_size=2, dp_rank=1)) as loader:
        first = list(loader)
        assert next(loader, None) is None
        assert loader.state_dict() == first[-1]["cursor"]
        assert iter(loader).state_dict() == loader.stream.start().to_dict()
        assert_same_future(list(loader), first)


def test_metrics_at_the_end_are_what_was_delivered(corpora: Path) -> None:
    with build_loader(finite(corpora, (2, 3))) as loader:
        for _ in loader:
            pass
        metrics = loader.metrics()
    assert metrics["tokens"] == 2 * sum(WEB) + 3 * sum(CODE)
    assert {name: (of["epochs"], of["documents"]) for name, of in metrics["sources"].items()} == {
        "web": (2.0, 2 * len(WEB)),
        "code": (3.0, 3 * len(CODE)),
    }


@pytest.mark.parametrize("overlong", ["truncate", "drop"])
def test_what_overlong_takes_away_is_counted_to_the_token(corpora: Path, overlong: str) -> None:
    with build_loader(finite(corpora, (1, 1), {"packing.overlong": overlong})) as loader:
        pieces = documents_of(loader, SEQ_LENGTH)
        sources = loader.metrics()["sources"]
    long = {"web": [n for n in WEB if n > SEQ_LENGTH], "code": [n for n in CODE if n > SEQ_LENGTH]}
    for number, (name, lengths) in enumerate({"web": WEB, "code": CODE}.items()):
        of = sources[name]
        lost = of["truncated_tokens"] + of["dropped_tokens"]
        assert sum(piece.length for piece in pieces if piece.source == number) == of["tokens"] == sum(lengths) - lost
        if overlong == "drop":
            assert (of["dropped_documents"], of["dropped_tokens"]) == (len(long[name]), sum(long[name]))
        else:
            assert of["truncated_tokens"] == sum(n - SEQ_LENGTH for n in long[name])
        assert lost > 0


@pytest.mark.parametrize("lengths", [[1], [2], [500], [1, 1, 1], [5] * 7, [128], [129]])
@pytest.mark.parametrize("policy", ["best_fit", "concat", "none"])
def test_a_source_smaller_than_the_ranks_still_gives_everyone_the_same_number_of_batches(
    tmp_path: Path, lengths: list[int], policy: str
) -> None:
    raw = {
        "seq_length": SEQ_LENGTH,
        "sources": [{"name": "tiny", "path": write_source(tmp_path / "tiny", 0, lengths, frame_tokens=4), "epochs": 2}],
        "packing": {"policy": policy},
        "batch": {"global_batch_size": 8},
    }
    ranks = take_all_ranks(config_from(raw), 8)
    assert_lockstep(ranks)
    assert_each_document_once_an_epoch(documents_of(together(ranks), SEQ_LENGTH), {0: lengths}, {0: 2})


def test_a_finite_source_leaves_its_weight_to_an_endless_one(corpora: Path) -> None:
    raw = raw_stream(corpora)
    raw["sources"][1]["epochs"] = 1
    batches = take(config_from(raw), 160)
    pieces = [piece for piece in documents_of(batches, SEQ_LENGTH) if piece.source == 1]
    assert_each_document_once_an_epoch(pieces, {1: CODE}, {1: 1})


def test_sources_may_store_their_ids_in_different_widths_and_codecs(tmp_path: Path) -> None:
    few = [3, 70, 128, 200] * 3  # whose ids fit 16 bits
    write_source(tmp_path / "web", 0, few, token_dtype="uint16", compression="none")
    write_source(tmp_path / "code", 1, CODE)
    ranks = take_all_ranks(finite(tmp_path, (2, 1)), 2)
    pieces = documents_of(together(ranks), SEQ_LENGTH)
    assert_each_document_once_an_epoch(pieces, {0: few, 1: CODE}, {0: 2, 1: 1})


def test_a_stream_in_which_every_document_is_dropped_says_so_instead_of_spinning(tmp_path: Path) -> None:
    raw = {
        "seq_length": 16,
        "sources": [{"name": "long", "path": write_source(tmp_path, 0, [20, 30, 40]), "accept_loss": True}],
        "packing": {"overlong": "drop"},
        "plan": {"windows": 1, "window_tokens": 16},
    }
    with pytest.raises(StreampipeError, match="every document was dropped as overlong"):
        take(config_from(raw), 1)


@given(
    sources=st.lists(st.lists(st.integers(1, 20 * 16), min_size=1, max_size=25), min_size=1, max_size=3),
    epochs=st.lists(st.integers(1, 2), min_size=3, max_size=3),
    weights=st.lists(st.sampled_from([0.1, 1, 7]), min_size=3, max_size=3),
    policy=st.sampled_from(["best_fit", "concat", "none"]),
    windows=st.integers(1, 6),
    dp_size=st.sampled_from([1, 2, 4]),
)
def test_conservation_holds_for_any_corpora_weights_and_ranks(
    sources: list[list[int]], epochs: list[int], weights: list[float], policy: str, windows: int, dp_size: int
) -> None:
    raw = {
        "seq_length": 16,
        "sources": [
            {
                "name": f"source-{number}",
                "path": write_source(f"memory://finite/{abs(hash((number, *lengths)))}", number, lengths),
                "epochs": epochs[number],
                "weight": weights[number],
            }
            for number, lengths in enumerate(sources)
        ],
        "packing": {"policy": policy},
        "plan": {"windows": windows, "window_tokens": 128},
        "batch": {"global_batch_size": 4},
    }
    ranks = take_all_ranks(config_from(raw), dp_size)
    assert_lockstep(ranks)
    pieces = documents_of(together(ranks), 16)
    assert_each_document_once_an_epoch(pieces, dict(enumerate(sources)), dict(enumerate(epochs)))
