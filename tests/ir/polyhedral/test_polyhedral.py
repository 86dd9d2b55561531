"""isl's scheduler on kernels: the paper's listings, what it aligns, its bounds, and that the result is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dace
import islpy as isl
import numpy as np
import pytest
import sympy

from daceopt.errors import Unsupported
from daceopt.ir.edits.attempt import commit
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.legality.legality_isl import violation
from daceopt.ir.polyhedral import polyhedral
from daceopt.ir.polyhedral.polyhedral import Effort
from daceopt.ir.polyhedral.schedule_isl import to_isl
from daceopt.ir.scalar.affine_isl import CONTEXT
from daceopt.ir.scalar.scalar import symbol
from daceopt.ir.scalar.symbols import param
from daceopt.ir.schedule.schedule import Tree
from daceopt.ir.schedule.schedule_text import text
from tests.ir.listings import bias_and_pool, bias_and_sum, in_one, replaced
from tests.transformations.lowered import assert_same, compiled, finish, size_symbol, start, values

GOLDEN = Path(__file__).parent / "golden"
N = size_symbol()
Found = tuple[Graph, Kernel, Tree]


def golden(name: str, found: str) -> None:
    """``found`` is what the file says."""
    assert found == (GOLDEN / f"{name}.txt").read_text()


def committed(graph: Graph, fuse: bool = True) -> tuple[Graph, Any, Tree]:
    """All kernels as one in isl's schedule, which both checks accept and which computes the same."""
    kernel = in_one(graph)
    tree = polyhedral.tree(graph, kernel, polyhedral.schedule(graph, kernel, Effort(fuse=fuse)))
    new, entry = replaced(graph, kernel)
    placed = commit(new, entry, tree).tree
    assert violation(new, kernel, to_isl(new, kernel, placed)) is None
    assert_same(graph, new)
    return new, entry, placed


# ---------------------------------------------------------------- the listings


def test_listing_1_becomes_listing_2() -> None:
    """Scaled and shifted: the maximum is taken as soon as its last operand is there."""
    graph = bias_and_pool()
    _, _, apart = committed(graph, fuse=False)
    golden("listing_1", text(apart))
    _, _, together = committed(graph)
    golden("listing_2", text(together))


def test_listing_3() -> None:
    """The loops of a reduction, and the element-wise statement with it."""
    graph = bias_and_sum()
    golden("listing_3", text(committed(graph, fuse=False)[2]))


def test_listings_compiled() -> None:
    """In isl's order, as C++, against float64."""
    graphs = [committed(bias_and_pool())[0], committed(bias_and_sum())[0], committed(chain(12, 3))[0]]
    for graph, found in zip(graphs, compiled("polyhedral-listings", graphs), strict=True):
        for ours, exact in zip(found, values(graph), strict=True):
            np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-5)


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
    golden("stencils", text(committed(graph)[2]))


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
    committed(graph)


def test_two_readers_of_an_input_are_near() -> None:
    """Reuse of what is read brings statements together that do not depend on each other."""
    graph, b, (x,) = start((8, 9))
    finish(graph, b.elementwise(lambda v: v + 1, x), b.elementwise(lambda v: v * 2, x))
    kernel = in_one(graph)
    assert len(polyhedral.outer_band(kernel, polyhedral.schedule(graph, kernel))) == 2
    apart = polyhedral.schedule(graph, kernel, Effort(fuse=False))
    assert polyhedral.outer_band(kernel, apart) == []


@pytest.mark.parametrize("size", [3, 4, 5, N])
def test_few_and_open_extents(size: Any) -> None:
    committed(chain(size, 1))


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 5), (N, 4)])
def test_pools_of_any_extent(shape: Any) -> None:
    """Also where the last row and column are of no square, and where there is no square."""
    committed(bias_and_pool(*shape))


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
    before = CONTEXT.get_schedule_serialize_sccs()
    polyhedral.schedule(graph, in_one(graph), Effort(fuse=False))
    assert CONTEXT.get_schedule_serialize_sccs() == before


def test_what_is_not_affine_is_refused() -> None:
    graph, b, (x,) = start((4, 4))
    y = b.elementwise(lambda v: v + 1, x)
    out = graph.add_array("t", (4, 4), dace.float32)
    b.map((4, 4), {"v": (y, lambda i, j: (i, sympy.Mod(i * j, 4)))}, {"o": (out, lambda i, j: (i, j))}, lambda i, v: v)
    finish(graph, out)
    kernel = in_one(graph)
    with pytest.raises(Unsupported, match="not affine"):
        polyhedral.schedule(graph, kernel)


def test_shifts_begin_at_zero() -> None:
    """A band of isl that begins elsewhere."""
    graph = chain(12, 2)
    kernel = in_one(graph)
    found = polyhedral.schedule(graph, kernel)
    band = found.get_root().child(0)
    functions = band.band_get_partial_schedule()
    shift = isl.MultiVal.zero(functions.get_space()).set_val(0, isl.Val(-5))
    moved = band.band_shift(isl.MultiUnionPwAff.multi_val_on_domain(functions.domain(), shift)).get_schedule()
    assert polyhedral.tree(graph, kernel, moved) == polyhedral.tree(graph, kernel, found)


def test_halves_of_blocks_are_scheduled() -> None:
    """Unbounded factors and shifts kept isl busy for hours here: the gate of a network in blocks of channels."""
    graph, b, (x,) = start((4, 10, 60, 16))
    y = _out_of_blocks(graph, x)
    value, gate = (b.slice(y, [k], [k + 80], axes=[1]) for k in (0, 80))
    finish(graph, b.elementwise(lambda v, g: v * g, value, gate))
    committed(graph)


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
