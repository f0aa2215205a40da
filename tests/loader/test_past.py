"""What has been delivered stays what it was: whatever the process, the files or the config become later."""

import pickle
import re
import signal
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from laws import assert_same_future, sequences_of, take
from streams import CODE, SEQ_LENGTH, WEB, drawn_lengths, raw_stream, stream_of, write_source
from torch.utils.data import DataLoader

from streampipe import (
    ConfigError,
    CursorMismatchError,
    StreamConfig,
    StreamDataset,
    Topology,
    build_loader,
    config_from,
    run_ahead,
)
from streampipe import dataset as dataset_module
from streampipe.loader import StreamLoader

RANK = Topology()


@pytest.fixture
def grown(tmp_path: Path) -> Iterator[tuple[StreamConfig, dict[str, Any]]]:
    """A stream whose source has grown since the cursor beside it was saved."""
    write_source(tmp_path / "web", 0, WEB)
    write_source(tmp_path / "code", 1, CODE, sizes=[20, 20, 20])
    config = stream_of(tmp_path, {"batch.micro_batch_size": 16})
    cursor = take(config, 4)[-1]["cursor"]
    write_source(tmp_path / "code", 1, [*CODE, *drawn_lengths(25, 70, "more code")], sizes=[20, 20, 20, 25])
    yield config, cursor


def test_a_copy_in_another_process_goes_on_from_the_cursor_as_the_original_does(
    grown: tuple[StreamConfig, dict[str, Any]],
) -> None:
    config, cursor = grown
    expected = take(config, 6, None, cursor)
    dataset = StreamDataset(config, RANK)
    dataset.load_state_dict(cursor)
    assert_same_future(list(islice(iter(pickle.loads(pickle.dumps(dataset))), 6)), expected, "a copy")
    spawned = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert_same_future(list(islice(iter(spawned), 6)), expected, "a spawned worker")


@pytest.mark.parametrize("phases", [[], [{"start": 1000, "shuffle": False}]])
@pytest.mark.parametrize(("weight_by", "weight"), [("tokens", None), ("documents", 1), ("documents", "1/3")])
def test_weights_that_follow_sizes_are_told_when_a_source_has_grown(
    tmp_path: Path, weight_by: str, weight: Any, phases: list[dict[str, Any]]
) -> None:
    write_source(tmp_path / "web", 0, WEB)
    write_source(tmp_path / "code", 1, CODE, sizes=[20, 20, 20])
    sources = [{"name": name, "path": f"{tmp_path}/{name}", "weight": weight} for name in ("web", "code")]
    made = {"documents": 200, "mean": 40, "max": 100, "tokens_from": f"{tmp_path}/web"}
    sources.append({"name": "made", "mock": made, "weight": weight})
    config = stream_of(tmp_path, {"sources": sources, "weight_by": weight_by, "phases": phases})
    whole = take(config, 48)
    number = 43 if phases else 3
    assert whole[number]["cursor"]["phase"] == len(phases)
    write_source(tmp_path / "code", 1, [*CODE, *drawn_lengths(25, 70, "more code")], sizes=[20, 20, 20, 25])
    with pytest.raises(CursorMismatchError, match="code has grown since; to go on with the weights") as caught:
        take(config, 1, None, whole[number]["cursor"])
    weights = dict(re.findall(r"(\w+): '([^']+)'", str(caught.value)))
    if phases:
        assert "`phases[0].weights`" in str(caught.value)
        kept = {"sources": sources, "phases": [phases[0] | {"weights": weights}]}
    else:
        kept = {"sources": [source | {"weight": weights[source["name"]]} for source in sources]}
    after = take(stream_of(tmp_path, kept), 4, None, whole[number]["cursor"])
    assert sequences_of(after, SEQ_LENGTH) == sequences_of(whole[number + 1 : number + 5], SEQ_LENGTH)


