"""Tensors that a graph of Dynamo holds become arguments; with that an optimizer's update is one compiled function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx

from daceopt.capture.torch.lifting import lift_tensors
from daceopt.ir.graph.graph import Graph
from daceopt.ir.schedule import schedule
from daceopt.modules.backend import Backend
from daceopt.modules.options import Options
from daceopt.programs.stats import Stats
from tests.numerics import assert_within_rounding

pytestmark = pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # PyTorch's own, in Dynamo

Make = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]
SHAPES = ((64, 64), (64,), (300, 100), (1,), (0, 4), ())
MAKES: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "adam-foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, foreach=False),
}


def held(graph: fx.GraphModule) -> list[str]:
    return [str(n.target) for n in graph.graph.nodes if n.op == "get_attr"]


def test_each_tensor_is_one_argument_behind_the_others() -> None:
    root = torch.nn.Module()
    root.first, root.second = torch.ones(2), torch.zeros(3)
    root.again = root.first
    made = fx.Graph()
    x = made.placeholder("x")
    a, b, c = (made.get_attr(n) for n in ("first", "second", "again"))
    made.output((made.call_method("add_", (a, x)), made.call_method("mul_", (b, 2)), c))
    graph = fx.GraphModule(root, made)
    new, tensors = lift_tensors(graph)
    assert held(graph) == ["first", "second", "again"] and held(new) == []
    assert [n.op for n in new.graph.nodes][:3] == ["placeholder"] * 3
    assert [t.data_ptr() for t in tensors] == [root.first.data_ptr(), root.second.data_ptr()]
    found = new(torch.full((2,), 5.0), *tensors)
    assert torch.equal(root.first, torch.full((2,), 6.0)) and found[2] is tensors[0]


def test_a_graph_that_holds_nothing_is_itself() -> None:
    graph = fx.symbolic_trace(torch.nn.ReLU())
    assert lift_tensors(graph) == (graph, ())


def test_leaves_that_change_in_place_are_passed_without_gradients() -> None:
    root = torch.nn.Module()
    root.p = torch.nn.Parameter(torch.ones(2))
    made = fx.Graph()
    made.output(made.call_method("add_", (made.get_attr("p"), 1)))
    graph = fx.GraphModule(root, made)
    with torch.no_grad():
        new, (tensor,) = lift_tensors(graph)
    assert not tensor.requires_grad and tensor.data_ptr() == root.p.data_ptr()
    new(tensor)
    assert torch.equal(root.p, torch.full((2,), 2.0))


class Updates:
    """Parameters with gradients, and the optimizer after its first step, which makes its state."""

    def __init__(self, make: Make, dtype: torch.dtype, count: int = 6):
        generator = torch.Generator().manual_seed(3)
        values = [torch.randn(SHAPES[k % len(SHAPES)], generator=generator) for k in range(2 * count)]
        self.parameters = [v.to(dtype).requires_grad_() for v in values[:count]]
        for parameter, gradient in zip(self.parameters, values[count:]):
            parameter.grad = gradient.to(dtype)
        self.optimizer = make(self.parameters)
        self.optimizer.step()

    def numbers(self) -> list[np.ndarray]:
        return [p.detach().numpy() for p in self.parameters]


LATER = {"adam": pytest.mark.slow} | dict.fromkeys(("adam-foreach", "adamw"), (pytest.mark.slow, pytest.mark.breadth))


class Seen(Backend):
    """Keeps what it has compiled."""

    def __init__(self, recipe: str) -> None:
        super().__init__(Options(recipe=recipe), Stats(), self._raise)
        self.made: list[Any] = []

    @staticmethod
    def _raise(reason: str, error: BaseException) -> None:
        raise error

    def add(self, *given: Any) -> Any:
        self.made.append(super().add(*given))
        return self.made[-1]

    def forward_graph(self) -> Graph:
        (made,) = self.made
        assert made.pair.report["hosted"] == {}
        found: Graph = made.pair.graphs.forward
        return found


@pytest.mark.parametrize("name", ["sgd", "sgd-foreach", *(pytest.param(n, marks=LATER[n]) for n in LATER)])
def test_updates_of_optimizers(name: str) -> None:
    """Three steps in one program without calls of the host, beside float64 and what Dynamo alone makes of them: it
    computes the step's corrections in float32, where eager PyTorch has Python's numbers."""
    torch._dynamo.reset()
    ours, plain, exact = (Updates(MAKES[name], t) for t in (torch.float32, torch.float32, torch.float64))
    backend = Seen("apollo")
    steps = [torch.compile(u.optimizer.step, backend=b, dynamic=False) for u, b in ((ours, backend), (plain, "eager"))]
    for _ in range(3):
        for run in (*steps, exact.optimizer.step):
            run()
    for mine, wanted, peer in zip(ours.numbers(), exact.numbers(), plain.numbers(), strict=True):
        assert_within_rounding(mine, wanted, peer)
    assert backend.forward_graph().nodes()


def test_updates_side_by_side_start_threads_less_often() -> None:
    def regions(recipe: str) -> int:
        torch._dynamo.reset()
        updates, backend = Updates(MAKES["sgd"], torch.float32, 30), Seen(recipe)
        torch.compile(updates.optimizer.step, backend=backend, dynamic=False)()
        graph = backend.forward_graph()
        trees = [e.tree for e in graph.kernels() if e.tree is not None]
        return sum(any(loop.kind.startswith("parallel") for loop in schedule.loops(t)) for t in trees)

    assert regions("apollo") < regions("cpu")
