"""The training script that the demo runs: its attention keeps to documents, its gradients to the step."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from streampipe import Topology, build_loader, load_config


@pytest.fixture(scope="module")
def train() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_example", Path(__file__).parents[1] / "examples" / "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_attention_over_a_packed_batch_equals_a_loop_over_its_documents(train: ModuleType) -> None:
    torch.manual_seed(1)
    lengths = [5, 7, 4, 16, 1, 1, 14]  # three rows of 16
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    attention = train.Attention(width=32, heads=4)
    x = torch.randn(3, 16, 32)

    packed = attention(x, train.document_mask(cu_seqlens, 16)).reshape(-1, 32)

    def alone(document: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(-1, 4, 8).transpose(0, 1)[None] for part in attention.qkv(document).chunk(3, dim=-1))
        return attention.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1).flatten(-2))

    one_by_one = torch.cat([alone(document) for document in x.view(-1, 32).split(lengths)])
    torch.testing.assert_close(packed, one_by_one, rtol=0, atol=1e-6)


def test_a_document_does_not_see_its_neighbours(train: ModuleType) -> None:
    torch.manual_seed(1)
    model = train.GPT(vocab_size=50, seq_length=8, width=16, layers=2, heads=2)
    batch = {
        "tokens": torch.arange(8),
        "labels": torch.tensor([1, 2, 3, -100, 5, 6, 7, -100]),
        "position_ids": torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]),
        "loss_mask": torch.tensor([0.0, 0, 0, 0, 1, 1, 1, 0]),
        "cu_seqlens_padded": torch.tensor([0, 4, 8], dtype=torch.int32),
    }
    other = dict(batch, tokens=torch.tensor([9, 10, 11, 12, 4, 5, 6, 7]))
    assert torch.equal(model(batch), model(other))
    joined = dict(other, cu_seqlens_padded=torch.tensor([0, 8], dtype=torch.int32))
    assert not torch.equal(model(batch), model(joined))


def test_a_batch_without_trained_tokens_has_a_loss_of_zero(train: ModuleType) -> None:
    model = train.GPT(vocab_size=50, seq_length=8, width=16, layers=1, heads=2)
    batch = {
        "tokens": torch.zeros(8, dtype=torch.int64),
        "labels": torch.full((8,), -100),
        "position_ids": torch.arange(8),
        "loss_mask": torch.zeros(8),
        "cu_seqlens_padded": torch.tensor([0, 8], dtype=torch.int32),
    }
    assert model(batch).item() == 0.0


STREAM = """
seed: 7
seq_length: 128
sources:
  - {name: web, mock: {documents: 5000, mean: 60, sigma: 1.0, min: 1, max: 512}, weight: 0.6}
  - {name: code, mock: {documents: 5000, mean: 200, sigma: 1.0, min: 1, max: 512}, weight: 0.4}
packing: {policy: best_fit, overlong: split}
plan: {windows: 4, window_tokens: 8192}
batch: {global_batch_size: 8, micro_batch_size: 1}
"""


def gradients_after_one_step(train: ModuleType, path: Path, dp_size: int, micro_batch_size: int) -> torch.Tensor:
    """Sum the gradients of all ranks, as the all-reduce of the training script does."""
    config = load_config(path, overrides={"batch.micro_batch_size": micro_batch_size})
    torch.manual_seed(3)
    model = train.GPT(vocab_size=64, seq_length=128, width=16, layers=1, heads=2).double()
    for dp_rank in range(dp_size):
        loader = build_loader(config, Topology(dp_size=dp_size, dp_rank=dp_rank))
        for batch in loader:
            batch["tokens"] = batch["tokens"] % 64
            batch["labels"] = torch.where(batch["labels"] < 0, batch["labels"], batch["labels"] % 64)
            (model(batch) / batch["step_loss_tokens"]).backward()
            if batch["micro_batch"] + 1 == batch["num_micro_batches"]:
                break
        loader.close()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize(("dp_size", "micro_batch_size"), [(1, 4), (2, 1), (2, 4), (4, 2), (8, 1)])
def test_the_gradient_of_a_step_is_the_same_on_any_number_of_ranks(
    train: ModuleType, tmp_path: Path, dp_size: int, micro_batch_size: int
) -> None:
    path = tmp_path / "stream.yaml"
    path.write_text(STREAM)
    one = gradients_after_one_step(train, path, dp_size=1, micro_batch_size=1)
    many = gradients_after_one_step(train, path, dp_size, micro_batch_size)
    assert one.abs().max() > 1e-3
    torch.testing.assert_close(many, one, rtol=0, atol=1e-6)
