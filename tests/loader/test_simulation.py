"""A run simulated is the run that comes: to the token; and skipping is walking without reading."""

import json
import logging
from dataclasses import replace

import pytest
from streams import stream_of

from streampipe import ConfigError, CursorMismatchError, Topology, build_loader, skip_steps
from streampipe.cli import main
from streampipe.cursor import read_cursor
from streampipe.forecast import check_memory, forecast
from streampipe.stream import open_stream
from streampipe.tools.digest import digest_steps
from streampipe.tools.simulate import simulate

PHASES = [{"start": 6000, "weights": {"web": 0.2, "code": 0.8}}, {"start": "16K", "seq_length": 256}]
RAMP = [{"size": 8}, {"size": 16, "tokens": 9000}]
BALANCED = [
    {"start": 4000, "plan": {"balance": "cost", "even_rows": 2}},
    {"start": 12_000, "seq_length": 256},
    {"start": 22_000, "plan": {"balance": "off", "even_rows": None}},
]
DOCUMENTS = {
    "batch.batch_by": "documents",
    "batch.global_batch_size": [{"size": 9}, {"size": 23, "steps": 6}],
    "batch.sequence_multiple": 3,
    "packing.overlong": "truncate",
}


def config_file(corpora, tmp_path, changes=None):
    path = tmp_path / "stream.json"
    import msgspec  # noqa: PLC0415

    path.write_text(json.dumps(msgspec.to_builtins(stream_of(corpora, changes))))
    return str(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"phases": PHASES, "batch.global_batch_size": RAMP, "packing.overlong": "split"},
        {"phases": PHASES, "batch.global_batch_size": RAMP, "packing.overlong": "truncate"},
        {"phases": PHASES, "batch.global_batch_size": RAMP, "packing.overlong": "drop"},
        {"phases": BALANCED},
    ],
    ids=["split", "truncate", "drop", "balanced"],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_totals_equal_what_a_real_run_of_the_same_steps_delivers(corpora, changes, processes):
    config = stream_of(corpora, changes)
    planned = simulate(config, steps=25, dp_size=2, processes=processes).to_dict()
    with build_loader(config, Topology(dp_size=2)) as loader:
        for batch in loader:
            if batch["step"] == 24 and batch["micro_batch"] + 1 == batch["num_micro_batches"]:
                break
        real = loader.metrics()
    assert planned["tokens"] == real["tokens"]
    assert planned["padding"] == pytest.approx(real["padding"])
    assert planned["sequences"] == real["sequences"]
    for source in planned["sources"]:
        for name, value in real["sources"][source["name"]].items():
            assert source[name] == pytest.approx(value), name


@pytest.mark.parametrize("dp_size", [1, 3])
def test_totals_of_steps_of_documents_equal_those_of_a_real_run(corpora, dp_size):
    config = stream_of(corpora, DOCUMENTS | {"phases": PHASES[1:]})
    planned = simulate(config, steps=20, dp_size=dp_size, processes=1).to_dict()
    sequences = empty = positions = 0
    for rank in range(dp_size):
        with build_loader(config, Topology(dp_size=dp_size, dp_rank=rank)) as loader:
            for batch in loader:
                ids = batch["sequence_ids"]
                sequences, empty = sequences + len(ids), empty + int((ids < 0).sum())
                positions += batch["tokens"].numel()
                if batch["step"] == 19 and batch["micro_batch"] + 1 == batch["num_micro_batches"]:
                    break
            real = loader.metrics()
    assert (planned["sequences"], planned["empty_sequences"]) == (sequences, empty)
    assert planned["tokens"] == real["tokens"]
    assert planned["padding"] == pytest.approx(1 - real["tokens"] / positions)
    assert planned["imbalance"]["mean"] >= 1
    for source in planned["sources"]:
        for name, value in real["sources"][source["name"]].items():
            assert source[name] == pytest.approx(value), name


def test_a_finite_run_is_simulated_to_its_end(corpora):
    changes = {"sources": [{"name": "web", "path": f"{corpora}/web", "epochs": 2}]}
    planned = simulate(stream_of(corpora, changes), processes=2).to_dict()
    assert planned["ended"]
    assert planned["sources"][0]["epochs"] == pytest.approx(2)
    assert planned["sources"][0]["documents"] == 2 * 150


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, 7),
        ({"phases": PHASES, "batch.global_batch_size": RAMP}, 23),
        ({"phases": BALANCED}, 14),
        (DOCUMENTS, 20),
    ],
)
def test_skipping_gives_the_digests_of_walking_there(corpora, changes, steps):
    config = stream_of(corpora, changes)
    walked = list(digest_steps(config, steps + 3, 1))
    moved = skip_steps(config, read_cursor(walked[1]["cursor"]), steps - 2, processes=1)
    assert moved.skipped == [[2, steps - 2]]
    assert {**moved.to_dict(), "skipped": []} == walked[steps - 1]["cursor"]
    after = list(digest_steps(config, 3, 2, moved.to_dict()))
    assert [step["sha256"] for step in after] == [step["sha256"] for step in walked[steps:]]
    assert after[-1]["cursor"]["skipped"] == [[2, steps - 2]], "it stays on record"