@pytest.mark.parametrize("size", [16, 64])
def test_a_step_that_was_begun_ends_as_it_was_though_a_source_has_grown(tmp_path: Path, size: int) -> None:
    """Wherever its micro batches were interrupted, and also where it takes sequences of two rounds, or of many."""
    write_source(tmp_path / "web", 0, WEB)
    write_source(tmp_path / "code", 1, CODE, sizes=[20, 20, 20])
    config = stream_of(tmp_path, {"batch.global_batch_size": size})
    step = size // 2
    whole = take(config, 160)
    write_source(tmp_path / "code", 1, [*CODE, *drawn_lengths(25, 70, "more code")], sizes=[20, 20, 20, 25])
    changed = crossing = 0
    for number, batch in enumerate(whole[:150]):
        within = batch["cursor"]["within"]
        if within is None or within[0] != 3 or number + 3 * step > 160:
            continue
        crossing += bool(within[4])
        left, ahead = step - 3, number + 1
        after = take(config, 2 * step, None, batch["cursor"])
        assert sequences_of(after[:left], SEQ_LENGTH) == sequences_of(whole[ahead : ahead + left], SEQ_LENGTH)
        changed += sequences_of(after, SEQ_LENGTH) != sequences_of(whole[ahead : ahead + 2 * step], SEQ_LENGTH)
    assert crossing >= 2
    assert changed, "new shards are taken in where an epoch begins"


def test_a_step_that_was_begun_and_goes_on_in_a_phase_needs_that_phase(corpora: Path) -> None:
    phases = [{"start": 4000, "weights": {"web": 0.9}}]
    config, without = (stream_of(corpora, {"phases": some}) for some in (phases, []))
    batches = take(config, 40)
    number = next(n for n, batch in enumerate(batches) if batch["cursor"]["phase"])
    inside = batches[number - 3]["cursor"]
    assert (inside["phase"], bool(inside["within"][4])) == (0, True)
    assert_same_future(take(config, 10, None, inside), batches[number - 2 : number + 8])
    with (
        build_loader(without) as loader,
        pytest.raises(CursorMismatchError, match=r"inside step .* goes on in the round after.* at the end of a step"),
    ):
        loader.load_state_dict(inside)


@pytest.mark.parametrize(("saved", "changed"), [("renormalise", "repeat"), ("stop", "renormalise"), ("repeat", "stop")])
def test_what_follows_the_end_of_a_source_may_not_change(corpora: Path, saved: str, changed: str) -> None:
    def config(on_exhausted: str) -> StreamConfig:
        code = {"name": "code", "path": f"{corpora}/code", "weight": 0.4, "epochs": 1, "on_exhausted": on_exhausted}
        return stream_of(corpora, {"sources": [{"name": "web", "path": f"{corpora}/web", "weight": 0.6}, code]})

    batches = take(config(saved), 20)
    told = rf"sources\.code\.on_exhausted: the cursor has '{saved}', this stream '{changed}'"
    with pytest.raises(CursorMismatchError, match=told):
        take(config(changed), 1, None, batches[-1]["cursor"])
    assert_same_future([*batches, *take(config(saved), 4, None, batches[-1]["cursor"])], take(config(saved), 24))


SPMV1 = ["SUF", "suffix", "PRE", "prefix", "MID", "middle"]
SENTINELS = {"level": "token", "sentinels": {"prefix": 1, "suffix": 2, "middle": 3}}
CHOICES: dict[str, list[Any]] = {
    "seed": [7, 8],
    "seq_length": [128, 256],
    "shuffle": [{"shards": 2}, False, {"shards": 3}],
    "weight_by": ["tokens", "documents"],
    "packing.policy": ["best_fit", "concat", "none"],
    "packing.overlong": [None, "split", "drop", "truncate"],
    "packing.document_multiple": [1, 4],
    "plan.windows": [4, 8],
    "plan.window_tokens": [1024, 2048],
    "plan.balance": ["off", "cost"],
    "plan.model_width": [4096, 64],
    "plan.even_rows": [None, 2],
    "phases": [
        [],
        [{"start": 4000, "weights": {"web": 0.9}}],
        [{"start": 4000, "packing": {"overlong": "drop"}}],
        [{"start": 4000, "shuffle": False}],
        [{"start": 4000, "plan": {"balance": "cost"}}],
        [{"start": 12000, "weights": {"web": 0.9}}],
    ],
    "batch.global_batch_size": [16, 4, [{"size": 4}, {"size": 8, "steps": 3}]],
    "storage.threads": [None, 0],
    "loader.prefetch": [4, 1],
    "weight": [0.4, 0.7, 0],
    "epochs": [None, 1, 2],
    "on_exhausted": ["renormalise", "stop", "repeat"],
    "source shuffle": [None, False, {"shards": 1}],
    "fim": [
        None,
        *(SENTINELS | {"rate": rate} | more for rate, more in ((0, {}), (0.5, {}), (0.5, {"spm_rate": 0.5}))),
        *(SENTINELS | {"rate": 0.5} | more for more in ({"loss": "middle"}, {"min_length": 60}, {"psm": SPMV1})),
    ],
}
OF_CODE = ("weight", "epochs", "on_exhausted", "source shuffle", "fim")


