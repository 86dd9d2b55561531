"""Positions at the border of an array stand before vector loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt.codegen.cpu.kernel_source import kernel_source
from daceopt.codegen.names import Names
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.symbols import Parameter
from daceopt.ir.schedule.schedule import Do, Loop
from daceopt.ops.families.indexing import position
from daceopt.passes.transform import Transformation
from tests.codegen.cpu.kernels import run
from tests.transformations.lowered import finish, size_symbol, start


def source(border: bool, inner: bool = False) -> str:
    """A row of x for each row of y, the one before it, or the first; ``inner``: the border is that of the columns."""
    graph, b, (x,) = start((8, 64))
    out = graph.add_array("y", (8, 64), dace.float32)

    def before(p: sympy.Expr) -> sympy.Expr:
        return sympy.Max(0, p - 1) if border else p

    def place(i: sympy.Expr, j: sympy.Expr) -> tuple[sympy.Expr, ...]:
        return (i, before(j)) if inner else (before(i), j)

    b.map((8, 64), {"v": (x, place)}, {"o": (out, lambda i, j: (i, j))}, lambda i, v: v)
    finish(graph, out)
    (entry,) = graph.kernels()
    commit(graph, entry, edits.bind(loops_of(graph, entry).tree, "i1", "vector"))
    return kernel_source(graph, entry.kernel).text


def test_what_no_lane_changes_is_computed_before_the_loop() -> None:
    lines = [line.strip() for line in source(border=True).splitlines()]
    loop = lines.index("#pragma omp simd")
    assert lines[loop - 1].startswith("const int64_t i2 = ")
    assert any("= p0[i1 + i2]" in line for line in lines[loop:])


def test_what_lanes_change_stays() -> None:
    assert "const int64_t" not in source(border=True, inner=True)


def test_plain_positions_are_as_before() -> None:
    text = source(border=False)
    assert "const int64_t" not in text and "p0[64 * i0 + i1]" in text


def rows_of_a_table(by: str) -> list[str]:
    """Lines of a kernel that copies elements of a table, which an index for each row or for each element chooses."""
    graph, b, (x,) = start((50, 64))
    index = graph.add_input("index", (8,) if by == "row" else (8, 64), dace.int64)
    out = graph.add_array("y", (8, 64), dace.float32)
    place = (lambda i, j: (i,)) if by == "row" else lambda i, j: (i, j)
    reads = {"v": (x, lambda i, j: (None, j)), "k": (index, place)}
    b.map((8, 64), reads, {"o": (out, lambda i, j: (i, j))}, lambda i, v, k: scalar.load(v, position(k, 50)) * 2)
    finish(graph, out)
    (entry,) = graph.kernels()
    commit(graph, entry, edits.bind(loops_of(graph, entry).tree, "i1", "vector"))
    return [line.strip() for line in kernel_source(graph, entry.kernel).text.splitlines()]


def test_an_index_of_a_row_is_looked_up_and_checked_once() -> None:
    lines = rows_of_a_table("row")
    loop = lines.index("#pragma omp simd")  # nothing is checked inside
    assert "dop::index(" in lines[loop - 1] and "= p1[i0];" in "".join(lines[:loop])
    assert not [line for line in lines[loop:] if "dop::index(" in line]


def test_an_index_of_an_element_is_checked_in_the_loop() -> None:
    lines = rows_of_a_table("element")
    loop = lines.index("#pragma omp simd reduction(| : bad)")
    assert [line for line in lines[loop:] if "dop::index(" in line]


def scaled_rows(by_row: bool) -> list[str]:
    """Lines of a kernel that adds the logarithm of a value to each element, one for each row or for each element."""
    graph, b, (x, s) = start((8, 64), (8, 1) if by_row else (8, 64))
    finish(graph, b.elementwise(lambda v, w: v - w - sympy.log(w), x, s))
    (entry,) = graph.kernels()
    commit(graph, entry, edits.bind(loops_of(graph, entry).tree, "i1", "vector"))
    return [line.strip() for line in kernel_source(graph, entry.kernel).text.splitlines()]


def test_a_function_of_a_row_is_called_once() -> None:
    lines = scaled_rows(by_row=True)
    loop = lines.index("#pragma omp simd")
    assert [k for k, line in enumerate(lines) if "logf(" in line] == [loop - 1]
    name = lines[loop - 1].split()[2]
    assert any(line.endswith(f"- {name});") for line in lines[loop:]), "terms are added in the order that they had"


def test_a_function_of_an_element_is_called_in_the_loop() -> None:
    lines = scaled_rows(by_row=False)
    loop = lines.index("#pragma omp simd")
    assert [line for line in lines[loop:] if "logf(" in line]


def rows_with_scale(columns: Any) -> str:
    """Rows of x, each times an element of its own."""
    graph, b, (x, s) = start((8, columns), (8, 1))
    finish(graph, b.elementwise(lambda v, w: v * w, x, s))
    (entry,) = graph.kernels()
    commit(graph, entry, edits.bind(loops_of(graph, entry).tree, "i1", "vector"))
    return kernel_source(graph, entry.kernel).text


def test_an_element_that_no_lane_changes_is_loaded_before_the_loop() -> None:
    lines = [line.strip() for line in rows_with_scale(64).splitlines()]
    loop = lines.index("#pragma omp simd")
    assert lines[loop - 1] == "const float v1 = p1[i0];"
    assert not any("p1[" in line for line in lines[loop:])


def test_it_is_loaded_only_where_the_loop_runs() -> None:
    lines = [line.strip() for line in rows_with_scale(size_symbol()).splitlines()]
    assert lines[lines.index("#pragma omp simd") - 1] == "const float v1 = n0 > 0 ? p1[i0] : float(0);"


def test_an_element_that_is_written_stays() -> None:
    """A sum that is collected where it is read is another one in each iteration."""
    graph, b, (x, s) = start((8, 64), (8, 1))
    finish(graph, b.reduce("sum", lambda v, w: v * w, x, s, axes=[1]))
    (entry,) = graph.kernels()
    commit(graph, entry, edits.bind(loops_of(graph, entry).tree, "i1", "vector"))
    text = kernel_source(graph, entry.kernel).text
    assert text.index("= p1[i0];") < text.index("#pragma omp simd") < text.index("+= ")


def test_rows_of_a_bag_are_looked_up_before_their_columns_are_summed() -> None:
    """One after the other, in an array; the sums stay in registers."""
    graph, b, (x,) = start((50, 64))
    index, out = graph.add_input("index", (4000, 10), dace.int64), graph.add_array("y", (4000, 64), dace.float32)
    reads = {"v": (x, lambda i, r, j: (None, j)), "k": (index, lambda i, r, j: (i, r))}
    writes = {"o": (out, lambda i, r, j: (i, j), "sum")}
    b.map((4000, 10, 64), reads, writes, lambda i, v, k: scalar.load(v, position(k, 50)))
    finish(graph, out)
    for step in ("vectorization", "reduction-ordering", "column-sum-splitting"):
        Transformation.parse(step).run(graph)
    (entry,) = graph.kernels()
    lines = [line.strip() for line in kernel_source(graph, entry.kernel).text.splitlines()]
    loop = lines.index("#pragma omp simd")
    (place,) = (line.split()[1] for line in lines if line.startswith("int64_t") and "_at[10];" in line)
    assert any("dop::index(" in line for line in lines[:loop])
    inside = lines[loop : lines.index("}", loop)]
    assert f"{place.replace('10];', 'i')}" in " ".join(inside) and "dop::index(" not in " ".join(inside)


def test_a_place_that_was_brought_inside_is_not_checked() -> None:
    graph, b, (x, y) = start((50,), (8,))
    index, out = graph.add_input("index", (8,), dace.int64), graph.add_array("y", (8,), dace.float32)
    reads = {"v": (x, lambda i: (None,)), "k": (index, lambda i: (i,)), "f": (y, lambda i: (i,))}
    b.map((8,), reads, {"o": (out, lambda i: (i,))}, lambda i, v, k, f: scalar.load(v, scalar.clamp(k, 50)) * f)
    finish(graph, out)
    (entry,) = graph.kernels()
    text = kernel_source(graph, entry.kernel).text
    assert "dop::index(" not in text and "status" not in text and "dop::minimum(" in text


def every_second_row(dtype: Any = dace.float32) -> Graph:
    """Rows of x at even places and ones between them, nearly as the gradient of a slice with a step has them."""
    graph, b, (x,) = start((4, 16), dtype=dtype)
    out = graph.add_array("y", (8, 16), dtype)

    def element(place: Any, v: Any) -> Any:
        row = scalar.minimum(scalar.maximum(scalar.idiv(place[0], 2), 0), 3)
        return scalar.select(scalar.eq(scalar.pymod(place[0], 2), 0), scalar.load(v, row, place[1]), 1)

    reads = {"v": (x, lambda i, j: (None, None))}
    b.map((8, 16), reads, {"o": (out, lambda i, j: (i, j))}, element)
    finish(graph, out)
    (entry,) = graph.kernels()
    commit(graph, entry, edits.bind(loops_of(graph, entry).tree, "i1", "vector"))
    return graph


def test_places_that_loops_keep_inside_are_not_checked() -> None:
    graph = every_second_row()
    source = kernel_source(graph, graph.kernels()[0].kernel)
    assert "dop::index(" not in source.text and not [a for a in source.arguments if a.kind == "status"]


def test_a_place_beyond_its_axis_is_checked() -> None:
    graph, b, (x,) = start((8, 63))
    out = graph.add_array("y", (8, 64), dace.float32)
    reads = {"v": (x, lambda i, j: (None, None))}
    b.map((8, 64), reads, {"o": (out, lambda i, j: (i, j))}, lambda place, v: scalar.load(v, *place))
    finish(graph, out)
    text = kernel_source(graph, graph.kernels()[0].kernel).text
    assert "dop::index(i1, 63, bad)" in text and "dop::index(i0" not in text


@pytest.mark.parametrize("dtype", [dace.float32, dace.float64, dace.int64, dace.uint8], ids=str)
def test_a_condition_of_a_row_is_a_mask_before_the_loop(dtype: Any, tmp_path: Path) -> None:
    graph = every_second_row(dtype)
    lines = [line.strip() for line in kernel_source(graph, graph.kernels()[0].kernel).text.splitlines()]
    loop = lines.index("#pragma omp simd")
    mask = lines[loop - 1].split()
    assert mask[:2] == ["const", "dop::Mask"] and any(f"dop::select({mask[2]}, " in line for line in lines[loop:])
    x = np.arange(-32, 32).reshape(4, 16).astype(types.to_numpy(dtype))
    if types.is_float(dtype):
        x[1:3] = [[np.nan], [-np.inf]]
    expected = np.ones((8, 16), x.dtype)
    expected[::2] = x
    np.testing.assert_array_equal(run(graph, {graph.inputs[0]: x}, tmp_path)[graph.outputs[0]], expected)


def test_of_loops_of_one_parameter_the_longest_counts_if_it_is_known() -> None:
    first, second, *_ = sizes = [sympy.Symbol(name, integer=True) for name in ("n", "m", "k")]
    p = Parameter("p")

    def is_inside(axis: Any, *extents: Any) -> bool:
        names = Names()
        for extent in extents:
            names.add_loop(Loop(p, extent, Do(0, ())))
        return names.is_inside(sympy.Symbol(names.loop(p), integer=True), axis)

    assert is_inside(9, 4, 9, 7) and not is_inside(8, 4, 9, 7)
    assert is_inside(first + 2, first, first + 2, first + 1) and not is_inside(first, first, first + 1)
    assert not is_inside(first, *sizes) and not is_inside(second, first, second, second)
