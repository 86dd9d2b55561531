"""Cast absorption: a product writes the type in which its result is wanted, directly or transposed."""

from __future__ import annotations

import dace
import numpy as np
import pytest

import daceopt.ops  # noqa: F401  (registers how library nodes are interpreted)
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.types import BFLOAT16, HALVES
from daceopt.transformations.local.cast_absorption import CastAbsorption
from daceopt.transformations.local.product_transposition import ProductTransposition

FLOAT16 = HALVES[0]


def product(dtype: dace.typeclass = BFLOAT16, factor: dace.typeclass = BFLOAT16) -> tuple[Graph, Builder, str]:
    graph = Graph("test", "cpu" if factor == BFLOAT16 else "cuda")
    a, c = graph.add_input("a", (3, 4), factor), graph.add_input("b", (4, 5), factor)
    y = graph.add_array("y", (3, 5), dtype)
    b = Builder(graph, "k")
    b.library(Contraction, {"A": a, "B": c}, {"Y": y})
    return graph, b, y


def results(graph: Graph) -> np.ndarray:
    rng = np.random.default_rng(3)
    feeds = {n: rng.standard_normal(graph.shape(n)).astype(types.to_numpy(graph.dtype(n))) for n in graph.inputs}
    exact = np.matmul(*(feeds[n].astype(np.float64) for n in graph.inputs))
    found = np.asarray(interpret(graph, feeds)[graph.outputs[0]], np.float64)
    return np.abs((found if found.shape == exact.shape else found.T) - exact).max()


@pytest.mark.parametrize("turned", [False, True])
def test_a_result_that_is_widened_is_never_rounded(turned: bool) -> None:
    graph, b, y = product()
    graph.add_output(b.cast(b.transpose(y, [1, 0]) if turned else y, dace.float32))
    before = results(graph)
    step = ProductTransposition() if turned else CastAbsorption()
    assert len(step.run(graph).sites) == 1
    assert not graph.kernels() and graph.dtype(graph.outputs[0]) == dace.float32
    graph.validate()
    assert results(graph) < 1e-6 < before


@pytest.mark.parametrize("factor", HALVES, ids=types.name_of)
def test_a_result_that_is_rounded_is_rounded_by_the_product(factor: dace.typeclass) -> None:
    graph, b, y = product(dace.float32, factor)
    graph.add_output(b.cast(y, factor))
    before = results(graph)
    assert len(CastAbsorption().run(graph).sites) == 1
    assert not graph.kernels() and graph.dtype(graph.outputs[0]) == factor and results(graph) == before


@pytest.mark.parametrize("turned", [False, True])
def test_what_overflows_float16_stays_infinite(turned: bool) -> None:
    """Turned, the product writes as the copy stands, and the conversion follows it."""
    graph, b, y = product(FLOAT16, FLOAT16)
    graph.add_output(b.cast(b.transpose(y, [1, 0]) if turned else y, dace.float32))
    before = results(graph)
    assert not CastAbsorption().run(graph).sites
    assert len(ProductTransposition().run(graph).sites) == turned
    graph.validate()
    (node,) = (n for n in graph.nodes() if isinstance(n, Contraction))
    assert graph.dtype(graph.writes(node)["Y"]) == FLOAT16 and len(graph.kernels()) == 1
    assert graph.shape(graph.writes(node)["Y"]) == graph.shape(graph.outputs[0]) and results(graph) == before
    large = {n: np.full(graph.shape(n), 300, np.float16) for n in graph.inputs}
    assert np.isinf(interpret(graph, large)[graph.outputs[0]]).all()


@pytest.mark.parametrize(
    "why", ["another type", "another value", "another order", "two readers", "an output", "wide factors"]
)
def test_what_is_left_alone(why: str) -> None:
    graph, b, y = product()
    if why == "another type":
        z = b.elementwise(lambda v: scalar.cast(v, dace.float64), y, dtype=dace.float64)
    elif why == "another value":
        z = b.elementwise(lambda v: scalar.cast(-v, dace.float32), y, dtype=dace.float32)
    elif why == "another order":
        out = graph.add_array("z", (3, 5), dace.float32, (1, 3))
        z = b.cast(y, dace.float32, out=out)
    elif why == "wide factors":
        graph = Graph("test")
        b = Builder(graph, "k")
        z = b.cast(
            b.matmul(graph.add_input("a", (3, 4), dace.float32), graph.add_input("b", (4, 5), dace.float32)), BFLOAT16
        )
    else:
        z = b.cast(y, dace.float32)
        graph.add_output(y if why == "an output" else b.elementwise(lambda v: v + 1, y, dtype=dace.float32))
    graph.add_output(z)
    assert not CastAbsorption().run(graph).sites


def test_a_cast_to_float16_in_between_is_a_rounding() -> None:
    graph, b, y = product()
    float16 = b.elementwise(lambda v: scalar.cast(scalar.cast(v, HALVES[0]), dace.float32), y, dtype=dace.float32)
    graph.add_output(float16)
    assert not CastAbsorption().run(graph).sites
