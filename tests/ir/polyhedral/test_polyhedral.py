"""isl's scheduler on kernels: the paper's listings, what it aligns, its bounds, and that the result is right."""

from __future__ import annotations

from typing import Any

import dace
import pytest
import sympy

from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.legality.legality_isl import violation
from daceopt.ir.polyhedral import polyhedral
from daceopt.ir.polyhedral.polyhedral import Effort, Member
from daceopt.ir.scalar.affine_isl import CONTEXT
from daceopt.ir.scalar.scalar import symbol
from daceopt.ir.scalar.symbols import param
from tests.ir.listings import bias_and_pool, bias_and_sum, in_one
from tests.transformations.lowered import finish, size_symbol, start

N = size_symbol()


def scheduled(graph: Graph) -> list[Member]:
    """The common loops that isl finds for all kernels as one, in an order that keeps the dependences."""
    kernel = in_one(graph)
    order = polyhedral.schedule(graph, kernel)
    assert violation(graph, kernel, order) is None
    return polyhedral.outer_band(kernel, order)


# ---------------------------------------------------------------- the listings


def test_listing_1_is_scaled_and_shifted() -> None:
    """A maximum is taken as soon as its last operand is there: Listing 2."""
    rows, columns = scheduled(bias_and_pool())
    for member in (rows, columns):
        assert [member.values[k][1:] for k in (0, 1)] == [(1, 0), (2, 1)]


def test_listing_3() -> None:
    """The loops of a reduction, and the element-wise statement with it."""
    kernel = in_one(bias_and_sum())
    band = polyhedral.outer_band(kernel, polyhedral.schedule(None, kernel))
    assert len(band) == 4 and all(m.values[0][1:] == m.values[1][1:] == (1, 0) for m in band)
    first, second = ([kernel.stages[k].params.index(m.values[k][0]) for m in band] for k in (0, 1))
    assert first == second


# ---------------------------------------------------------------- what isl aligns


def chain(size: Any, count: int, width: int = 3) -> Graph:
    """Stencils of ``width`` neighbours, one behind the other."""
    graph, b, (x,) = start((size,))
    for _ in range(count):
        extent = graph.shape(x)[0] - width + 1
        out = graph.add_array("t", (extent,), dace.float32)
        reads = {f"v{k}": (x, lambda i, k=k: (i + k,)) for k in range(width)}
        b.map((extent,), reads, {"o": (out, lambda i: (i,))}, lambda i, **v: sympy.Add(*v.values()) / width)
        x = out
    return finish(graph, x)


def test_stencils_are_shifted() -> None:
    """Each step of a chain runs two iterations behind the one before it."""
    graph = chain(12, 3)
    kernel = in_one(graph)
    (member,) = polyhedral.outer_band(kernel, polyhedral.schedule(graph, kernel))
    assert [member.values[k][1:] for k in range(3)] == [(1, 0), (1, 2), (1, 4)]
    assert not member.coincident
    scheduled(graph)


def test_what_is_read_in_place_is_coincident() -> None:
    graph, b, (x,) = start((8, 9))
    finish(graph, b.elementwise(lambda v: v * 2, b.elementwise(lambda v: v + 1, x)))
    kernel = in_one(graph)
    band = polyhedral.outer_band(kernel, polyhedral.schedule(graph, kernel))
    assert [m.coincident for m in band] == [True, True]


def test_transposed_loops_are_interchanged() -> None:
    graph, b, (x,) = start((8, 9))
    y = b.elementwise(lambda v: v + 1, x)
    finish(graph, b.elementwise(lambda v: v * 2, b.copy(b.transpose(y, (1, 0)))))
    kernel = in_one(graph)
    band = polyhedral.outer_band(kernel, polyhedral.schedule(graph, kernel))
    first = [kernel.stages[0].params.index(m.values[0][0]) for m in band]
    second = [kernel.stages[1].params.index(m.values[1][0]) for m in band]
    assert first == second[::-1]
    scheduled(graph)


