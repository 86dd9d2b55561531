"""Losses: every reduction, weights, labels that are ignored, and where logarithms end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from daceopt.errors import RunError
from tests.capture.torch.checking import check

REDUCTIONS = ["none", "mean", "sum"]
SCORES = torch.linspace(-2, 3, 84).reshape(4, 3, 7).mul(9).sin() * 2
LABELS = torch.arange(28).reshape(4, 7) * 5 % 3
WEIGHT = torch.tensor([0.3, 1.0, 2.5])
A, B = torch.linspace(-2, 3, 20).reshape(4, 5), torch.linspace(2, -2, 20).reshape(4, 5).mul(3).sin()

PAIRS: dict[str, Callable[..., Any]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": lambda a, b, **k: F.smooth_l1_loss(a, b, beta=0.5, **k),
    "huber": lambda a, b, **k: F.huber_loss(a, b, delta=0.5, **k),
    "logits": F.binary_cross_entropy_with_logits,
    "divergence": lambda a, b, **k: F.kl_div(a, b.sigmoid(), **k),
    "divergence_of_logs": lambda a, b, **k: F.kl_div(a, b, log_target=True, **k),
    "poisson": F.poisson_nll_loss,
    "soft_margin": lambda a, b, **k: F.soft_margin_loss(a, b.detach().sign(), **k),
    "hinge": lambda a, b, **k: F.hinge_embedding_loss(a, b.detach().sign(), **k),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str, reduction: str) -> None:
    check(lambda a, b: PAIRS[name](a, b, reduction=reduction), A, B)


@pytest.mark.parametrize("name", ["mse", "l1", "smooth_l1", "huber"])
def test_pairs_at_kinks(name: str) -> None:
    b = torch.zeros(5)
    check(lambda a, b: PAIRS[name](a, b), torch.tensor([-0.5, 0.0, 0.5, -0.0, 2.0]), b)


@pytest.mark.share(2)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_labels(reduction: str, dtype: torch.dtype) -> None:
    x = SCORES.to(dtype)
    check(lambda x, k: F.cross_entropy(x, k, reduction=reduction), x, LABELS)
    check(lambda x, k: F.nll_loss(x, k, WEIGHT.to(x.dtype), ignore_index=1, reduction=reduction), x, LABELS)
    check(lambda x, k: F.nll_loss(x, k, reduction=reduction), x[:, :, 0], LABELS[:, 0], dynamic=True)


def test_labels_of_images_of_one_row_and_smoothed() -> None:
    check(lambda x, k: F.nll_loss(x, k), SCORES.reshape(2, 3, 2, 7), LABELS.reshape(2, 2, 7))
    check(lambda x, k: F.nll_loss(x, k), SCORES[0, :, 0], LABELS[0, 0])
    check(lambda x, k: F.cross_entropy(x, k, label_smoothing=0.2), SCORES, LABELS)
    check(lambda x, p: F.cross_entropy(x, p.softmax(1)), SCORES, SCORES.flip(0))


def test_all_labels_ignored() -> None:
    check(lambda x, k: F.nll_loss(x, k), SCORES, torch.full_like(LABELS, -100))
    check(lambda x, k: F.nll_loss(x, k, reduction="sum"), SCORES, torch.full_like(LABELS, -100))


def test_total_weight_is_there_for_who_reads_it() -> None:
    check(
        lambda x, k: torch.ops.aten.nll_loss_forward(x, k, WEIGHT.to(x.dtype), 1, 0),
        SCORES[:, :, 0],
        LABELS[:, 0],
        grad=False,
    )


@pytest.mark.share(2)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_probabilities(reduction: str, dtype: torch.dtype) -> None:
    p, y = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.3, 0.9]), torch.tensor([0.0, 0.0, 1.0, 1.0, 0.4, 0.9])
    w = torch.arange(1, 7)
    check(lambda p, y: F.binary_cross_entropy(p, y, reduction=reduction), p.to(dtype), y.to(dtype))
    check(lambda p, y: F.binary_cross_entropy(p, y, w.to(p.dtype), reduction=reduction), p.to(dtype), y.to(dtype))


def test_probabilities_of_no_elements_and_open_sizes() -> None:
    check(F.binary_cross_entropy, torch.empty(0, 3), torch.empty(0, 3))
    check(F.binary_cross_entropy, A.sigmoid(), B.sigmoid(), dynamic=True)


def test_margins_are_left_to_aten() -> None:
    check(lambda x, k: F.multi_margin_loss(x, k), SCORES[:, :, 0], LABELS[:, 0], native=False)


@pytest.mark.parametrize("labels", [[-1, 2, 0, 1], [1, -1, 2, -1], [3, 0, 2, 1]])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_labels_end_at_the_first_negative_one(labels: list[int], reduction: str) -> None:
    """PyTorch's form in Python, which is not what the operator computes, takes the rest for the label 0."""
    x = torch.cos(torch.arange(12.0)).reshape(3, 4)
    target = torch.tensor(labels).expand(3, 4)
    check(lambda x: F.multilabel_margin_loss(x, target, reduction=reduction), x, native=False)


def test_margins_of_one_label_that_are_met_exactly() -> None:
    x = torch.tensor([[0.5, -0.5, 1.5, 0.5], [0.0, 1.0, 0.0, 2.0]])
    check(lambda x: F.multi_margin_loss(x, torch.tensor([0, 1])), x, native=False)


def test_a_result_of_another_rank_than_pytorch_promises_is_an_error() -> None:
    """Eager mode then gives what the kernel gives."""
    target = torch.tensor([3, 0, -1, 1])
    with pytest.raises(RunError, match=r"returned shape \(\); expected \(1,\)"):
        check(lambda x: F.multilabel_margin_loss(x, target, reduction="none"), torch.ones(4), native=False)
