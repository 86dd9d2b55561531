"""The frame: calls in order, one unit for each distinct kernel, flat buffers."""

from __future__ import annotations

import re

import dace
import pytest
import sympy

from daceopt.codegen.frame import STATUS, ProgramFrame
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar

F = dace.float32


def _layers(count: int) -> Graph:
    graph = Graph("layers")
    b = Builder(graph)
    x = graph.add_input("x", (64, 32), F)
    for _ in range(count):
        x = b.elementwise(lambda v: sympy.exp(v), x)
        x = b.elementwise(lambda v: v + 1, x)
    graph.add_output(x)
    return graph


def test_equal_kernels_are_one_unit_called_in_order() -> None:
    graph = _layers(6)
    program = ProgramFrame(graph)
    assert len(program.kernels) == 2
    calls = re.findall(r"^(k_[0-9a-f]{16})\(", program.body, re.M)
    assert calls == [program.calls[n] for n in graph.nodes()]
    for name, kernel in program.kernels.items():
        assert sum(f" {name}(" in line for line in program.declarations) == 1
        assert f"void {name}(" in kernel.unit


def test_views_and_library_calls_use_the_root_buffer() -> None:
    n = dace.symbolic.symbol("n", dace.int64)
    graph = Graph("views")
    b = Builder(graph)
    x = graph.add_input("x", (n, 40), F)
    y = b.elementwise(lambda v: v + 1, x)
    part = b.slice(y, [2], [30], [1], [1])
    out = graph.add_array("out", (n, 28), F)
    call = dace.nodes.Tasklet("lib", {"A": dace.pointer(F)}, {"Y": dace.pointer(F)}, "f(A, Y, n);", dace.Language.CPP)
    graph.add_node(call, {"A": part}, {"Y": out})
    program = ProgramFrame(graph)
    assert program.buffers.keys() == {out, x, y}
    assert f"float* A = {y} + INT64_C(2);" in program.body
    assert "f(A, Y, n);" in program.body


def test_kernels_that_check_indices_get_the_status() -> None:
    graph = Graph("gather")
    b = Builder(graph)
    table, ids = graph.add_input("table", (10,), F), graph.add_input("ids", (5,), dace.int64)
    out = graph.add_array("out", (5,), F)
    reads = {"t": (table, lambda i: (None,)), "k": (ids, lambda i: (i,))}
    b.map((5,), reads, {"o": (out, lambda i: (i,))}, lambda params, t, k: scalar.load(t, k))
    program = ProgramFrame(graph)
    assert STATUS in program.buffers


def test_nodes_that_nobody_implemented_are_refused() -> None:
    graph = Graph("raw")
    x, y = graph.add_input("x", (4,), F), graph.add_array("y", (4,), F)
    graph.add_node(dace.nodes.Tasklet("py", {"a": F}, {"b": F}, "b = a"), {"a": x}, {"b": y})
    with pytest.raises(Unsupported, match="implement library nodes"):
        ProgramFrame(graph)