def test_two_readers_of_an_input_are_near() -> None:
    """Reuse of what is read brings statements together that do not depend on each other."""
    graph, b, (x,) = start((8, 9))
    finish(graph, b.elementwise(lambda v: v + 1, x), b.elementwise(lambda v: v * 2, x))
    kernel = in_one(graph)
    assert len(polyhedral.outer_band(kernel, polyhedral.schedule(graph, kernel))) == 2


@pytest.mark.parametrize("size", [3, 4, 5, N])
def test_few_and_open_extents(size: Any) -> None:
    scheduled(chain(size, 1))


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 5), (N, 4)])
def test_pools_of_any_extent(shape: Any) -> None:
    """Also where the last row and column are of no square, and where there is no square."""
    scheduled(bias_and_pool(*shape))


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (0, 4)])
def test_statements_without_iterations_are_refused(shape: Any) -> None:
    """isl would leave them out."""
    graph = bias_and_pool(*shape)
    with pytest.raises(Unsupported, match="has no iteration"):
        polyhedral.schedule(graph, in_one(graph))


# ---------------------------------------------------------------- bounds


def test_operations_are_bounded() -> None:
    graph = chain(64, 6)
    kernel = in_one(graph)
    with pytest.raises(Unsupported, match="isl finds no schedule of k within 10 operations"):
        polyhedral.schedule(graph, kernel, Effort(operations=10))
    assert CONTEXT.get_max_operations() == 0
    polyhedral.schedule(graph, kernel)  # the context works as before


def test_time_is_bounded() -> None:
    graph = chain(64, 3)
    with pytest.raises(Unsupported, match="within 0.0 s"):
        polyhedral.schedule(graph, in_one(graph), Effort(seconds=0.0))


def test_options_of_the_context_are_restored() -> None:
    graph = chain(16, 2)
    before = CONTEXT.get_schedule_max_coefficient()
    polyhedral.schedule(graph, in_one(graph), Effort(coefficient=8))
    assert CONTEXT.get_schedule_max_coefficient() == before


def test_what_is_not_affine_is_refused() -> None:
    graph, b, (x,) = start((4, 4))
    y = b.elementwise(lambda v: v + 1, x)
    out = graph.add_array("t", (4, 4), dace.float32)
    b.map((4, 4), {"v": (y, lambda i, j: (i, sympy.Mod(i * j, 4)))}, {"o": (out, lambda i, j: (i, j))}, lambda i, v: v)
    finish(graph, out)
    kernel = in_one(graph)
    with pytest.raises(Unsupported, match="not affine"):
        polyhedral.schedule(graph, kernel)


def test_halves_of_blocks_are_scheduled() -> None:
    """Unbounded factors and shifts kept isl busy for hours here: the gate of a network in blocks of channels."""
    graph, b, (x,) = start((4, 10, 60, 16))
    y = _out_of_blocks(graph, x)
    value, gate = (b.slice(y, [k], [k + 80], axes=[1]) for k in (0, 80))
    finish(graph, b.elementwise(lambda v, g: v * g, value, gate))
    scheduled(graph)


def _out_of_blocks(graph: Graph, x: str) -> str:
    """The array (N, 16 C, W) of the elements of ``x``: (N, C, W, 16)."""
    (n, c, w, block), dtype = graph.shape(x), graph.dtype(x)
    y = graph.add_array("y", (n, block * c, w), dtype)
    i, j, k, lane = loops = tuple(param(d) for d in range(4))
    stage = Stage(
        loops,
        {"in0": Access(x, loops)},
        {"out0": Access(y, (i, block * j + lane, k))},
        (Assignment(symbol("out0", dtype), symbol("in0", dtype), dtype),),
    )
    graph.add_kernel(Kernel("out_of_blocks", dict(zip(loops, graph.shape(x))), [stage]))
    return y
