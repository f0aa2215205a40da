"""`batch_by: documents`: steps of so many documents, the same on any topology, that say how many micro batches."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from laws import (
    assert_each_document_once_an_epoch,
    assert_lockstep,
    assert_resumes_anywhere,
    assert_same_future,
    documents_of,
    take,
    take_all_ranks,
)
from streams import CODE, SEQ_LENGTH, WEB, drawn_lengths, spelled, stream_of, write_documents, write_source

from streampipe import ConfigError, CursorMismatchError, DocumentTooLongError, StreamConfig, Topology, build_loader
from streampipe.shards import Pair
from streampipe.shards.document import Trained
from streampipe.tools.digest import digest_steps

BY_DOCUMENTS = {
    "batch.batch_by": "documents",
    "batch.global_batch_size": 23,
    "packing.overlong": "truncate",
    "sources": [],
}


def config_of(folder: Path, changes: dict[str, Any] | None = None, **limits: int) -> StreamConfig:
    sources = [{"name": n, "path": f"{folder}/{n}", "weight": w} | limits for n, w in (("web", 0.6), ("code", 0.4))]
    return stream_of(folder, BY_DOCUMENTS | {"sources": sources} | (changes or {}))


def steps_of(batches: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for batch in batches:
        found.setdefault(batch["step"], []).append(batch)
    return found


@pytest.mark.parametrize(("dp_size", "micro_batch_size"), [(2, 2), (3, 1), (8, 1), (5, 4)])
@pytest.mark.parametrize("multiple", [1, 8])
def test_digests_do_not_depend_on_ranks_and_micro_batches(
    corpora: Path, dp_size: int, micro_batch_size: int, multiple: int
) -> None:
    changes = {"batch.sequence_multiple": multiple}
    one = list(digest_steps(config_of(corpora, changes), 6, 1))
    many = list(digest_steps(config_of(corpora, changes | {"batch.micro_batch_size": micro_batch_size}), 6, dp_size))
    assert [(step["sha256"], step["cursor"]) for step in one] == [(step["sha256"], step["cursor"]) for step in many]
    assert len({step["sha256"] for step in one}) == 6


@pytest.mark.parametrize("dp_size", [1, 4])
def test_a_step_holds_its_documents_and_says_how_many_micro_batches_it_has(corpora: Path, dp_size: int) -> None:
    of_ranks = take_all_ranks(config_of(corpora, epochs=1), dp_size)
    assert_lockstep(of_ranks)
    steps = steps_of([batch for batches in of_ranks for batch in batches])
    counts = set()
    for number, batches in sorted(steps.items()):
        assert {batch["num_micro_batches"] for batch in batches} == {len(batches) // dp_size}
        counts.add(len(batches) // dp_size)
        documents = len(documents_of(batches, SEQ_LENGTH))
        assert documents == 23 if number < max(steps) else 0 < documents <= 23
        assert sum(batch["loss_tokens"] for batch in batches) == batches[0]["step_loss_tokens"]
    if dp_size == 1:
        assert len(counts) > 1, "steps differ in how many micro batches they take"
    cut = [[min(length, SEQ_LENGTH) for length in lengths] for lengths in (WEB, CODE)]
    pieces = documents_of([batch for batches in of_ranks for batch in batches], SEQ_LENGTH)
    assert_each_document_once_an_epoch(pieces, dict(enumerate(cut)), {0: 1, 1: 1})


def test_a_ramp_counts_documents_and_a_longer_sequence_takes_more_of_them(corpora: Path) -> None:
    ramp = [{"size": 5}, {"size": 12, "steps": 4}]
    changes = {"batch.global_batch_size": ramp, "phases": [{"start": 6000, "seq_length": 256}]}
    config = config_of(corpora, changes)
    with build_loader(config) as loader:
        batches = list(islice(loader, 60))
    counts = [len(documents_of(of, of[0]["tokens"].numel() // 2)) for of in steps_of(batches).values()][:-1]
    assert counts[:5] == [5, 5, 5, 5, 12]
    assert {batch["tokens"].numel() // 2 for batch in batches} == {SEQ_LENGTH, 2 * SEQ_LENGTH}
    assert sum(count != 12 for count in counts[4:]) <= 1, "the last step of a phase takes what is left"
    one = list(digest_steps(config, 14, 1))
    assert [step["sha256"] for step in one] == [step["sha256"] for step in digest_steps(config, 14, 3)]
    later = list(digest_steps(config, 2, 2, one[11]["cursor"]))
    assert [step["sha256"] for step in later] == [step["sha256"] for step in one[12:]]


def test_another_sequence_multiple_is_another_stream(corpora: Path) -> None:
    cursor = take(config_of(corpora), 1)[0]["cursor"]
    with (
        build_loader(config_of(corpora, {"batch.sequence_multiple": 2})) as loader,
        pytest.raises(CursorMismatchError, match=r"documents/1.*documents/2"),
    ):
        loader.load_state_dict(cursor)


def test_the_very_same_future_comes_from_every_cursor(corpora: Path) -> None:
    topology = Topology(dp_size=2, dp_rank=1)
    config = config_of(corpora, {"batch.micro_batch_size": 1}, epochs=1)
    whole = take(config, None, topology)
    assert whole[0]["num_micro_batches"] > 2
    assert_resumes_anywhere(lambda cursor: take(config, None, topology, cursor), whole)


def test_a_step_border_is_resumed_on_another_number_of_ranks(corpora: Path) -> None:
    config = config_of(corpora)
    steps = list(digest_steps(config, 6, 2))
    later = list(digest_steps(config, 3, 5, steps[2]["cursor"]))
    assert [step["sha256"] for step in later] == [step["sha256"] for step in steps[3:]]


def test_worker_processes_and_another_prefetch_change_nothing(corpora: Path) -> None:
    plain = take(config_of(corpora), 12)
    for changes in ({"loader.num_workers": 1}, {"loader.prefetch": 1}):
        assert_same_future(take(config_of(corpora, changes), 12), plain)


def test_a_cursor_behind_the_end_of_its_step_is_refused(corpora: Path) -> None:
    config = config_of(corpora)
    cursor = take(config, 1)[0]["cursor"]
    cursor["within"][0] = 1000
    with build_loader(config) as loader, pytest.raises(CursorMismatchError, match="1000 micro batches of step 0"):
        loader.load_state_dict(cursor)
        next(loader)


def test_metrics_count_documents_and_this_rank_s_padding(corpora: Path) -> None:
    with build_loader(config_of(corpora, {"batch.micro_batch_size": 1}, epochs=1)) as loader:
        batches = list(loader)
        metrics = loader.metrics()
    tokens = sum(piece.length for piece in documents_of(batches, SEQ_LENGTH))
    assert metrics["tokens"] == tokens
    assert metrics["padding"] == pytest.approx(1 - tokens / (len(batches) * SEQ_LENGTH))
    assert metrics["padding"] < 0.1


def test_pairs_stay_together_and_count_once(tmp_path: Path) -> None:
    lengths = drawn_lengths(80, 25, "pairs", longest=60)
    sides = [Trained(spelled(3, i, n), np.array([(0, n)], np.int32)) for i, n in enumerate(lengths)]
    write_documents(tmp_path / "pairs", [Pair(f"{i:06d}", sides[2 * i], sides[2 * i + 1]) for i in range(40)])
    changes = {"sources": [{"name": "pairs", "path": str(tmp_path / "pairs"), "epochs": 1}]}
    config = config_of(tmp_path, changes | {"batch.global_batch_size": 10, "packing.overlong": "error"})
    met = []
    for batches in steps_of(take(config, None)).values():
        ids = [i for batch in batches for i in batch["pair_ids"].tolist() if i >= 0]
        assert len(ids) == 20
        assert ids[::2] == ids[1::2], "chosen and rejected are neighbours"
        met += ids[::2]
    assert sorted(met) == list(range(40))


def test_documents_that_are_too_long_are_an_error_until_the_user_chooses(tmp_path: Path) -> None:
    write_source(tmp_path / "web", 0, WEB)
    write_source(tmp_path / "code", 1, CODE)
    with pytest.raises(DocumentTooLongError, match="choose drop or truncate"):
        build_loader(config_of(tmp_path, {"packing.overlong": None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packing.policy": "concat"}, r"\$\.batch\.batch_by: .* no meaning with layout thd and packing.policy concat"),
        ({"packing.policy": "none", "batch.layout": "sbhd"}, r"\$\.batch\.batch_by: .* layout sbhd"),
        ({"packing.overlong": "split"}, r"\$\.packing\.overlong: batch_by: documents counts whole documents"),
        ({"plan.balance": "cost"}, r"\$\.plan\.balance: .* balances each step by itself"),
        ({"batch.batch_by": "sequences", "batch.sequence_multiple": 2}, r"\$\.batch\.sequence_multiple: has a meaning"),
        ({"batch.global_batch_tokens": 2048}, r"\$\.batch\.global_batch_tokens: .* counts documents"),
        ({"batch.sequence_multiple": 0}, r"\$\.batch\.sequence_multiple: must be at least 1"),
    ],
)
def test_combinations_without_meaning_are_refused(corpora: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(corpora, changes)


def test_the_order_of_documents_does_not_depend_on_how_many_a_step_takes(corpora: Path) -> None:
    few = documents_of(islice(take(config_of(corpora, {"batch.global_batch_size": 5}), 60), 60), SEQ_LENGTH)
    config = config_of(corpora, {"batch.global_batch_size": 20})
    for number, batches in list(steps_of(take(config, 30)).items())[:2]:
        assert set(documents_of(batches, SEQ_LENGTH)) == set(few[20 * number : 20 * number + 20])
