"""Kernels of independent branches side by side: which groups form, what is refused, and what they compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt import recipes
from daceopt.cost import kernel_time
from daceopt.cost.limits import Limits
from daceopt.cost.rates import Rates, assume, typical
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.schedule.schedule import loops
from daceopt.passes.recipe import recipes as registry
from daceopt.passes.runner import Runner
from daceopt.passes.transform import Outcome, Transformation
from tests.properties.graph_checking import Case, failures
from tests.transformations.lowered import assert_same, compiled, size_symbol, values

F = dace.float32


@pytest.fixture(autouse=True)
def _dear_regions() -> Iterator[None]:
    """Starting threads is a microsecond: kernels that are neither tiny nor huge gain from sharing one start."""
    with assume(replace(typical(Limits(2)), region=1e-6)):
        yield


def prepared(graph: Graph, *outputs: str) -> Graph:
    for name in outputs:
        graph.add_output(name)
    Runner(recipes.get("cpu"), "structure").run(graph, levels=("local", "hardware"))
    return graph


def stitched(graph: Graph, options: str = "{least=0.0}") -> Outcome:
    before = graph.copy()
    outcome = Transformation.parse(f"parallelism-stitching{options}").run(graph)
    graph.validate()
    assert_same(before, graph)
    return outcome


def start(*shapes: tuple[Any, ...]) -> tuple[Graph, Builder, list[str]]:
    graph = Graph("test")
    return graph, Builder(graph, "k"), [graph.add_input("x", s, F) for s in shapes]


def tanh(b: Builder, x: str, name: str = "tanh") -> str:
    return str(Builder(b.graph, name).elementwise(lambda v: sympy.tanh(v), x))


def regions(graph: Graph) -> int:
    found = [e.tree for e in graph.kernels() if e.tree is not None]
    return sum(any(loop.kind.startswith("parallel") for loop in loops(tree)) for tree in found)


def test_independent_kernels_of_any_class() -> None:
    """Element-wise, a reduction over rows, one over all, a transposition: other domains, one parallel loop."""
    graph, b, (x, y, z, w) = start((20000,), (70, 300), (9000,), (90, 80))
    rows, total = b.reduce("sum", lambda v: sympy.exp(v), y, axes=(1,)), b.reduce("max", None, z, axes=(0,))
    graph = prepared(graph, tanh(b, x), rows, total, b.copy(b.transpose(w, (1, 0))))
    outcome = stitched(graph)
    assert len(outcome.sites) == 1 and len(graph.nodes()) == 1 and regions(graph) == 1


def test_branches_of_a_common_tail() -> None:
    graph, b, (x, y, w) = start((200, 200), (200, 200), (200, 200))
    left, right = tanh(b, x), tanh(b, tanh(b, y))
    first, second = b.matmul(left, w), b.matmul(right, w)
    graph = prepared(graph, b.elementwise(lambda u, v: u + v, first, second))
    assert stitched(graph).sites == ["tanh + tanh"]


def test_library_calls_stay_out() -> None:
    graph, b, (x, y, w) = start((64, 64), (64, 64), (64, 64))
    graph = prepared(graph, b.matmul(x, w), b.matmul(y, w))
    assert stitched(graph).sites == []


def test_what_depends_on_each_other_stays_in_turn() -> None:
    """Through a product: its operand and what reads its result are sub-graphs of their own, and no branches."""
    graph, b, (x, w) = start((128, 128), (128, 128))
    product = b.matmul(tanh(b, x, "before"), w)
    graph = prepared(graph, b.reduce("max", lambda v: sympy.tanh(v), product, axes=(1,)))
    outcome = stitched(graph)
    assert outcome.sites == []
    assert any("depends on each other: before -> " in miss for miss in outcome.near_misses)


def test_kernels_too_small_for_a_start_of_threads_stay_alone() -> None:
    graph, b, xs = start(*[(8,)] * 5)
    graph = prepared(graph, *(tanh(b, x) for x in xs))
    assert stitched(graph).sites == [] and len(graph.nodes()) == 5


def test_a_small_share_of_the_time_is_no_gain() -> None:
    """Half of the time by two cores for kernels of one thread each; a start of threads for those that have two."""
    for size, sites in ((5000, 1), (4000000, 0)):
        graph, b, xs = start(*[(size,)] * 2)
        graph = prepared(graph, *(tanh(b, x) for x in xs))
        assert len(Transformation.parse("parallelism-stitching").run(graph).sites) == sites


def test_seven_branches_at_most() -> None:
    graph, b, xs = start(*[(6000,)] * 16)
    graph = prepared(graph, *(tanh(b, x) for x in xs))
    assert [site.count("tanh") for site in stitched(graph.copy()).sites] == [7, 7, 2]
    assert [site.count("tanh") for site in stitched(graph, "{branches=16, least=0.0}").sites] == [16]


def test_fewer_where_more_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithm 3, example 7: with five branches the first three, then the other two."""
    graph, b, xs = start(*[(6000 + 500 * k,) for k in range(5)])
    graph = prepared(graph, *(tanh(b, x) for x in xs))
    tried: list[int] = []

    def gain(self: Any, works: Any, deal: Any) -> float:
        tried.append(len(works))
        return 1.0 if len(works) < 4 else -1.0

    monkeypatch.setattr(kernel_time.KernelTimes, "gain", gain)
    assert [site.count("tanh") for site in stitched(graph).sites] == [3, 2] and tried == [5, 4, 3, 2]


