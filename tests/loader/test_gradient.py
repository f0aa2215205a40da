"""`step_loss_tokens` is what to divide the summed loss by: the gradient does not depend on how a step is cut."""

from pathlib import Path
from typing import Any

import pytest
import torch
from laws import Batch, take, take_all_ranks
from streams import SEQ_LENGTH, raw_stream, stream_of, write_source
from torch.nn import functional as F  # noqa: N812

from streampipe import Topology, config_from

VOCABULARY = 61


def model_of_bigrams() -> torch.Tensor:
    """Return the logits of the next token for each token: the smallest model that learns from labels."""
    torch.manual_seed(1)
    return torch.randn(VOCABULARY, VOCABULARY, dtype=torch.float64, requires_grad=True)


def summed_loss(model: torch.Tensor, batch: Batch) -> torch.Tensor:
    tokens, labels = batch["tokens"].reshape(-1) % VOCABULARY, batch["labels"].reshape(-1)
    losses = F.cross_entropy(model[tokens], torch.where(labels < 0, labels, labels % VOCABULARY), reduction="none")
    return (losses * batch["loss_mask"].reshape(-1)).sum()


def gradient_of_steps(ranks: list[list[Batch]]) -> torch.Tensor:
    """Add up the gradients of all ranks, as an all-reduce would."""
    model = model_of_bigrams()
    for batches in ranks:
        for batch in batches:
            (summed_loss(model, batch) / batch["step_loss_tokens"]).backward()
    assert model.grad is not None
    return model.grad


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"packing.policy": "concat"},
        {"packing.policy": "none", "batch.layout": "sbhd"},
        {"packing.overlong": "truncate"},
    ],
    ids=str,
)
def test_the_gradient_of_a_step_is_the_same_at_dp_1_2_and_4(corpora: Path, changes: dict[str, Any]) -> None:
    gradients = [
        gradient_of_steps(
            take_all_ranks(stream_of(corpora, changes | {"batch.micro_batch_size": size}), ranks, batches)
        )
        for ranks, size, batches in ((1, 16, 3), (1, 2, 24), (2, 2, 12), (4, 1, 12), (4, 4, 3))
    ]
    assert gradients[0].abs().max() > 1e-3
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"packing.policy": "concat"}, {"packing.policy": "none"}], ids=str)
def test_step_loss_tokens_is_the_sum_over_all_ranks_and_micro_batches(corpora: Path, changes: dict[str, Any]) -> None:
    raw = raw_stream(corpora, changes)
    for source in raw["sources"]:
        source["epochs"] = 1
    steps: dict[int, list[tuple[int, int]]] = {}
    for batches in take_all_ranks(config_from(raw), 4):
        for batch in batches:
            steps.setdefault(batch["step"], []).append((batch["loss_tokens"], batch["step_loss_tokens"]))
    for told in steps.values():
        assert len(told) == 8
        assert {whole for _, whole in told} == {sum(own for own, _ in told)}


def test_the_mean_over_ranks_of_local_means_would_be_another_gradient(corpora: Path) -> None:
    """What B93 is about: this corpus can tell the difference."""
    ranks = take_all_ranks(stream_of(corpora, {"packing.policy": "none"}), 4, 2)
    model = model_of_bigrams()
    for batches in ranks:
        for batch in batches:
            (summed_loss(model, batch) / batch["loss_tokens"] / 8).backward()
    assert model.grad is not None
    assert (model.grad - gradient_of_steps(ranks)).abs().max() > 1e-4


def test_a_batch_without_a_trained_token_has_a_loss_of_0_and_no_nan_in_its_gradient(tmp_path: Path) -> None:
    """One document on eight ranks: seven get nothing but padding."""
    raw = {
        "seq_length": SEQ_LENGTH,
        "sources": [{"name": "one", "path": write_source(tmp_path, 0, [50]), "epochs": 1}],
        "batch": {"global_batch_size": 8},
    }
    losses = []
    for rank in range(8):
        model = model_of_bigrams()
        for batch in take(config_from(raw), None, Topology(dp_size=8, dp_rank=rank)):
            loss = summed_loss(model, batch) / batch["step_loss_tokens"]
            loss.backward()
            losses.append(loss.item())
            assert model.grad is not None
            assert model.grad.isfinite().all()
    assert sorted(losses)[:7] == [0.0] * 7
    assert max(losses) > 0


@pytest.mark.parametrize("policy", ["best_fit", "none"])
def test_a_step_without_a_trained_token_has_a_loss_of_0_and_not_nan(tmp_path: Path, policy: str) -> None:
    """Documents of one token have nothing to predict."""
    raw = {
        "seq_length": 4,
        "sources": [{"name": "ones", "path": write_source(tmp_path, 0, [1] * 20), "epochs": 1}],
        "packing": {"policy": policy},
        "batch": {"global_batch_size": 4},
    }
    for batch in take(config_from(raw), None):
        assert batch["loss_tokens"] == 0
        assert (summed_loss(model_of_bigrams(), batch) / batch["step_loss_tokens"]).item() == 0.0
