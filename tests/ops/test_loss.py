"""Classification losses against PyTorch, forward and backward, interpreted and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from daceopt import ops
from daceopt.ir.interpreter.interpret import interpret
from tests.autodiff.checking import check as check_gradient
from tests.numerics import assert_within_rounding
from tests.ops.compiled import compiled
from tests.ops.single import check, lowered, single

RNG = np.random.default_rng(5)
LOSSES = ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"]
PEERS = {"NegativeLogLikelihoodLoss": functional.nll_loss, "SoftmaxCrossEntropyLoss": functional.cross_entropy}
SHAPES = [(3, 5), (2, 4, 3), (2, 3, 2, 2, 1, 2)]
IGNORED = [None, 1, -1, 100]
WEIGHTED = [False, True]
REDUCTIONS = ["none", "sum", "mean"]


def operands(shape: tuple[int, ...], ignored: int | None, weighted: bool) -> list[Any]:
    """Scores, labels (some are ignored) and weights."""
    n, classes, *rest = shape
    labels = RNG.integers(0, classes, (n, *rest))
    if ignored is not None:
        labels.reshape(-1)[1] = ignored
    weights = RNG.uniform(0.5, 2, classes).astype(np.float32)
    return [RNG.normal(size=shape).astype(np.float32), labels, *([weights] if weighted else [])]


def options(reduction: str, ignored: int | None) -> dict[str, Any]:
    return {"reduction": reduction} | ({} if ignored is None else {"ignore_index": ignored})


def evaluate(op_type: str, inputs: list[Any], ignored: int | None, reduction: str, dtype: torch.dtype) -> np.ndarray:
    """PyTorch's loss in ``dtype``."""
    x, labels, *weights = map(torch.from_numpy, inputs)
    weight = weights[0].to(dtype) if weights else None
    skipped = -100 if ignored is None else ignored
    return PEERS[op_type](x.to(dtype), labels, weight, ignore_index=skipped, reduction=reduction).numpy()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.parametrize("ignored", IGNORED)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op_type", LOSSES)
def test_forward(op_type: str, shape: tuple[int, ...], ignored: int | None, weighted: bool, reduction: str) -> None:
    inputs = operands(shape, ignored, weighted)
    exact, peer = (evaluate(op_type, inputs, ignored, reduction, dtype) for dtype in (torch.float64, torch.float32))
    graph, feeds = single(op_type, inputs, like=[peer], opset=13, **options(reduction, ignored))
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], exact, peer)


def test_labels_of_32_bits_and_the_logarithms() -> None:
    x, labels = operands((3, 5, 2), None, False)
    for opset in (12, 13):
        check("SoftmaxCrossEntropyLoss", [x, labels.astype(np.int32)], outputs=2, opset=opset)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.parametrize("ignored", [None, 1, -1])
@pytest.mark.parametrize("op_type", LOSSES)
def test_gradient(op_type: str, ignored: int | None, weighted: bool, reduction: str) -> None:
    _, labels, *weights = operands((3, 4, 2), ignored, weighted)
    skipped = -100 if ignored is None else ignored

    def build(b: Any, x: str, k: str) -> str:
        y = b.graph.add_array("y", (3, 2) if reduction == "none" else (), b.graph.dtype(x))
        given = [b.constant(w.astype(np.float64)) for w in weights]
        b.graph.add_operator(op_type, [x, k, *given], [y], options(reduction, ignored))
        return str(y)

    def peer(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        weight = torch.from_numpy(weights[0]).double() if weights else None
        return PEERS[op_type](x, k, weight, ignore_index=skipped, reduction=reduction)

    check_gradient(build, peer, (3, 4, 2), integers=[labels])


def test_gradient_through_the_logarithms() -> None:
    labels = np.array([0, 3, 2])

    def build(b: Any, x: str, k: str) -> tuple[str, str]:
        made = b.graph.add_array("y", (), b.graph.dtype(x)), b.graph.add_array("p", (3, 4), b.graph.dtype(x))
        b.graph.add_operator("SoftmaxCrossEntropyLoss", [x, k], list(made), {"reduction": "sum"})
        return made

    def peer(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return functional.cross_entropy(x, k, reduction="sum"), functional.log_softmax(x, 1)

    check_gradient(build, peer, (3, 4), integers=[labels])


@pytest.mark.parametrize("recipe", ["none", "auto"])
@pytest.mark.parametrize("op_type", LOSSES)
def test_compiled(op_type: str, recipe: str) -> None:
    """Fused, the loss and the count of labels are two sums of one parallel loop."""
    inputs = operands((4, 6, 3), 1, True)
    (y,) = compiled(op_type, inputs, opset=13, recipe=recipe, **options("mean", 1))
    exact, peer = (evaluate(op_type, inputs, 1, "mean", dtype) for dtype in (torch.float64, torch.float32))
    assert_within_rounding(y, exact, peer)


def test_large_scores_are_stable() -> None:
    x = np.array([[1e4, -1e4, 0], [3e38, 0, 1]], np.float32)
    graph, feeds = single(
        "SoftmaxCrossEntropyLoss", [x, np.array([1, 0])], like=[np.zeros(2, np.float32)], reduction="none"
    )
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], [2e4, 0])


@pytest.mark.parametrize("op_type", LOSSES)
def test_nothing_left_to_average_is_nan(op_type: str) -> None:
    for labels in (np.array([2, 2]), np.zeros(0, np.int64)):
        x = np.ones((len(labels), 3), np.float32)
        graph, feeds = single(op_type, [x, labels], like=[np.zeros((), np.float32)], ignore_index=2)
        assert np.isnan(interpret(lowered(graph), feeds)[graph.outputs[0]])
        assert np.isnan(compiled(op_type, [x, labels], ignore_index=2)[0])


@pytest.mark.parametrize("label", [-1, 3, 2**40])
def test_a_label_out_of_range_is_an_error(label: int) -> None:
    with pytest.raises(IndexError):
        compiled("NegativeLogLikelihoodLoss", [np.ones((1, 3), np.float32), np.array([label])])


def test_shapes_that_do_not_fit_say_why() -> None:
    like = [np.zeros((), np.float32)]
    graph, _ = single("NegativeLogLikelihoodLoss", [np.ones((2, 3), np.float32), np.zeros((2, 3), np.int64)], like=like)
    assert "expected [N, C, d...] and [N, d...]" in str(ops.why_unsupported(graph, graph.operators()[0]))


def test_logarithms_alone() -> None:
    graph, feeds = single("SoftmaxCrossEntropyLoss", operands((3, 5), None, False), outputs=2)
    wanted = interpret(lowered(graph), feeds)
    graph.outputs[:] = graph.outputs[1:]
    graph.prune()
    found = interpret(lowered(graph), {k: v for k, v in feeds.items() if k in graph.inputs})
    np.testing.assert_array_equal(found[graph.outputs[0]], wanted[graph.outputs[0]])
