"""Sub-graphs in instances: the numbers of the whole, for any batch, in inference and training."""

from __future__ import annotations

import copy
import re
from functools import partial
from typing import Any

import dace
import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional

from daceopt import optimized_module, recipes
from daceopt.codegen import memory_plan
from daceopt.errors import DaceoptError
from daceopt.ir.control.region import Repeat, everything, regions
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import NanWatch
from daceopt.modules.backend import Backend
from daceopt.passes.transform import NearMiss, look
from daceopt.transformations.instances.instance_loops import InstanceLoops
from tests.capture.torch.checking import make_backend
from tests.capture.torch.interpreted import compile_interpreted
from tests.numerics import assert_within_rounding

F = dace.float32
RECIPE = recipes.get("graphturbo").with_options("instance-loops", items=2)


class Residual(nn.Module):
    """A convolutional network with a skip, a concatenation, a pool, and several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.third = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1)
        self.last = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = functional.relu(self.norm(self.first(x)))
        z = functional.relu6(self.third(self.second(y)) + y)
        both = functional.max_pool2d(torch.cat([y, z], 1), 2)
        return self.last(both.mean((2, 3))), y


class Tokens(nn.Module):
    """Attention over sequences: rows of all sequences of a batch are cut by sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(x))


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.eye(40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.5, training=True) @ self.w