def test_the_dearest_come_first_and_the_rest_is_tried_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, b, xs = start((6000,), (90000,), (7000,))
    graph = prepared(graph, *(tanh(b, x, f"n{k}") for k, x in enumerate(xs)))
    monkeypatch.setattr(kernel_time.KernelTimes, "gain", lambda s, w, d: -1.0 if w[0].bytes > 500000 else 1.0)
    assert stitched(graph).sites == ["n2 + n0"]


def test_open_sizes() -> None:
    n = size_symbol()
    graph, b, (x, y) = start((n, 100), (50000,))
    graph.symbols["n"] = (x, 0)
    graph = prepared(graph, tanh(b, x), tanh(b, y))
    outcome = stitched(graph)
    assert len(outcome.sites) == 1
    (tree,) = (e.tree for e in graph.kernels())
    assert "n" in str(loops(tree)[0].extent) and loops(tree)[0].when is not None
    (found,) = compiled("stitched-open", [graph])
    for ours, exact in zip(found, values(graph), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-6)


def test_one_core_shares_nothing() -> None:
    graph, b, xs = start(*[(9000,)] * 3)
    graph = prepared(graph, *(tanh(b, x) for x in xs))
    with assume(typical(Limits(1))):
        assert stitched(graph).sites == []


def test_bodies_of_control_flow_and_an_empty_graph() -> None:
    assert stitched(prepared(Graph("test"))).sites == []


@pytest.mark.parametrize(("kind", "backward", "first"), [("small", True, 0), ("open", True, 20), ("large", False, 40)])
def test_random_graphs(kind: str, backward: bool, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, in both directions: side by side whenever that is possible, cut into as many blocks as there are."""
    recipe = recipes.get("cpu").after("register-promotion", "parallelism-stitching{branches=16, least=0.0}")
    registry.add("side-by-side", replace(recipe, name="side-by-side"))
    monkeypatch.setattr(kernel_time, "_LEAST", 1e-12)
    free = Rates(2, 1e-6, 0.0, 1e-11, 1e11, ((1 << 30, 1e10),), ((1 << 30, 2e10),))
    with assume(free):
        found = failures([Case(seed, kind, backward) for seed in range(first, first + 4)], "side-by-side")
    assert not found, "\n".join(found[:3])
