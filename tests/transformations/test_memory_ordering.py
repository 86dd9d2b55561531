"""An order with fewer arrays alive: a smaller arena, the same numbers, and nothing where nothing is gained."""

from __future__ import annotations

from functools import partial

import dace
import numpy as np
import pytest

from daceopt.codegen import memory_plan
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from tests.properties.graphs import Maker
from transformations.hardware import memory_ordering
from transformations.hardware.memory_ordering import MemoryOrdering

F = dace.float32
plan = partial(memory_plan.plan, lending=True)  # as programs are built


def _branches(count: int, size: object = 4096) -> Graph:
    """Each branch makes a large array of x and sums it up; by default all large arrays are made first."""
    graph = Graph("branches")
    b = Builder(graph, "v")
    x = graph.add_input("x", (size,), F)
    large = [b.elementwise(lambda v, k=k: v + k, x) for k in range(count)]
    sums = [b.reduce("sum", None, name, axes=(0,)) for name in large]
    total = sums[0]
    for other in sums[1:]:
        total = b.elementwise(lambda v, w: v + w, total, other)
    graph.add_output(total)
    return graph


@pytest.mark.parametrize("size", [4096, dace.symbolic.symbol("n", dace.int64)])
def test_branches_run_one_after_another(size: object) -> None:
    graph = _branches(6, size)
    if not isinstance(size, int):
        graph.symbols["n"] = (graph.inputs[0], 0)
    before = plan(graph).arena_bytes
    assert MemoryOrdering().run(graph).sites == [""]
    graph.validate()
    after = plan(graph).arena_bytes
    before, after = (int(n) if isinstance(size, int) else int(n.subs({size: 4096})) for n in (before, after))
    assert before >= 6 * 4 * 4096 and after < 1.1 * 4 * 4096
    assert MemoryOrdering().run(graph).sites == []


def test_an_order_that_gains_little_is_not_taken() -> None:
    graph = _branches(6)
    before = graph.nodes()
    assert MemoryOrdering(least=0.95).run(graph).sites == [] and graph.nodes() == before


def test_inputs_outputs_and_saved_arrays_do_not_count() -> None:
    graph = _branches(3)
    graph.saved = [n for n in graph.arrays() if graph.shape(n) == (4096,) and n not in graph.inputs]
    assert MemoryOrdering(least=0.5).run(graph).sites == []  # what is left are sums of four bytes


def test_what_is_made_early_and_needed_late_is_made_late() -> None:
    """From the inputs on, ``early`` runs before the chain, as all that is ready grows alike; from the outputs back, the
    sum of the chain's start comes late. Only a change that shrinks, from the outputs back, keeps two arrays alive."""
    graph = Graph("late")
    b = Builder(graph, "v")
    x = graph.add_input("x", (1024,), F)
    start = b.elementwise(lambda v: v + 1, x)
    early = b.elementwise(lambda v: v + 2, x)
    chain = b.elementwise(lambda v, w: v + w, start, x)
    total = b.reduce("sum", None, start, axes=(0,))
    turned = b.elementwise(lambda v, w: v * w, start, chain)
    joined = b.elementwise(lambda v, w: v * w, chain, turned)
    for _ in range(2):
        joined = b.elementwise(lambda v, w: v * w, joined, early)
    graph.add_output(b.elementwise(lambda v, w: v + w, total, b.reduce("sum", None, joined, axes=(0,))))
    array = 4 * 1024
    assert plan(graph).arena_bytes >= 3 * array
    assert MemoryOrdering().run(graph).sites == [""]
    graph.validate()
    assert plan(graph).arena_bytes < 2.1 * array


def test_an_order_that_cannot_gain_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one large array is alive in every order, and in this one no more is."""
    planned = []
    monkeypatch.setattr(memory_ordering, "plan", lambda *a, **k: planned.append(a) or memory_plan.plan(*a, **k))
    graph = _branches(6)
    assert MemoryOrdering().run(graph).sites == [""] and len(planned) > 1
    planned.clear()
    assert MemoryOrdering().run(graph).sites == [] and len(planned) == 1


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs_never_need_more_and_compute_the_same(seed: int) -> None:
    graph = Maker(seed).build()
    rng = np.random.default_rng(seed)
    inputs = {n: rng.standard_normal(graph.shape(n)) for n in graph.inputs}
    expected, before = interpret(graph, inputs, np.float64), plan(graph).arena_bytes
    found = MemoryOrdering().run(graph).sites
    graph.validate()
    assert plan(graph).arena_bytes <= (0.98 if found else 1) * before
    for name, value in interpret(graph, inputs, np.float64).items():
        np.testing.assert_array_equal(value, expected[name])