def _checked(module: nn.Module, *inputs: torch.Tensor) -> list[Graph]:
    """The module through our recipe, interpreted, beside eager float64, with gradients and buffers in training;
    returns the graphs."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    exact = copy.deepcopy(module).double()
    backend: Backend = make_backend(partial(compile_interpreted, through=RECIPE))
    with torch.set_grad_enabled(module.training):
        found = torch._dynamo.optimize(backend, nopython=True, dynamic=None)(module)(*inputs)
        wanted = exact(*(x.double() if x.is_floating_point() else x for x in inputs))
    outcomes = [list(r) if isinstance(r, tuple) else [r] for r in (found, wanted)]
    if module.training:
        for net, results in zip((module, exact), outcomes):
            sum(r.sin().sum() for r in results).backward()
            results += [p.grad for p in net.parameters()] + list(net.buffers())
    for one, other in zip(*outcomes, strict=True):
        assert_within_rounding(one, other, ulps=512)
    return [graph for piece in backend.graphs for graph, _ in piece.pair.source.graphs.directions()]


def _loops(graph: Graph) -> list[Repeat]:
    return [n for g in everything(graph) for n in regions(g) if isinstance(n, Repeat)]


@pytest.mark.parametrize(("batch", "count"), [(6, 1), (7, 2), (3, 2), (2, 0), (1, 0)])
def test_a_network_in_inference(batch: int, count: int) -> None:
    (graph,) = _checked(Residual().eval(), torch.randn(batch, 3, 6, 6))
    assert len(_loops(graph)) == count
    several = [loop for loop in _loops(graph) if loop.trips > 1]
    assert all(node.held_over for loop in several for node in loop.body.nodes() if "W" in node.in_connectors)


@pytest.mark.parametrize("batch", [6, 5])
def test_training_whose_statistics_need_the_whole_batch(batch: int) -> None:
    forward, backward = _checked(Residual().train(), torch.randn(batch, 3, 6, 6))
    assert _loops(forward) and _loops(backward)


def test_sequences_forward_and_backward() -> None:
    forward, backward = _checked(Tokens(), torch.randint(0, 11, (5, 7)))
    assert _loops(forward) and _loops(backward)


def test_a_batch_of_open_size() -> None:
    x = torch.randn(5, 3, 6, 6)
    torch._dynamo.mark_dynamic(x, 0)
    (graph,) = _checked(Residual().eval(), x)
    assert [str(loop.trips) for loop in _loops(graph)] == ["floor(s0/2)", "Min(1, s0 - 2*floor(s0/2))"]


def test_built() -> None:
    torch.manual_seed(0)
    exact, module = Residual().eval().double(), Residual().eval()
    module.load_state_dict(exact.state_dict())
    module = optimized_module(module, recipe=RECIPE, fallback="raise", verify="numerics")
    x = torch.randn(7, 3, 6, 6)
    with torch.no_grad():
        for found, wanted in zip(module(x), exact(x.double()), strict=True):
            assert_within_rounding(found, wanted, ulps=64)
    # what is kept from call to call is looked at in the first iteration
    assert re.search(r"CheckedWeights::Use use\(checked\); .*use\.in\(\w+ == 0\)", module.daceopt.source())


def test_relus_in_convolutions_are_watched_in_each_instance() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 1)).eval()
    module = optimized_module(copy.deepcopy(plain), recipe=RECIPE, fallback="raise")
    images = torch.randn(7, 3, 6, 6)
    with torch.no_grad():
        for where, value in ((0, 0.0), (3, torch.nan), (6, -torch.inf), (2, 3e38), (0, 0.0)):
            x = images.clone()
            x[where, :, 2, 2] = value
            assert torch.equal(module(x).isnan(), plain(x).isnan())
            torch.testing.assert_close(module(x), plain(x), equal_nan=True)
    (graph,) = _checked(plain, images)
    assert {NanWatch in map(type, g.nodes()) for g in everything(graph)} == {True, False}  # in the loops alone
    assert all(NanWatch in map(type, loop.body.nodes()) for loop in _loops(graph))


def test_a_batch_of_open_size_built() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    plain = Residual().eval()
    module = optimized_module(copy.deepcopy(plain), recipe=RECIPE, fallback="raise")
    with torch.no_grad():
        for batch in (5, 4, 9, 1, 2):
            x = torch.randn(batch, 3, 6, 6)
            if batch > 1:
                torch._dynamo.mark_dynamic(x, 0)
            for found, wanted in zip(module(x), plain(x), strict=True):
                torch.testing.assert_close(found, wanted)


def test_each_element_of_the_batch_draws_a_number_of_its_own() -> None:
    found = []
    for recipe in ("none", RECIPE):
        torch.manual_seed(3)
        module = optimized_module(Dropped(), recipe=recipe, fallback="raise")
        found.append(module(torch.ones(7, 40)))
    torch.testing.assert_close(found[0], found[1])
    assert len({tuple(row) for row in (found[1] != 0).tolist()}) == 7
    assert any(step["sites"] for step in module.daceopt.history if step["name"].startswith("instance-loops"))


def _chain(n: Any) -> Graph:
    """Three functions over large rows, of which the last two read what a sum over the batch gives."""
    graph = Graph("chain")
    b = Builder(graph)
    x = graph.add_input("x", (n, 1 << 18), dace.float32)
    y = b.elementwise(lambda v: sympy.tanh(v), x)
    z = b.elementwise(lambda v: v * v, y)
    mean = b.reduce("sum", None, z, axes=(0,))
    graph.add_output(b.elementwise(lambda v, m: v - m, z, mean))
    return graph


def test_what_gains_by_instances_is_decided_by_the_cache() -> None:
    graph = _chain(64)
    (site,) = InstanceLoops(cache=16 << 20).run(graph).sites
    assert "8 of 64 items at a time" in site or "4 of 64 items at a time" in site
    (loop,) = _loops(graph)
    (total,) = loop.body.outputs[:1]  # of the items so far, and of an instance
    rows = {loop.body.shape(n) for node in loop.body.nodes() for n in loop.body.outputs_of(node) if n}
    assert all(shape == loop.body.shape(total) or shape[0] <= 8 for shape in rows)
    assert InstanceLoops(cache=1 << 30).run(_chain(64)).sites == []  # it fits as it is


def _network(n: int) -> Graph:
    """A skip around three products: between its ends stands what gains nothing by itself."""
    graph = Graph("skip")
    b = Builder(graph)
    x = graph.add_input("x", (n, 1 << 14), dace.float32)
    first = b.elementwise(lambda v: sympy.tanh(v), x)
    small = b.matmul(first, graph.add_input("v", (1 << 14, 8), dace.float32))
    large = b.matmul(small, graph.add_input("w", (8, 1 << 14), dace.float32))
    graph.add_output(b.matmul(b.elementwise(lambda v, u: v + u, first, large), graph.add_input("u", (1 << 14, 8), F)))
    return graph


def test_memory_falls_by_the_number_of_instances() -> None:
    graph = _network(1 << 12)
    before = memory_plan.plan(graph).arena_bytes
    (site, *_) = InstanceLoops(aim="memory").run(graph).sites
    assert site.startswith("5 nodes")  # with what lies between the ends of the skip
    assert memory_plan.plan(graph).arena_bytes < before / 8


def test_what_looks_for_nan_does_not_keep_what_it_looks_at() -> None:
    graph = _network(1 << 12)
    product = next(n for node in graph.nodes() for n in graph.outputs_of(node) if graph.shape(n) == (1 << 12, 1 << 14))
    seen = graph.add_array("seen", (1,), dace.int32)
    graph.add_node(NanWatch("watch"), {"X": product}, {"Seen": seen})
    before = memory_plan.plan(graph).arena_bytes
    (site, *_) = InstanceLoops(aim="memory").run(graph).sites
    assert site.startswith("6 nodes")
    assert memory_plan.plan(graph).arena_bytes < before / 8
    assert not any(isinstance(node, NanWatch) for node in graph.nodes())


def test_another_aim_is_refused() -> None:
    with pytest.raises(DaceoptError, match="aim 'speed'; expected one of cache, memory"):
        InstanceLoops(aim="speed")


def test_what_reads_a_sum_over_the_batch_is_behind_the_instances_that_add_to_it() -> None:
    graph = _chain(64)
    assert [site.split(" ")[0] for site in InstanceLoops(items=4).run(graph).sites] == ["3"]
    (loop,) = _loops(graph)
    assert len(loop.carried) == 1


def test_a_maximum_over_the_batch_ends_an_instance() -> None:
    graph = Graph("largest")
    b = Builder(graph)
    rows = b.elementwise(lambda v: v * v, graph.add_input("x", (64, 8), F))
    graph.add_output(b.reduce("max", None, rows, axes=(0,)))
    found = look(InstanceLoops(items=4), graph)
    assert any("is no sum over the 64 items" in str(m) for m in found if isinstance(m, NearMiss))
