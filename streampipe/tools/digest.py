"""One SHA-256 a step over the global batch, from what the loaders of all ranks deliver.

How a user proves the promise on their own data.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from streampipe.config import StreamConfig
from streampipe.errors import StreampipeError
from streampipe.loader import StreamLoader, build_loader
from streampipe.parallel import Topology


def row_digests(batch: Mapping[str, Any], seq_length: int) -> dict[int, bytes]:
    """Digest each sequence of a micro batch: tokens, labels, loss mask, positions and piece boundaries.

    Args:
        batch: THD or SBHD, as the loader delivers it.
        seq_length: positions of a sequence.

    Returns:
        SHA-256 by canonical sequence number. Fields that the config leaves out are not part of it, nor are the empty
        sequences that complete a step of documents.
    """
    rows = batch["sequence_ids"].tolist()
    fields = [name for name in ("tokens", "labels", "loss_mask", "position_ids") if name in batch]
    arrays = [np.asarray(batch[name]).reshape(len(rows), seq_length) for name in fields]
    arrays = [a.astype("<f4" if a.dtype.kind == "f" else "<i8") for a in arrays]
    digests: dict[int, bytes] = {}
    for row, sequence in enumerate(rows):
        if sequence < 0:
            continue
        digest = hashlib.sha256()
        for name, array in zip(fields, arrays, strict=True):
            digest.update(name.encode())
            digest.update(array[row].tobytes())
        digest.update(_boundaries(batch, row, seq_length).astype("<i8").tobytes())
        digests[sequence] = digest.digest()
    return digests


def _boundaries(batch: Mapping[str, Any], row: int, seq_length: int) -> "np.ndarray[Any, Any]":
    """Return where the pieces of a row begin and how many tokens they hold, relative to the row."""
    if "lengths" in batch:
        return np.asarray(batch["lengths"])[row : row + 1]
    padded, real = np.asarray(batch["cu_seqlens_padded"]), np.asarray(batch["cu_seqlens"])
    first, last = np.searchsorted(padded, (row * seq_length, (row + 1) * seq_length))
    return np.concatenate([padded[first : last + 1] - row * seq_length, np.diff(real[first : last + 1])])


def step_digest(rows: Mapping[int, bytes]) -> str:
    """Digest a step from the digests of its sequences, in canonical order: hexadecimal SHA-256."""
    return hashlib.sha256(b"".join(rows[sequence] for sequence in sorted(rows))).hexdigest()


def digest_steps(
    config: StreamConfig, steps: int, dp_size: int, cursor: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Deliver steps through the loaders of `dp_size` ranks in this process and digest each.

    Args:
        config: the stream.
        steps: how many; fewer if a finite run ends.
        dp_size: how many data-parallel ranks to build.
        cursor: where to begin.

    Yields:
        `step`, `sha256`, `sequences`, and `cursor`, the state after the step.

    Raises:
        StreampipeError: when ranks disagree about the end, the state, or who got which sequence.
    """
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(build_loader(config, Topology(dp_size=dp_size, dp_rank=rank)))
            for rank in range(dp_size)
        ]
        for loader in loaders:
            if cursor is not None:
                loader.load_state_dict(cursor)
        for _ in range(steps):
            delivered = [_step_of_rank(loader) for loader in loaders]
            if all(one is None for one in delivered):
                return
            yield _joined(delivered, in_a_row=config.batch.batch_by == "sequences")


def digest_launched(config: StreamConfig, steps: int, cursor: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """As `digest_steps`, but each process of a torchrun launch is one rank; only rank 0 yields.

    Raises:
        StreampipeError: as `digest_steps`.
    """
    distributed = torch.distributed
    distributed.init_process_group("gloo")
    try:
        topology = Topology.from_env()
        with build_loader(config, topology) as loader:
            if cursor is not None:
                loader.load_state_dict(cursor)
            for _ in range(steps):
                delivered: list[Any] = [None] * topology.dp_size
                mine = _step_of_rank(loader)
                distributed.gather_object(mine, delivered if topology.dp_rank == 0 else None)
                if mine is None:
                    return
                if topology.dp_rank == 0:
                    yield _joined(delivered, in_a_row=config.batch.batch_by == "sequences")
    finally:
        distributed.destroy_process_group()


def _step_of_rank(loader: StreamLoader) -> tuple[int, dict[int, bytes], dict[str, Any]] | None:
    rows: dict[int, bytes] = {}
    while True:
        batch = next(loader, None)
        if batch is None:
            if rows:
                raise StreampipeError(
                    f"rank {loader.topology.dp_rank} ended in the middle of a step, after {len(rows)} sequences; "
                    "report this as a bug"
                )
            return None
        arrays = {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        rows |= row_digests(arrays, arrays["tokens"].size // len(arrays["sequence_ids"]))
        if batch["micro_batch"] + 1 == batch["num_micro_batches"]:
            return batch["step"], rows, batch["cursor"]


def _joined(delivered: list[tuple[int, dict[int, bytes], dict[str, Any]] | None], *, in_a_row: bool) -> dict[str, Any]:
    """Join what the ranks got; numbers are `in_a_row` unless they are those of first documents."""
    rows: dict[int, bytes] = {}
    steps, cursors = set(), []
    for rank, one in enumerate(delivered):
        if one is None:
            raise StreampipeError(f"rank {rank} has ended but others have not; report this as a bug")
        steps.add(one[0])
        rows |= one[1]
        cursors.append(one[2])
    if len(steps) > 1 or any(cursor != cursors[0] for cursor in cursors):
        raise StreampipeError(f"the ranks are not at the same place: steps {sorted(steps)}; report this as a bug")
    due = sum(len(one[1]) for one in delivered if one is not None)
    if len(rows) != due or (in_a_row and max(rows) - min(rows) + 1 != due):
        raise StreampipeError(
            f"step {min(steps)}: {due} {'sequences in a row' if in_a_row else 'sequences'} were due, but {len(rows)} "
            f"came, numbers {min(rows)} to {max(rows)}; report this as a bug"
        )
    return {"step": steps.pop(), "sha256": step_digest(rows), "sequences": len(rows), "cursor": cursors[0]}
