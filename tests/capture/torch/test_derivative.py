"""What a traced derivative takes over from the forward call."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from daceopt.capture.torch.calls import AtenCall, Context, Operand
from daceopt.capture.torch.derivative import _reuse_results
from daceopt.capture.torch.functional import trace
from daceopt.capture.torch.translation import Importer, Translation
from daceopt.ir.graph.graph import Graph
from tests.capture.torch.checking import check
from tests.twins import check as twins_check
from tests.twins import module

flip = torch.ops.aten.flip.default


def test_only_the_call_on_the_same_operands_is_the_forward() -> None:
    """A formula may call the operator on the gradient: that is another call, also where the forward's is gone."""
    with FakeTensorMode():
        x, g = torch.empty(3), torch.empty(3)
    call = AtenCall(flip, {"self": Operand(0), "dims": [0]}, {"self": Operand(0), "dims": [0]}, (x,), (x,), Context())
    for formula, taken in ((lambda x, g: [flip(x, [0])], 1), (lambda x, g: [flip(g, [0])], 0)):
        importer = Importer(Translation(Graph(), Context()), trace(formula, [x, g]).graph)
        _reuse_results(importer, call, ["y"])
        assert len(importer.known) == taken


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[:, :4], lambda x: x[::2, ::2]])
def test_a_host_call_gets_the_memory_layout_that_was_traced(view) -> None:
    """``_linalg_det`` decomposes a matrix or its transpose, after how it lies, and its derivative asks which."""
    generator = torch.Generator().manual_seed(3)
    x = view(torch.randn(5, 5, generator=generator))
    n = min(x.shape)
    check(lambda x: torch.linalg.det(view(x * 1.0)[:n, :n]), torch.randn(5, 5, generator=generator), native=False)
    check(lambda x: torch.linalg.det(x[:n, :n]), x, native=False)


def test_calls_that_differ_in_their_arguments_are_two() -> None:
    """While they stay whole, they are operators of one type with the same inputs: equal ones become one."""

    def scenario(optimize):
        net = optimize(
            module(lambda self, x: x.sort(-1)[0] + 10 * x.sort(-1, descending=True)[0] + 100 * x.sort(-1)[0])
        )
        x = torch.tensor([[3.0, 1.0, 2.0]], requires_grad=True)
        y = net(x)
        (y * y).sum().backward()
        return y.detach(), x.grad

    twins_check(scenario, recipe="cpu")
    call = AtenCall(flip, {"dims": [0]}, {"dims": [0]}, (), (), Context())
    assert repr(call) == repr(replace(call, traced={})) != repr(replace(call, arguments={"dims": [1]}))
    drawn = torch.ops.aten.poisson.default
    assert repr(replace(call, target=drawn, position=1)) != repr(replace(call, target=drawn, position=2))
