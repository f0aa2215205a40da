"""Topology: which rank this is, in each dimension of parallelism."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from streampipe.errors import ConfigError

_DIMENSIONS = ("dp", "tp", "pp", "cp")


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Sizes and ranks of data, tensor, pipeline and context parallelism.

    TP, PP and CP peers share a `dp_rank` and so get identical batches.

    Raises:
        ConfigError: when a rank lies outside its size.
    """

    dp_size: int = 1
    dp_rank: int = 0
    tp_size: int = 1
    tp_rank: int = 0
    pp_size: int = 1
    pp_rank: int = 0
    cp_size: int = 1
    cp_rank: int = 0

    def __post_init__(self) -> None:
        for name in _DIMENSIONS:
            size, rank = getattr(self, f"{name}_size"), getattr(self, f"{name}_rank")
            if size < 1:
                raise ConfigError(f"Topology: {name}_size must be at least 1, but got {size}")
            if not 0 <= rank < size:
                raise ConfigError(
                    f"Topology: {name}_rank must be within 0 and {size - 1} ({name}_size {size}), but got {rank}"
                )

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.dp_size * self.tp_size * self.pp_size * self.cp_size

    @classmethod
    def from_env(
        cls,
        *,
        tp_size: int = 1,
        pp_size: int = 1,
        cp_size: int = 1,
        order: str = "tp-cp-dp-pp",
        env: Mapping[str, str] | None = None,
    ) -> "Topology":
        """Read RANK and WORLD_SIZE, as torchrun sets them; without them this is a single rank.

        Args:
            tp_size: of the launch.
            pp_size: of the launch.
            cp_size: of the launch; `dp_size` is what is left of the world size.
            order: which dimension's rank changes fastest, first; Megatron's order by default. Any order of tp, cp, dp,
                pp.
            env: instead of the process's environment.

        Raises:
            ConfigError: when the sizes do not divide the world size, or the order is not one.
        """
        environment = os.environ if env is None else env
        names = order.split("-")
        if sorted(names) != sorted(_DIMENSIONS):
            raise ConfigError(
                f"Topology: order must name tp, cp, dp and pp once each, like 'tp-cp-dp-pp', but got {order!r}"
            )
        try:
            rank, world_size = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
        except ValueError as error:
            raise ConfigError(
                f"Topology: RANK and WORLD_SIZE must be integers ({error}); start the script with torchrun"
            ) from error
        sizes = {"tp": tp_size, "pp": pp_size, "cp": cp_size}
        model = prod(sizes.values())
        if min(sizes.values()) < 1 or world_size % model:
            raise ConfigError(
                f"Topology: world size {world_size} is not a multiple of tp_size {tp_size} x pp_size {pp_size} x "
                f"cp_size {cp_size} = {model}; "
                f"start a multiple of {model} processes, or change the sizes"
            )
        if not 0 <= rank < world_size:
            raise ConfigError(f"Topology: RANK must be within 0 and {world_size - 1}, but got {rank}")
        sizes["dp"] = world_size // model
        ranks: dict[str, int] = {}
        for name in names:
            rank, ranks[name] = divmod(rank, sizes[name])
        return cls(**{f"{n}_size": sizes[n] for n in _DIMENSIONS}, **{f"{n}_rank": ranks[n] for n in _DIMENSIONS})

    @classmethod
    def from_mesh(cls, mesh: Any) -> "Topology":
        """Read a torch DeviceMesh whose dimensions are named tp, pp, cp, and dp or dp_replicate, dp_shard and the like.

        Several data-parallel dimensions count as one, the first the slowest.

        Raises:
            ConfigError: for dimensions without such names.
        """
        names = mesh.mesh_dim_names
        if not names:
            raise ConfigError(
                "Topology: the device mesh has no dimension names; make it with mesh_dim_names=('dp', 'tp') or the like"
            )
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise ConfigError(
                "Topology: this rank is not part of the device mesh; build the loader on the mesh's own ranks only"
            )
        sizes, ranks = dict.fromkeys(_DIMENSIONS, 1), dict.fromkeys(_DIMENSIONS, 0)
        for dimension, name in enumerate(names):
            own = "dp" if name == "dp" or name.startswith("dp_") else name
            if own not in _DIMENSIONS:
                raise ConfigError(
                    f"Topology: the device mesh has a dimension {name!r}; expected tp, pp, cp, dp, or names that begin "
                    "with dp_"
                )
            sizes[own], ranks[own] = (
                sizes[own] * mesh.size(dimension),
                ranks[own] * mesh.size(dimension) + coordinate[dimension],
            )
        return cls(**{f"{n}_size": sizes[n] for n in _DIMENSIONS}, **{f"{n}_rank": ranks[n] for n in _DIMENSIONS})

    def check_batch(
        self,
        global_batch_size: int,
        micro_batch_size: int,
        batch_by: str = "sequences",
        global_batch_tokens: int | None = None,
    ) -> int | None:
        """Return the micro batches of a rank's step; None where only its plan tells, when it counts documents.

        Args:
            global_batch_size: sequences of a step.
            micro_batch_size: sequences of a batch.
            batch_by: what a step counts.
            global_batch_tokens: from which the size follows, where it does.

        Raises:
            ConfigError: unless `global_batch_size` is divisible by `dp_size x micro_batch_size`.
        """
        if batch_by == "documents":
            return None
        unit = self.dp_size * micro_batch_size
        if global_batch_size % unit:
            key, given, scale = "global_batch_size", f"{global_batch_size} is", 1
            if global_batch_tokens is not None:
                key, scale = "global_batch_tokens", global_batch_tokens // global_batch_size
                given = f"{global_batch_tokens} makes {global_batch_size} sequences, which is"
            lower = global_batch_size // unit * unit
            choice = f"{scale * lower} or {scale * (lower + unit)}" if lower else f"{scale * unit}"
            raise ConfigError(
                f"$.batch.{key}: {given} not divisible by dp_size {self.dp_size} x micro_batch_size {micro_batch_size} "
                f"= {unit}; choose {choice}, or another micro_batch_size"
            )
        return global_batch_size // unit
