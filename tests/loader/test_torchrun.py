"""Real processes under torchrun: the digests of one process, peers that agree, ranks that differ named at the start."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from streams import stream_of, write_stream

from streampipe.tools.digest import digest_steps

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


def torchrun(ranks: int, *words: str, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
    paths = os.pathsep.join([str(ROOT), str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONHASHSEED", None)  # every rank draws its own
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *words]
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=timeout)


def test_four_processes_give_the_digests_of_one(corpora: Path, tmp_path: Path) -> None:
    config, saved = write_stream(tmp_path / "stream.yaml", corpora), tmp_path / "cursor.json"
    words = ("-m", "streampipe", "digest", "--config", str(config), "--steps", "8", "--json")
    done = torchrun(4, *words, "--save-cursor", str(saved))
    assert done.returncode == 0, done.stderr
    expected = list(digest_steps(stream_of(corpora), 8, 1))
    assert json.loads(done.stdout) == {"steps": [{"step": s["step"], "sha256": s["sha256"]} for s in expected]}
    assert json.loads(saved.read_text()) == expected[-1]["cursor"]


SCRIPT = """
import datetime, hashlib, json, sys
import torch.distributed as dist
from streampipe import StreampipeError, Topology, build_loader, load_config
from laws import plain

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=40))
rank = dist.get_rank()
told = []
for case in json.loads(sys.argv[2]):
    overrides = case["of_rank"].get(str(rank), {})
    state = overrides.pop("state", None)
    topology = Topology.from_env(**case["sizes"])
    answer = {"rank": rank, "dp_rank": topology.dp_rank, "batches": [], "error": None}
    try:
        with build_loader(load_config(sys.argv[1], overrides), topology) as loader:
            if state:
                loader.load_state_dict(state)
            while len(answer["batches"]) < case["batches"] and (batch := next(loader, None)):
                digest = hashlib.sha256(json.dumps(loader.state_dict()).encode())
                for name, value in sorted(plain(batch).items()):
                    digest.update(name.encode())
                    digest.update(value.tobytes() if hasattr(value, "tobytes") else repr(value).encode())
                answer["batches"].append([digest.hexdigest(), batch["sequence_ids"].tolist()])
                dist.barrier()  # what a training step does; it would hang if a rank had ended before another
    except StreampipeError as error:
        answer["error"] = str(error)
    answers = [None] * dist.get_world_size()
    dist.all_gather_object(answers, answer)
    told.append(answers)
if rank == 0:
    print("ANSWER" + json.dumps(told))
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Case:
    """One run of a loader on every rank: sizes for `from_env`, overrides (and a state) of single ranks, how long."""

    batches: int
    sizes: dict[str, int] = field(default_factory=dict)
    of_rank: dict[str, dict[str, Any]] = field(default_factory=dict)


def ask(ranks: int, config: Path, *cases: Case) -> list[list[dict[str, Any]]]:
    """Return what each rank told of each case, all of them in one launch."""
    script = config.with_suffix(".py")
    script.write_text(SCRIPT)
    done = torchrun(ranks, str(script), str(config), json.dumps([asdict(case) for case in cases]))
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("ANSWER"))
    answers: list[list[dict[str, Any]]] = json.loads(line.removeprefix("ANSWER"))
    return answers


def test_eight_processes_in_two_by_two_by_two_agree_within_and_differ_between(corpora: Path, tmp_path: Path) -> None:
    config = write_stream(tmp_path / "stream.yaml", corpora, {"batch.micro_batch_size": 1})
    (answers,) = ask(8, config, Case(16, sizes={"tp_size": 2, "pp_size": 2}))
    assert [answer["dp_rank"] for answer in answers] == [0, 0, 1, 1, 0, 0, 1, 1]
    of_dp_rank = {answer["dp_rank"]: answer["batches"] for answer in answers}
    assert all(answer["batches"] == of_dp_rank[answer["dp_rank"]] for answer in answers)
    rows = [row for batches in of_dp_rank.values() for _, ids in batches for row in ids]
    assert sorted(rows) == list(range(32))


def test_three_processes_end_a_finite_run_at_the_same_batch(corpora: Path, tmp_path: Path) -> None:
    changes = {"batch.global_batch_size": 6, "batch.micro_batch_size": 1}
    config = write_stream(tmp_path / "stream.yaml", corpora, changes)
    finite = {"sources[0].epochs": 1, "sources[1].epochs": 2}
    (answers,) = ask(3, config, Case(1000, of_rank={str(rank): finite for rank in range(3)}))
    assert [answer["error"] for answer in answers] == [None] * 3
    assert len({len(answer["batches"]) for answer in answers}) == 1
    rows = [row for answer in answers for _, ids in answer["batches"] for row in ids]
    assert sorted(rows) == list(range(len(rows)))


def test_a_rank_that_differs_is_named_on_every_rank_before_the_first_batch(corpora: Path, tmp_path: Path) -> None:
    config = write_stream(tmp_path / "stream.yaml", corpora)
    (first,) = digest_steps(stream_of(corpora), 1, 1)
    told = {
        "fingerprint": {"seed": 8},
        "batch": {"batch.global_batch_size": 32},
        "cursor": {"state": first["cursor"]},  # only one rank has loaded its state
    }
    cases = [Case(2, of_rank={"2": overrides}) for overrides in told.values()]
    for what, answers in zip(told, ask(4, config, *cases), strict=True):
        for answer in answers:
            assert answer["batches"] == []
            assert f"the {what} of rank 2 differs from rank 0's" in answer["error"]
            assert "differing ranks: [2]" in answer["error"]
            assert "all ranks must have the same config" in answer["error"]
