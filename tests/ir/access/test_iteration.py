"""Address functions, splitting and renaming of loops, and the unification of two spaces."""

from __future__ import annotations

import dace
import numpy as np
import pytest
import sympy

from daceopt.ir.access.dataflow import address
from daceopt.ir.access.iteration import apart, canonical, rename, split, unify
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Access, Kernel, param
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.affine import quotient

F = dace.float32
ROW, COLUMN = param(0), param(1)
X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def start() -> tuple[Graph, Builder, str]:
    graph = Graph("test")
    return graph, Builder(graph), graph.add_input("x", (4, 6), F)


def test_addresses_see_through_views() -> None:
    graph, b, x = start()
    view = b.slice(b.transpose(x, [1, 0]), [1, 2], [6, 4], [2, 1])
    found = address(graph, Access(view, (ROW, COLUMN + 1)))
    assert found is not None
    assert (found.buffer, found.constant, found.coefficients()) == (x, 1 + 12 + 6, {ROW: 2, COLUMN: 6})


def test_broadcast_parameters_have_no_term() -> None:
    graph, b, x = start()
    found = address(graph, Access(b.expand(x, (5, 4, 6)), (param(2), ROW, COLUMN)))
    assert found is not None and found.coefficients() == {ROW: 6, COLUMN: 1}


@pytest.mark.parametrize("index", [(None, COLUMN), (ROW * COLUMN, COLUMN), (sympy.floor(ROW / 2), COLUMN)])
def test_what_is_not_affine_has_no_address(index: tuple) -> None:
    graph, _, x = start()
    assert address(graph, Access(x, index)) is None


def test_quotients() -> None:
    n = dace.symbolic.symbol("n", dace.int64)
    assert quotient(6, 3) == 2 and quotient(6, 4) is None and quotient(6, 0) is None
    assert quotient(6 * n, 3) == 2 * n and quotient(6 * n, n) == 6
    assert quotient(n, 2) is None and quotient(6, n) is None


def noisy(graph: Graph, b: Builder, x: str) -> str:
    """A kernel whose values depend on the position."""
    out = graph.add_array("out", (4, 6), F)
    b.map(
        (4, 6),
        {"v": (x, lambda *i: i)},
        {"out": (out, lambda *i: i)},
        lambda i, v: v + scalar.cast(10 * i[0] + i[1], F),
    )
    return out


def reemitted(change: object) -> np.ndarray:
    graph, b, x = start()
    graph.add_output(noisy(graph, b, x))
    (entry,) = graph.kernels()
    kernel = change(entry.kernel)  # type: ignore[operator]
    graph.remove(entry)
    graph.add_kernel(kernel)
    graph.validate()
    return interpret(graph, {x: X})[graph.outputs[0]]


@pytest.mark.parametrize(
    "change",
    [
        canonical,
        lambda k: canonical(rename(k, {ROW: COLUMN, COLUMN: ROW})),
        lambda k: canonical(apart(k)),
        lambda k: canonical(split(k, COLUMN, 3)[0]),
        lambda k: canonical(split(split(k, ROW, 2)[0], COLUMN, 2)[0]),
    ],
)
def test_positions_survive_renaming_and_splitting(change: object) -> None:
    expected = X + np.add.outer(10 * np.arange(4), np.arange(6))
    np.testing.assert_allclose(reemitted(change), expected.astype(np.float32), rtol=1e-6)


def pair(second_shape: tuple[int, ...]) -> tuple[Graph, Kernel, Kernel]:
    graph, b, x = start()
    y = b.elementwise(sympy.tanh, x)
    b.elementwise(sympy.exp, b.reshape(y, second_shape))
    first, second = (k.kernel for k in graph.kernels())
    return graph, first, apart(second, first)


@pytest.mark.parametrize("shape", [(4, 6), (2, 2, 6), (4, 2, 3), (2, 2, 3, 2), (24,), (1, 24, 1)])
def test_equal_walks_unify_by_splitting(shape: tuple[int, ...]) -> None:
    graph, first, second = pair(shape)
    found = unify(first, address(graph, first.writes()[0]), second, address(graph, second.reads()[0]))
    assert found is not None
    one, other, mapping = found
    other = rename(other, mapping)
    walks = address(graph, one.writes()[0]), address(graph, other.reads()[0])
    assert walks[0].coefficients() == walks[1].coefficients()
    assert {p: one.extents[p] for p in one.extents} == {p: other.extents[p] for p in one.extents}


def test_loops_that_do_not_divide_each_other() -> None:
    graph, first, second = pair((3, 8))
    assert unify(first, address(graph, first.writes()[0]), second, address(graph, second.reads()[0])) is None
