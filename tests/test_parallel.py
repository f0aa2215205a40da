"""Which rank this is: as Megatron numbers ranks, as a DeviceMesh does, and what is refused."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampipe import ConfigError, Topology

ROOT = Path(__file__).parents[1]
ORDERS = ["-".join(names) for names in itertools.permutations(("tp", "cp", "dp", "pp"))]
sizes_of_dimensions = st.fixed_dictionaries({name: st.integers(1, 4) for name in ("tp", "cp", "dp", "pp")})


def from_env(rank: Any, world_size: Any, **sizes: Any) -> Topology:
    return Topology.from_env(env={"RANK": str(rank), "WORLD_SIZE": str(world_size)}, **sizes)


def groups_of(order: str, sizes: dict[str, int], group: str) -> set[frozenset[int]]:
    """Megatron's RankGenerator: ranks that differ in `group` alone, the first name of the order changing fastest.

    Walks the grid with nested loops, slowest outside, and numbers what it meets.
    """
    names = order.split("-")
    found: dict[tuple[int, ...], set[int]] = {}
    grid = itertools.product(*(range(sizes[name]) for name in reversed(names)))
    for rank, place in enumerate(grid):
        others = tuple(at for name, at in zip(reversed(names), place, strict=True) if name != group)
        found.setdefault(others, set()).add(rank)
    return {frozenset(ranks) for ranks in found.values()}


@given(order=st.sampled_from(ORDERS), sizes=sizes_of_dimensions)
def test_any_order_string_gives_megatrons_groups(order: str, sizes: dict[str, int]) -> None:
    world_size = sizes["tp"] * sizes["cp"] * sizes["dp"] * sizes["pp"]
    given_sizes = {f"{name}_size": sizes[name] for name in ("tp", "cp", "pp")}
    topologies = [from_env(rank, world_size, order=order, **given_sizes) for rank in range(world_size)]
    assert {topology.world_size for topology in topologies} == {world_size}
    assert len({tuple(asdict(topology).values()) for topology in topologies}) == world_size
    for group in sizes:
        of_group: dict[tuple[int, ...], set[int]] = {}
        for rank, topology in enumerate(topologies):
            place = asdict(topology)
            key = tuple(place[f"{name}_rank"] for name in sizes if name != group)
            of_group.setdefault(key, set()).add(rank)
        assert {frozenset(ranks) for ranks in of_group.values()} == groups_of(order, sizes, group)


def test_the_default_order_is_the_example_of_megatrons_documentation() -> None:
    """Sixteen ranks, tp 2, pp 4: its data-parallel groups are [0, 2], [1, 3], [4, 6], ..."""
    topologies = [from_env(rank, 16, tp_size=2, pp_size=4) for rank in range(16)]
    groups: dict[tuple[int, int], list[int]] = {}
    for rank, topology in enumerate(topologies):
        groups.setdefault((topology.tp_rank, topology.pp_rank), []).append(rank)
    assert sorted(groups.values()) == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert [topology.pp_rank for topology in topologies] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_without_torchrun_it_is_a_single_rank() -> None:
    assert Topology.from_env(env={}) == Topology()


def test_six_ranks_on_a_machine_for_eight_are_no_problem() -> None:
    assert [from_env(rank, 6, tp_size=2).dp_rank for rank in range(6)] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: from_env(0, 8, tp_size=3), r"world size 8 is not a multiple of tp_size 3 .* start a multiple of 3"),
        (lambda: from_env(0, 2, tp_size=2, pp_size=2), r"world size 2 is not a multiple"),
        (lambda: from_env(0, 8, tp_size=0), r"tp_size 0"),
        (lambda: from_env(8, 8), r"RANK must be within 0 and 7, but got 8"),
        (lambda: from_env(-1, 8), r"RANK must be within 0 and 7, but got -1"),
        (lambda: from_env("zero", 8), r"RANK and WORLD_SIZE must be integers .* torchrun"),
        (lambda: from_env(0, 8, order="tp-dp"), r"order must name tp, cp, dp and pp once each, .* but got 'tp-dp'"),
        (lambda: from_env(0, 8, order="tp-tp-dp-pp"), r"order must name"),
        (lambda: from_env(0, 8, order="tp-cp-ep-dp-pp"), r"order must name"),
        (lambda: Topology(dp_size=0), r"dp_size must be at least 1, but got 0"),
        (lambda: Topology(dp_size=2, dp_rank=2), r"dp_rank must be within 0 and 1 \(dp_size 2\), but got 2"),
        (lambda: Topology(tp_rank=1), r"tp_rank must be within 0 and 0"),
        (lambda: Topology(pp_size=2, pp_rank=-1), r"pp_rank must be within 0 and 1"),
        (lambda: Topology(dp_size=4).check_batch(6, 1), r"6 is not divisible by dp_size 4 .* choose 4 or 8"),
        (lambda: Topology(dp_size=4).check_batch(2, 1), r"2 is not divisible by dp_size 4 .* choose 4, or another"),
        (
            lambda: Topology(dp_size=2).check_batch(8, 3),
            r"8 is not divisible .*_size 3 = 6; choose 6 or 12",
        ),
        (
            lambda: Topology(dp_size=4).check_batch(6, 1, global_batch_tokens=6 * 128),
            r"\$\.batch\.global_batch_tokens: 768 makes 6 sequences, which is not divisible .*; choose 512 or 1024, or",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_cure(make: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make()


@given(dp_size=st.integers(1, 9), micro=st.integers(1, 9), global_batch=st.integers(1, 200))
def test_a_batch_fits_when_it_is_a_multiple_and_so_does_the_advice(dp_size: int, micro: int, global_batch: int) -> None:
    topology = Topology(dp_size=dp_size)
    if global_batch % (dp_size * micro) == 0:
        assert topology.check_batch(global_batch, micro) * dp_size * micro == global_batch
        return
    with pytest.raises(ConfigError) as caught:
        topology.check_batch(global_batch, micro)
    advice = str(caught.value).partition("choose ")[2].partition(",")[0].split(" or ")
    for choice in advice:
        topology.check_batch(int(choice), micro)


# A real DeviceMesh

MESH = """
import json, torch
from dataclasses import asdict
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from streampipe import ConfigError, Topology

