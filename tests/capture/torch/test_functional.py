"""Dynamo's graphs as functional graphs of ATen operators."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional as F

from daceopt.capture.torch.functional import functional


@pytest.mark.parametrize("symbolic", [True, False])
def test_what_has_a_rule_as_a_whole_stays_whole(symbolic: bool) -> None:
    """Also in a program for one choice of sizes, whose trace has no symbols."""
    with FakeTensorMode(shape_env=ShapeEnv() if symbolic else None):
        x, w, h = torch.empty(2, 5, 3), torch.empty(4, 3), torch.empty(1, 2, 1)
        gates = torch.empty(4, 4), torch.empty(4, 1), torch.empty(4), torch.empty(4)

    def net(
        x: torch.Tensor,
        w: torch.Tensor,
        h: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        d: torch.Tensor,
    ) -> torch.Tensor:
        return torch.lstm(F.linear(x, w), (h, h), (a, b, c, d), True, 1, 0.0, True, False, True)[0]

    graph = fx.symbolic_trace(net)
    traced = functional(graph, [x, w, h, *gates]).graph
    called = [str(n.target) for n in traced.graph.nodes if n.op == "call_function"]
    assert called[:2] == ["aten.linear.default", "aten.lstm.input"]
