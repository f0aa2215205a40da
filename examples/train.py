"""Train a small GPT on a stream of packed documents: one file to start from.

    torchrun --standalone --nproc-per-node 2 examples/train.py --config configs/demo.yaml --out demo-run/a --steps 40

Stop it at any moment, kill it if you like: the same line again, on any number of ranks that divides the global batch,
goes on from the last checkpoint with the very batches that were due. It runs on CPU with gloo; for GPUs replace the
attention by a varlen kernel that takes the same `cu_seqlens`, and move the batch to the device.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (what everyone calls it)

from streampipe import Topology, build_loader, load_config
from streampipe.shards import read_manifest
from streampipe.storage import open_store
from streampipe.tools.digest import row_digests, step_digest


def document_mask(cu_seqlens: Tensor, seq_length: int) -> Tensor:
    """Return who may look at whom: bool [rows, 1, seq_length, seq_length], True inside one piece and backwards only.

    `cu_seqlens` are the memory offsets of the pieces (`cu_seqlens_padded` of a THD batch); no piece crosses a row.
    """
    piece = torch.repeat_interleave(torch.arange(len(cu_seqlens) - 1), cu_seqlens.diff()).view(-1, seq_length)
    return (piece[:, None, :, None] == piece[:, None, None, :]) & torch.ones(seq_length, seq_length).tril().bool()


class Attention(nn.Module):
    """Causal attention that never looks past a document's start."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map [rows, seq_length, width] to the same shape under `document_mask`."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map [rows, seq_length, width] to the same shape."""
        x = x + self.attention(self.norms[0](x), mask)
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """A small decoder over packed rows; positions restart at every piece."""

    def __init__(self, vocab_size: int, seq_length: int, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.seq_length = seq_length
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(seq_length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Return the summed loss over the trained tokens of a THD micro batch (0 when it has none)."""
        mask = document_mask(batch["cu_seqlens_padded"], self.seq_length)
        x = self.tokens(batch["tokens"]) + self.positions(batch["position_ids"])
        x = x.view(-1, self.seq_length, x.shape[-1])
        for block in self.blocks:
            x = block(x, mask)
        logits = self.norm(x).flatten(0, 1) @ self.tokens.weight.T
        return (
            F.cross_entropy(logits, batch["labels"], ignore_index=-100, reduction="none") * batch["loss_mask"]
        ).sum()


def sum_over_ranks(model: nn.Module, loss: Tensor) -> float:
    """Add gradients and loss over all ranks, in one collective; return the loss of the step."""
    parts = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    flat = torch.cat([loss.view(1), *(part.flatten() for part in parts)])
    dist.all_reduce(flat)
    grads = flat[1:].split([part.numel() for part in parts])
    for p, grad in zip(model.parameters(), grads, strict=True):
        p.grad = grad.view_as(p)
    return float(flat[0])


def save_whole(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint that is there whole or not at all, whenever the process dies."""
    temporary = path.with_suffix(".partial")
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def report(step: int, loss: float, seconds: float, metrics: dict[str, Any], step_tokens: int) -> str:
    """Return one line for people: how the run goes and what it has been fed so far."""
    blend = "  ".join(f"{name} {source['share']:.3f}" for name, source in metrics["sources"].items())
    speed = step_tokens / seconds
    return f"step {step:4d}  loss {loss:7.4f}  {speed:8,.0f} tokens/s  padding {metrics['padding']:.2%}  blend {blend}"


def train(args: argparse.Namespace) -> None:
    """Train until `args.steps`, from the last checkpoint if there is one."""
    config = load_config(args.config, overrides={"batch.micro_batch_size": args.micro_batch_size})
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    vocab_size = read_manifest(open_store(config.sources[0].path)).tokenizer.max_id + 1
    torch.manual_seed(0)
    model = GPT(vocab_size, config.seq_length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    loader = build_loader(config, Topology.from_env())

    checkpoint, log = args.out / "checkpoint.pt", args.out / "steps.jsonl"
    first_step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])  # the same bytes for every rank, whatever their number was or is
        first_step = state["step"] + 1
        if rank == 0:
            print(f"resumed after step {state['step']} on {world_size} ranks", flush=True)
    if first_step >= args.steps:
        return

    rows: dict[int, bytes] = {}  # what this rank was fed in this step, by canonical sequence number
    loss_of_step, started = torch.zeros(()), time.perf_counter()
    for batch in loader:
        # Divided by the trained tokens of the whole step: so the sum over ranks is the same for any number of them.
        loss = model(batch) / max(1, batch["step_loss_tokens"])
        loss.backward()
        loss_of_step += loss.detach()
        rows |= row_digests(batch, config.seq_length)
        if batch["micro_batch"] + 1 < batch["num_micro_batches"]:
            continue
        mean_loss = sum_over_ranks(model, loss_of_step)
        optimizer.step()
        optimizer.zero_grad()

        step, gathered = batch["step"], [None] * world_size if rank == 0 else None
        dist.gather_object(rows, gathered)
        if gathered is not None:
            digest = step_digest({number: row for part in gathered for number, row in (part or {}).items()})
            line = {"step": step, "sha256": digest, "loss": mean_loss, "ranks": world_size}
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")
            tokens = config.batch.global_batch_size * config.seq_length
            print(report(step, mean_loss, time.perf_counter() - started, loader.metrics(), tokens), flush=True)
            if (step + 1) % args.checkpoint_every == 0 or step + 1 == args.steps:
                parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save_whole(checkpoint, {**parts, "loader": loader.state_dict(), "step": step})
        if step + 1 == args.steps:
            break
        rows, loss_of_step, started = {}, torch.zeros(()), time.perf_counter()
    loader.close()


def main() -> None:
    """Read the command line, join the other ranks, train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="the stream, as YAML")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and the log of steps")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--micro-batch-size", type=int, default=2)
    parser.add_argument("--checkpoint-every", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    try:
        train(args)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
