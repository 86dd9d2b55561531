"""Dynamo's graphs as functional graphs of ATen operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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


@pytest.fixture
def autocast_of_a_device() -> Iterator[None]:
    """As around a call on a device; torch's own context manager turns it off where there is none."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    yield
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])


@pytest.mark.share(2)
@pytest.mark.parametrize("function", [torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_is_that_of_the_device(function: Any, device: str, autocast_of_a_device: None) -> None:
    gates = 6 * {torch.lstm: 4, torch.gru: 3}.get(function, 1)
    with FakeTensorMode():
        shapes = (3, 2, 4), (1, 2, 6), (gates, 4), (gates, 6)
        inputs = [torch.empty(shape, device=device) for shape in shapes]

    def net(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        state = (h, h) if function is torch.lstm else h
        return function(x, state, (w, v), False, 1, 0.0, False, False, False)[0]

    (result,) = functional(fx.symbolic_trace(net), inputs).graph.graph.output_node().args[0]
    assert result.meta["val"].dtype == (torch.float16 if device == "cuda" else torch.float32)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_fused_encoder_layer_is_opened_for_autocast(device: str, autocast_of_a_device: None) -> None:
    shapes = [(24, 8), (24,), (8, 8), (8,), (8,), (8,), (8,), (8,), (16, 8), (16,), (8, 16), (8,)]
    with FakeTensorMode():
        x, *weights = (torch.empty(shape, device=device) for shape in ((2, 5, 8), *shapes))
    graph = fx.Graph()
    given = [graph.placeholder(f"p{k}") for k in range(1 + len(weights))]
    settings = (*given[1:5], False, False, 1e-5, *given[5:])
    graph.output((graph.call_function(torch._transformer_encoder_layer_fwd, (given[0], 8, 2, *settings)),))
    traced = functional(fx.GraphModule({}, graph), [x, *weights]).graph
    products = [n for n in traced.graph.nodes if str(n.target) == "aten.linear.default"]
    assert [n.meta["val"].dtype for n in products] == [torch.float16] * 4 * (device == "cuda")
