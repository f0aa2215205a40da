"""Law 2: the state is a cursor, the same on every rank; from it the very same future comes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from laws import Batch, assert_resumes_anywhere, assert_same_future, documents_of, same_batch, sequences_of, take
from streams import CODE, SEQ_LENGTH, WEB, raw_stream, stream_of, write_source

from streampipe import CursorMismatchError, StreamConfig, Topology, build_loader, config_from
from streampipe.cursor import read_cursor
from streampipe.plan.schedule import Schedule
from streampipe.stream import open_stream
from streampipe.tools.digest import digest_steps

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def digests(config: StreamConfig, steps: int, dp_size: int, cursor: Any = None) -> list[dict[str, Any]]:
    return list(digest_steps(config, steps, dp_size, cursor))


def sha256_of(steps: list[dict[str, Any]]) -> list[str]:
    return [step["sha256"] for step in steps]


# The state itself


def test_the_cursor_is_the_same_bytes_on_every_rank_and_survives_json(corpora: Path) -> None:
    config = stream_of(corpora)
    states = []
    for rank in range(4):
        with build_loader(config, Topology(dp_size=4, dp_rank=rank)) as loader:
            for _ in range(5):
                next(loader)
            states.append(json.dumps(loader.state_dict()))
    assert len(set(states)) == 1
    assert read_cursor(json.loads(states[0])).to_dict() == json.loads(states[0])
    assert read_cursor(states[0]).to_json() == read_cursor(states[0].encode()).to_json()


def test_a_cursor_of_thirty_sources_takes_under_4_kib(tmp_path: Path) -> None:
    """Uneven weights, sizes of real corpora, phases that are over; five sources that have grown."""
    sources = [
        {
            "name": f"corpus-{i:06d}",
            "mock": {"documents": 10**9 + 7**i % 10**8, "mean": 900 + i, "vocab_size": 1000, "max": 2000},
            "weight": round(0.0123457 + i * 0.0013, 7),
            "epochs": 4,
        }
        for i in range(30)
    ]
    raw = {"seq_length": 8192, "sources": sources, "plan": {"windows": 4, "window_tokens": 65536}}
    with build_loader(config_from(raw)) as loader:
        next(loader)
        state = loader.state_dict()
    counts = [10**12, 10**9, 0, 10**7, 10**10]  # documents are cut or left out, not both
    for number, (name, past) in enumerate(sorted(state["sources"].items())):
        eras = [[10**3, 10**13, 10**4, 4]] if number < 5 else []
        state["sources"][name] = [*past[:5], eras, *counts]
    state |= {"segment": [10**6, [10**12] * 30], "positions": 10**13}
    state |= {"round": 10**7, "offset": 10**5, "sequences": 10**9, "step": 10**7}
    assert len(read_cursor(state).to_json()) < 4096


def test_a_state_is_the_cursor_of_its_place(corpora: Path) -> None:
    stream = open_stream(stream_of(corpora))
    schedule, rounds = Schedule(stream.planner, stream.place(stream.start())), set()
    while len(rounds) < 4:
        for place in (schedule.place, schedule.several(stream.size_of_step, 3)[-1].after):
            rounds.add(place.round)
            assert stream.state(place) == stream.cursor(place).to_dict()
            assert [*stream.state(place)] == [*stream.cursor(place).to_dict()]


def test_the_cursor_holds_no_path(corpora: Path) -> None:
    with build_loader(stream_of(corpora)) as loader:
        next(loader)
        assert str(corpora) not in json.dumps(loader.state_dict())
        assert loader.state_dict() == loader.state_dict()


# Resume


@pytest.mark.parametrize(("policy", "micro_batch_size"), [("best_fit", 4), ("concat", 4), ("none", 8)])
def test_resume_after_every_batch_over_two_epoch_ends_gives_the_same_future(
    corpora: Path, policy: str, micro_batch_size: int
) -> None:
    config = stream_of(corpora, {"packing.policy": policy, "batch.micro_batch_size": micro_batch_size})
    whole = take(config, 48)
    epochs = {(piece.source, piece.epoch) for piece in documents_of(whole, SEQ_LENGTH)}
    assert {(0, 1), (1, 2)} <= epochs, "the run must cross the ends of epochs"

    def future(cursor: Any) -> list[Batch]:
        delivered = cursor["step"] * 16 // micro_batch_size + (cursor["within"] or [0])[0]
        return take(config, 48 - delivered, None, cursor)

    assert_resumes_anywhere(future, whole)


def test_resume_after_every_batch_of_a_finite_run_ends_where_the_run_ends(corpora: Path) -> None:
    raw = raw_stream(corpora, {"batch.global_batch_size": 6})
    for source, epochs in zip(raw["sources"], (1, 2), strict=True):
        source["epochs"] = epochs
    config = config_from(raw)
    whole = take(config, None)
    assert len(whole) > 30
    assert_resumes_anywhere(lambda cursor: take(config, None, None, cursor), whole)


def test_a_second_and_a_third_resume_give_the_same_future(corpora: Path) -> None:
    config = stream_of(corpora)
    whole = take(config, 40)
    first = take(config, 7)
    second = take(config, 14, None, first[-1]["cursor"])
    third = take(config, 19, None, second[-1]["cursor"])
    assert_same_future([*first, *second, *third], whole)


def test_four_then_three_then_eight_ranks_give_the_same_steps(corpora: Path) -> None:
    config = stream_of(corpora, {"batch.global_batch_size": 48})
    whole = digests(config, 9, 1)
    first = digests(config, 3, 4)
    second = digests(config, 3, 3, first[-1]["cursor"])
    third = digests(config, 3, 8, second[-1]["cursor"])
    assert [*first, *second, *third] == whole


def test_no_worker_then_two_then_one_give_the_same_steps(corpora: Path) -> None:
    parts: list[dict[str, Any]] = []
    for workers in (0, 2, 1):
        config = stream_of(corpora, {"loader.num_workers": workers})
        parts += digests(config, 3, 2, parts[-1]["cursor"] if parts else None)
    assert parts == digests(stream_of(corpora), 9, 2)


def test_the_global_batch_may_grow_at_a_step_border(corpora: Path) -> None:
    small = take(stream_of(corpora), 16)
    config = stream_of(corpora, {"batch.global_batch_size": 32})
    grown = take(config, 16, None, small[-1]["cursor"])
    unbroken = take(stream_of(corpora), 48)
    assert sequences_of([*small, *grown], SEQ_LENGTH) == {
        number: digest for number, digest in sequences_of(unbroken, SEQ_LENGTH).items() if number < 64
    }


# Inside a step


def test_a_cursor_inside_a_step_goes_on_with_the_same_sizes(corpora: Path) -> None:
    config = stream_of(corpora, {"batch.micro_batch_size": 1})
    topology = Topology(dp_size=2, dp_rank=1)
    whole = take(config, 24, topology)
    inside = [number for number, batch in enumerate(whole) if batch["cursor"]["within"]]
    assert len(inside) == 21
    for number in inside[::3]:
        assert_same_future(take(config, 23 - number, topology, whole[number]["cursor"]), whole[number + 1 :])


@pytest.mark.parametrize(
    ("changes", "dp_size", "field"),
    [
        ({}, 4, "dp_size"),
        ({"batch.micro_batch_size": 4}, 2, "micro_batch_size"),
        ({"batch.global_batch_size": 32}, 2, "global_batch_size"),
    ],
)
def test_a_cursor_inside_a_step_is_refused_with_other_sizes(
    corpora: Path, changes: dict[str, Any], dp_size: int, field: str
) -> None:
    cursor = take(stream_of(corpora), 6, Topology(dp_size=2))[-1]["cursor"]
    with (
        build_loader(stream_of(corpora, changes), Topology(dp_size=dp_size)) as loader,
        pytest.raises(CursorMismatchError, match=f"inside step 1(?s:.)*{field}.*at the end of a step") as caught,
    ):
        loader.load_state_dict(cursor)
    assert caught.value.fields == (field,)


# Another stream


def changed(**values: Any) -> Callable[[dict[str, Any], Path], None]:
    return lambda raw, folder: raw.update(values)


def drop_code(raw: dict[str, Any], folder: Path) -> None:
    raw["sources"].pop()


def add_books(raw: dict[str, Any], folder: Path) -> None:
    write_source(folder / "books", 2, [20] * 30)
    raw["sources"].append({"name": "books", "path": f"{folder}/books", "weight": 0.1})


def reweigh(raw: dict[str, Any], folder: Path) -> None:
    raw["sources"][0]["weight"] = 0.7


def limit_epochs(raw: dict[str, Any], folder: Path) -> None:
    raw["sources"][1]["epochs"] = 3


def shuffle_one(raw: dict[str, Any], folder: Path) -> None:
    raw["sources"][1]["shuffle"] = {"shards": 1}


def change_one_document(raw: dict[str, Any], folder: Path) -> None:
    write_source(folder / "code", 1, [*CODE[:-1], CODE[-1] + 1])


def add_a_shard(raw: dict[str, Any], folder: Path) -> None:
    write_source(folder / "code", 1, CODE, shards=4)


def retokenize(raw: dict[str, Any], folder: Path) -> None:
    write_source(folder / "web", 0, WEB, core_hash="d" * 64)
    write_source(folder / "code", 1, CODE, core_hash="d" * 64)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (changed(seed=8), {"seed"}),
        (changed(seq_length=256), {"seq_length"}),
        (changed(packing={"policy": "concat"}), {"packing"}),
        (changed(packing={"overlong": "drop"}), {"packing"}),
        (changed(packing={"document_multiple": 4}), {"packing"}),
        (changed(plan={"windows": 8, "window_tokens": 512}), {"plan"}),
        (changed(plan={"windows": 4, "window_tokens": 512}), {"plan"}),
        (changed(shuffle={"shards": 3}), {"sources.code.shuffle", "sources.web.shuffle"}),
        (shuffle_one, {"sources.code.shuffle"}),
        (reweigh, {"sources.code.weight", "sources.web.weight"}),
        (limit_epochs, {"sources.code.epochs"}),
        (drop_code, {"sources.code", "sources.web.weight"}),
        (add_books, {"sources.books", "sources.code.weight", "sources.web.weight"}),
        (change_one_document, {"sources.code.content"}),
        (add_a_shard, {"sources.code.content"}),
        (retokenize, {"tokenizer"}),
    ],
    ids=lambda value: getattr(value, "__name__", None) if callable(value) else ",".join(sorted(value)),
)
def test_a_cursor_of_another_stream_is_refused_naming_what_differs(
    corpora: Path, tmp_path: Path, change: Callable[[dict[str, Any], Path], None], fields: set[str]
) -> None:
    cursor = take(stream_of(corpora), 8)[-1]["cursor"]
    shutil.copytree(corpora, tmp_path, dirs_exist_ok=True)
    raw = raw_stream(tmp_path)
    change(raw, tmp_path)
    with build_loader(config_from(raw)) as loader, pytest.raises(CursorMismatchError) as caught:
        loader.load_state_dict(cursor)
    assert set(caught.value.fields) == fields
    for field in fields:
        assert f"{field}: the cursor has " in str(caught.value)
    assert "resume with the config and the data that the run was started with" in str(caught.value)


def test_a_moved_source_is_the_same_source(corpora: Path, tmp_path: Path) -> None:
    whole = take(stream_of(corpora), 16)
    shutil.copytree(corpora, tmp_path / "elsewhere")
    assert_same_future(take(stream_of(tmp_path / "elsewhere"), 8, None, whole[7]["cursor"]), whole[8:])


def test_what_decides_nothing_may_change_at_resume(corpora: Path) -> None:
    whole = take(stream_of(corpora), 16)
    changes = {"storage.threads": 1, "loader.prefetch": 1, "batch.fields": ["tokens"], "batch.token_dtype": "int32"}
    future = take(stream_of(corpora, changes), 8, None, whole[7]["cursor"])
    assert [batch["tokens"].tolist() for batch in future] == [batch["tokens"].tolist() for batch in whole[8:]]


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: json.dumps(state)[:-40],
        lambda state: "",
        lambda state: None,
        lambda state: [state],
        lambda state: {},
        lambda state: {**state, "version": 2},
        lambda state: {**state, "order_version": 0},
        lambda state: {**state, "round": "1"},
        lambda state: {**state, "round": -1},
        lambda state: {**state, "offset": -5},
        lambda state: {**state, "sequences": -1},
        lambda state: {**state, "step": None},
        lambda state: {**state, "within": [9, 1, 2, 16]},
        lambda state: {**state, "within": [-1, 1, 2, 16]},
        lambda state: {**state, "segment": [1, [5]]},
        lambda state: {**state, "stream": {**state["stream"], "round_tokens": "x"}},
        lambda state: {**state, "stream": {**state["stream"], "round_tokens": "1/0"}},
        lambda state: {**state, "stream": {**state["stream"], "exhausted": "?"}},
        lambda state: {**state, "surprise": 1},
        lambda state: {**state, "sources": {name: past[:1] for name, past in state["sources"].items()}},
        lambda state: {name: value for name, value in state.items() if name != "stream"},
    ],
)
def test_a_damaged_cursor_is_refused_and_the_loader_goes_on_where_it_was(
    corpora: Path, damage: Callable[[dict[str, Any]], Any]
) -> None:
    config = stream_of(corpora)
    whole = take(config, 12)
    with build_loader(config) as loader:
        for _ in range(10):
            next(loader)
        with pytest.raises(CursorMismatchError, match=r"cursor.*; "):
            loader.load_state_dict(damage(whole[7]["cursor"]))
        assert same_batch(next(loader), whole[10])


def test_a_cursor_behind_the_end_of_its_round_is_refused_not_skipped(corpora: Path) -> None:
    cursor = take(stream_of(corpora), 8)[-1]["cursor"]
    with build_loader(stream_of(corpora)) as loader, pytest.raises(CursorMismatchError, match="that round has"):
        loader.load_state_dict({**cursor, "offset": 10**6})
        next(loader)


# Delivered, not prefetched


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_prefetched_does_not_count(corpora: Path, workers: int) -> None:
    config = stream_of(corpora, {"loader.num_workers": workers, "loader.prefetch": 16})
    whole = take(config, 20)
    with build_loader(config) as loader:
        for expected in whole[:7]:
            assert next(loader)["cursor"] == expected["cursor"] == loader.state_dict()
        state = loader.state_dict()
    assert_same_future(take(config, 13, None, state), whole[7:])


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_after_iter_is_honoured(corpora: Path, workers: int) -> None:
    config = stream_of(corpora, {"loader.num_workers": workers})
    whole = take(config, 12)
    with build_loader(config) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.load_state_dict(whole[6]["cursor"])
        assert loader.state_dict() == whole[6]["cursor"]
        assert_same_future([next(iterator) for _ in range(5)], whole[7:])


def test_a_state_taken_before_the_first_batch_is_the_start(corpora: Path) -> None:
    config = stream_of(corpora)
    with build_loader(config) as loader:
        state = loader.state_dict()
    assert_same_future(take(config, 5, None, state), take(config, 5))


# The end of a finite run


def finite(folder: Path, **changes: Any) -> StreamConfig:
    raw = raw_stream(folder, changes)
    for source in raw["sources"]:
        source["epochs"] = 1
    return config_from(raw)


@pytest.mark.parametrize("workers", [0, 2])
def test_saved_at_the_end_of_a_finite_run_the_next_iter_starts_anew(corpora: Path, workers: int) -> None:
    config = finite(corpora, **{"loader.num_workers": workers})
    whole = take(config, None)
    for state in (whole[-1]["cursor"],):
        with build_loader(config) as loader:
            loader.load_state_dict(state)
            assert_same_future(list(loader), whole, "loaded the state of the end")
            assert_same_future(list(loader), whole, "the epoch after it")


def test_a_resumed_epoch_does_not_shorten_the_ones_after_it(corpora: Path) -> None:
    config = finite(corpora)
    whole = take(config, None)
    with build_loader(config) as loader:
        loader.load_state_dict(whole[-4]["cursor"])
        assert_same_future(list(loader), whole[-3:])
        assert next(loader, None) is None, "without a new iter the end stays the end"
        assert_same_future(list(loader), whole)
        assert_same_future(list(loader), whole)


def test_the_state_at_the_end_is_an_end_also_when_rounds_without_documents_follow(tmp_path: Path) -> None:
    """One document longer than several rounds: its later rounds hold nothing."""
    write_source(tmp_path / "web", 0, [4000])
    raw = raw_stream(tmp_path, {"seq_length": 125, "plan": {"windows": 1, "window_tokens": 500}})
    raw["batch"] = {"global_batch_size": 4, "micro_batch_size": 4}
    raw["sources"] = [{"name": "web", "path": f"{tmp_path}/web", "epochs": 1}]
    config = config_from(raw)
    whole = take(config, None)
    assert len(whole) == 8
    assert_same_future(take(config, None, None, whole[-1]["cursor"]), whole)


def test_stopping_and_going_on_within_one_process_loses_nothing(corpora: Path) -> None:
    config = stream_of(corpora)
    whole = take(config, 20)
    got: list[Batch] = []
    with build_loader(config) as loader:
        while len(got) < 20:
            for batch in loader:
                got.append(batch)
                if len(got) % 3 == 0:
                    break
            if len(got) % 2:
                loader.close()
    assert_same_future(got[:20], whole)