dist.init_process_group("gloo")
def read(mesh):
    try:
        return asdict(Topology.from_mesh(mesh))
    except ConfigError as error:
        return str(error)
answer = {
    "as from_env": read(init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))),
    "env": asdict(Topology.from_env(tp_size=2, pp_size=2)),
    "hsdp": read(init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "cp"))),
    "no names": read(init_device_mesh("cpu", (8,))),
    "odd name": read(init_device_mesh("cpu", (8,), mesh_dim_names=("data",))),
    "part": read(DeviceMesh("cpu", [0, 1, 2, 3], mesh_dim_names=("dp",))),
}
answers = [None] * 8
dist.all_gather_object(answers, answer)
if dist.get_rank() == 0:
    print("ANSWER" + json.dumps(answers))
dist.destroy_process_group()
"""


def test_a_device_mesh_of_eight_processes_is_read_as_it_stands(tmp_path: Path) -> None:
    script = tmp_path / "mesh.py"
    script.write_text(MESH)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "8", str(script)]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("ANSWER"))
    answers = json.loads(line.removeprefix("ANSWER"))
    for rank, answer in enumerate(answers):
        assert answer["as from_env"] == answer["env"]
        hsdp = answer["hsdp"]
        assert (hsdp["dp_size"], hsdp["dp_rank"], hsdp["cp_size"], hsdp["cp_rank"]) == (4, rank // 2, 2, rank % 2)
        assert "mesh_dim_names=('dp', 'tp')" in answer["no names"]
        assert "a dimension 'data'; expected tp, pp, cp, dp, or names that begin with dp_" in answer["odd name"]
        if rank < 4:
            assert (answer["part"]["dp_size"], answer["part"]["dp_rank"]) == (4, rank)
        else:
            assert "this rank is not part of the device mesh" in answer["part"]