def chosen(corpora: Path, choices: dict[str, Any]) -> StreamConfig | None:
    """The stream of some choices; None if they do not go together."""
    raw = raw_stream(corpora, {key: value for key, value in choices.items() if key not in OF_CODE})
    raw["sources"][1] |= {key.removeprefix("source "): choices[key] for key in OF_CODE}
    raw["sources"] = [source | {"accept_loss": True} for source in raw["sources"]]
    try:
        with build_loader(config := config_from(raw), RANK):
            return config
    except ConfigError:
        return None


@given(st.data())
def test_a_cursor_is_accepted_only_where_the_config_would_have_given_the_same_past(
    corpora: Path, data: st.DataObject
) -> None:
    first = {key: values[0] for key, values in CHOICES.items()}
    choices = first | data.draw(st.fixed_dictionaries({}, optional={k: st.sampled_from(v) for k, v in CHOICES.items()}))
    keys = data.draw(st.lists(st.sampled_from(sorted(CHOICES)), min_size=1, max_size=2))
    saved = chosen(corpora, choices)
    config = chosen(corpora, choices | {key: data.draw(st.sampled_from(CHOICES[key])) for key in keys})
    assume(saved is not None and config is not None)
    *before, _ = take(saved, data.draw(st.integers(2, 71)), RANK)  # not to the end of a run, which would start anew
    assume(before)
    try:
        after = take(config, 20, RANK, before[-1]["cursor"])
    except CursorMismatchError:
        event("refused")
        return
    event("accepted")
    delivered = sequences_of([*before, *after], config.seq_length)
    own = sequences_of(take(config, 400, RANK), config.seq_length)
    if {number: own.get(number) for number in delivered} != delivered:  # as when the start of a phase was moved since
        expected = sequences_of(take(saved, 400, RANK), config.seq_length)
        assert {number: expected.get(number) for number in delivered} == delivered


def test_an_order_file_may_change_or_vanish_while_a_run_goes_on(corpora: Path, tmp_path: Path) -> None:
    order = tmp_path / "order.txt"
    order.write_text("train-00002.tar.zst\ntrain-00000.tar.zst\ntrain-00001.tar.zst\n")
    config = stream_of(corpora, {"sources": [{"name": "web", "path": f"{corpora}/web", "order": str(order)}]})
    whole = take(config, 60)
    assert whole[-1]["cursor"]["round"] >= 3
    with build_loader(config) as loader:
        batches = list(islice(loader, 20))
        order.unlink()
        batches += islice(loader, 20)
        order.write_text("train-00000.tar.zst\ntrain-00001.tar.zst\ntrain-00002.tar.zst\n")
        batches += islice(loader, 20)
    assert_same_future(batches, whole)
    assert batches[-1]["cursor"] == whole[-1]["cursor"]
    with pytest.raises(CursorMismatchError, match=r"sources\.web\.content"):
        take(config, 1, None, batches[-1]["cursor"])


def test_a_loader_begins_where_its_dataset_stands(corpora: Path) -> None:
    whole = take(stream_of(corpora), 12)
    dataset = StreamDataset(stream_of(corpora), RANK)
    loader = StreamLoader(dataset)
    dataset.load_state_dict(whole[4]["cursor"])
    assert loader.state_dict() == whole[4]["cursor"]
    with loader:
        assert_same_future(list(islice(loader, 7)), whole[5:])


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("where", ["assembling", "tensors", "log"])
def test_an_interrupt_loses_no_batch_and_the_loader_goes_on(corpora: Path, where: str, after: int) -> None:
    """As when someone presses Ctrl-C in a notebook and runs the cell again; the dataset stood somewhere before."""
    module, name = {
        "assembling": (run_ahead, "micro_batches_of"),
        "tensors": (dataset_module, "as_tensors"),
        "log": (StreamLoader, "_log"),
    }[where]
    real, calls = getattr(module, name), 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += threading.current_thread() is threading.main_thread()  # else it strikes anywhere
        if calls == after + 1:
            calls += 1
            signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    config = stream_of(corpora, {"batch.micro_batch_size": 4})
    whole, batches = take(config, 24), []
    dataset = StreamDataset(config, RANK)
    dataset.load_state_dict(whole[4]["cursor"])
    with StreamLoader(dataset) as loader, mock.patch.object(module, name, interrupted):
        with pytest.raises(KeyboardInterrupt):
            for batch in islice(loader, 100):
                batches.append(batch)
        batches += islice(loader, 19 - len(batches))
    assert_same_future(batches, whole[5:])
