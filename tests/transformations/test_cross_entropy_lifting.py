"""Cross entropy from the logarithm of a softmax and the loss of its elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daceopt.transformations.coarse.cross_entropy_lifting import CrossEntropyLifting
from tests.transformations.derivatives import assert_same_gradients
from tests.transformations.graphs import Net, near_misses
from tests.transformations.lowered import apply


def _loss(net: Net, logarithms: str, labels: np.ndarray, weights: np.ndarray | None, **attributes: Any) -> str:
    reduction = attributes.get("reduction", "mean")
    operands = [logarithms, net.const(labels), *([] if weights is None else [net.const(weights)])]
    return net.op(
        "NegativeLogLikelihoodLoss", *operands, shape=labels.shape if reduction == "none" else (), **attributes
    )


@pytest.mark.share(2)
@pytest.mark.parametrize("attributes", [{}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 2}])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4)])
def test_one_loss(shape: tuple[int, ...], weighted: bool, attributes: dict[str, Any]) -> None:
    net = Net(x=shape)
    labels = np.arange(np.prod(shape) // 3).reshape(shape[0], *shape[2:]) % 3
    weights = np.array([0.5, 2.0, 1.5], np.float32) if weighted else None
    graph = net.done(_loss(net, net.op("LogSoftmax", net.x, axis=1), labels, weights, **attributes))
    before = graph.copy()
    assert len(apply(CrossEntropyLifting(), graph).sites) == 1
    (node,) = graph.operators()
    assert node.op_type == "SoftmaxCrossEntropyLoss"
    assert {k: node.attribute(k) for k in attributes} == attributes
    assert_same_gradients(before, graph)


def test_probabilities_over_another_axis() -> None:
    net = Net(x=(2, 3, 3))
    labels = np.zeros((2, 3), np.int64)
    graph = net.done(_loss(net, net.op("LogSoftmax", net.x, axis=2), labels, None))
    reason = "the probabilities are over axis 2, labels name elements of axis 1"
    assert reason in near_misses(CrossEntropyLifting(), graph)


def test_logarithms_that_are_read_elsewhere_stay() -> None:
    net = Net(x=(4, 3))
    logarithms = net.op("LogSoftmax", net.x, axis=1)
    loss = _loss(net, logarithms, np.zeros(4, np.int64), None)
    graph = net.done(net.op("Add", loss, net.op("Exp", logarithms)))
    assert not apply(CrossEntropyLifting(), graph).sites