@pytest.mark.parametrize("phases", [[], BALANCED])
def test_skipping_over_all_cores_is_the_same(corpora, phases):
    config = stream_of(corpora, {"phases": phases})
    start = open_stream(config).start()
    assert skip_steps(config, start, 30, processes=2) == skip_steps(config, start, 30, processes=1)


def test_skips_that_cannot_be_are_refused(corpora):
    config = stream_of(corpora, {"sources": [{"name": "web", "path": f"{corpora}/web", "epochs": 1}]})
    start = open_stream(config).start()
    with pytest.raises(ConfigError, match="at least 1"):
        skip_steps(config, start, 0)
    with pytest.raises(ConfigError, match="the run ends after"):
        skip_steps(config, start, 10_000, processes=1)
    with build_loader(config) as loader:
        next(loader)
        inside = read_cursor(loader.state_dict())
    with pytest.raises(CursorMismatchError, match="stands inside step 0"):
        skip_steps(config, inside, 1)


def test_the_command_line_plans_skips_and_exports(corpora, tmp_path, capsys):
    config = config_file(corpora, tmp_path)
    page, orders, saved = tmp_path / "plan.html", tmp_path / "orders", tmp_path / "cursor.json"
    assert (
        main(["plan", "--config", config, "--steps", "9", "--json", "--html", str(page), "--export-order", str(orders)])
        == 0
    )
    planned = json.loads(capsys.readouterr().out)
    assert {"sources", "padding", "imbalance", "read_amplification", "bytes", "requests"} <= planned.keys()
    assert {"name", "tokens", "documents", "epochs"} <= planned["sources"][0].keys()
    assert {"mean", "max"} <= planned["imbalance"].keys()
    assert planned["steps"] == 9
    assert "<svg" in page.read_text()
    assert "http" not in page.read_text()
    assert sorted((orders / "web.txt").read_text().split()) == [f"train-0000{n}.tar.zst" for n in range(3)]
    assert main(["skip", "--config", config, "--steps", "4", "--save-cursor", str(saved)]) == 0
    assert read_cursor(saved.read_bytes()).step == 4
    assert main(["digest", "--config", config, "--steps", "1", "--cursor", str(saved)]) == 0


def test_capacity_can_be_planned_for_many_ranks_without_data(capsys):
    mock = ["plan", "--mock", "--documents", "1e9", "--steps", "4", "--dp-size", "256", "--json"]
    assert main([*mock, "--set", "batch.global_batch_size=512"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["sequences"] == 2048
    assert planned["imbalance"]["max"] >= planned["imbalance"]["mean"] >= 1


def test_memory_counts_what_each_worker_process_holds_and_names_the_cures(corpora):
    alone, shared = (
        forecast(stream := open_stream(stream_of(corpora, {"loader.num_workers": workers})), Topology(), stream.start())
        for workers in (0, 8)
    )
    assert shared.resident_bytes == 8 * alone.resident_bytes
    with pytest.raises(ConfigError, match=r"\$\.plan: a round would hold .*plan\.windows.*lower loader\.num_workers"):
        check_memory(replace(shared, resident_bytes=2**60))


def test_tokens_of_a_step_that_do_not_fit_the_ranks_are_told_by_their_own_key(corpora):
    config = stream_of(corpora, {"batch": {"global_batch_tokens": 6 * 128}})
    with pytest.raises(ConfigError, match=r"\$\.batch\.global_batch_tokens: 768 makes 6 sequences"):
        simulate(config, dp_size=4)


def test_a_source_that_loses_most_of_its_weight_is_refused_until_accepted(corpora, caplog):
    sources = [{"name": "web", "path": f"{corpora}/web"}]
    changes = {"sources": sources, "seq_length": 16, "packing.overlong": "truncate"}
    with pytest.raises(ConfigError, match=r"\$\.sources\[0\]: 'web' would deliver .* accept_loss: true"):
        next(build_loader(stream_of(corpora, changes)))
    sources[0]["accept_loss"] = True
    with caplog.at_level(logging.WARNING), build_loader(stream_of(corpora, changes)) as loader:
        next(loader)
    assert "loses" in caplog.text
