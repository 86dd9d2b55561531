"""What a loop multiplies by is transposed once: LSTMs and loops written by hand."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest

import daceopt.ops  # noqa: F401  (registers how library nodes are interpreted)
from daceopt.ir.graph import Graph
from daceopt.ir.interpret import interpret
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.region import Repeat
from daceopt.ir.region_builder import LoopBuilder
from daceopt.transformations.local.loop_operand_packing import LoopOperandPacking
from tests.transformations.lowered import apply


def _loop(trips: Any = 3, rows: int = 2, weights: str = "shared", twice: bool = False) -> Graph:
    """``h = h @ R^T``, over and over."""
    graph = Graph("loop")
    h = graph.add_input("h", (rows, 4), dace.float32)
    shape = {"shared": (4, 4), "sliced": (3, 4, 4)}[weights]
    r = graph.add_input("r", shape, dace.float32)
    loop = LoopBuilder(graph, "loop")
    state = loop.carry(h)
    matrix = loop.capture(r) if weights == "shared" else loop.slice_of(r, 0, loop.counter)
    turned = loop.b.transpose(matrix, [1, 0])
    product = loop.b.matmul(state, turned)
    if twice:
        product = loop.b.matmul(product, turned)
    final = graph.add_array("final", (rows, 4), dace.float32)
    loop.finish([product], [final], trips=trips)
    graph.add_output(final)
    return graph


def _factors(graph: Graph) -> list[tuple[Any, ...]]:
    (loop,) = (n for n in graph.nodes() if isinstance(n, Repeat))
    products = [n for n in loop.body.nodes() if isinstance(n, Contraction)]
    return [loop.body.strides(loop.body.reads(p)["B"]) for p in products]


@pytest.mark.parametrize("twice", [False, True])
def test_a_transposed_factor_is_copied_before_the_loop(twice: bool) -> None:
    graph = _loop(twice=twice)
    random = np.random.default_rng(0)
    feeds = {name: random.standard_normal(graph.shape(name)) for name in graph.inputs}
    before = interpret(graph, feeds, np.float64)[graph.outputs[0]]
    outcome = apply(LoopOperandPacking(), graph)
    assert len(outcome.sites) == 1 and set(_factors(graph)) == {(4, 1)}
    np.testing.assert_array_equal(interpret(graph, feeds, np.float64)[graph.outputs[0]], before)
    assert not apply(LoopOperandPacking(), graph).sites


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"weights": "sliced"}, None),  # another matrix in each iteration
        ({"trips": 1}, None),
        ({"rows": 65}, "rows hide"),
    ],
)
def test_what_stays(options: dict[str, Any], why: str | None) -> None:
    graph = _loop(**options)
    outcome = apply(LoopOperandPacking(), graph)
    assert not outcome.sites and set(_factors(graph)) == {(1, 4)}
    assert bool(outcome.near_misses) == (why is not None)
    assert all(why is not None and why in miss for miss in outcome.near_misses)
