"""Flops by hand counts, rooflines on small graphs, bytes of gathers."""

from __future__ import annotations

import dace
import pytest
import sympy

from daceopt import cost, ops
from daceopt.cost.machine import Machine
from daceopt.cost.work import operations
from daceopt.errors import DaceoptError, Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar

MACHINE = Machine("test", 2, 32 << 10, 1 << 20, 8 << 20, ((1 << 20, 100e9), (1 << 30, 10e9)), 1e12)
X, Y = scalar.symbol("x", dace.float32), scalar.symbol("y", dace.float32)
OUT = scalar.symbol("out", dace.float32)


@pytest.mark.parametrize(
    ("expr", "count"),
    [
        (X, 0),
        (-X, 0),
        (X + Y, 1),
        (X - Y, 1),
        (2 * X + Y, 2),
        (X * Y * 3, 2),
        (X**2, 1),
        (X**5, 3),
        (1 / X, 4),
        (Y / X, 4),
        (sympy.sqrt(X), 4),
        (1 / sympy.sqrt(X), 8),
        (sympy.exp(X) + sympy.exp(X) * Y, 14),
        (scalar.maximum(X, 0), 1),
        (scalar.select(scalar.lt(X, Y), X, Y), 2),
        (sympy.Integer(3) * sympy.pi, 0),
    ],
)
def test_operations_are_counted(expr: sympy.Expr, count: int) -> None:
    assert operations([Assignment(OUT, expr, dace.float32)]) == count


def test_a_kernel_works_once_per_iteration_and_reductions_add() -> None:
    graph = Graph("g")
    x = graph.add_input("x", (4, 8), dace.float32)
    b = Builder(graph)
    graph.add_output(b.elementwise(lambda v: v * v + 1, x))
    graph.add_output(b.reduce("sum", lambda v: v * v, x, axes=(1,)))
    assert [int(cost.flops(graph, n)) for n in graph.kernels()] == [2 * 32, 2 * 32]


def test_the_roofline_is_bytes_or_flops_whichever_takes_longer() -> None:
    graph = Graph("g")
    a, w = graph.add_input("a", (128, 256), dace.float32), graph.add_input("w", (256, 64), dace.float32)
    b = Builder(graph)
    product = b.matmul(a, w)
    graph.add_output(b.elementwise(lambda v: v + 1, product))
    matmul, add = cost.roofline(graph, machine=MACHINE)
    assert matmul.flops == 2 * 128 * 256 * 64
    assert matmul.bytes == 4 * (128 * 256 + 256 * 64 + 128 * 64)
    assert matmul.seconds == pytest.approx(matmul.flops / 1e12)
    assert (add.read, add.written, add.flops) == (4 * 8192, 4 * 8192, 8192)
    assert add.seconds == pytest.approx(add.bytes / 100e9)


def test_symbolic_sizes_are_resolved_or_asked_for() -> None:
    graph = Graph("g")
    n = dace.symbolic.symbol("s0", dace.int64)
    x = graph.add_input("x", (n, 8), dace.float32)
    graph.symbols["s0"] = (x, 0)
    graph.add_output(Builder(graph).elementwise(lambda v: v * 2, x))
    (found,) = cost.roofline(graph, {"s0": 5}, MACHINE)
    assert (found.bytes, found.flops) == (2 * 4 * 40, 40)
    with pytest.raises(DaceoptError, match="s0"):
        cost.roofline(graph, {}, MACHINE)


def test_operators_have_no_known_work() -> None:
    graph = Graph("g")
    x = graph.add_input("x", (4,), dace.float32)
    graph.add_operator("Relu", [x], [graph.add_array("y", (4,), dace.float32)])
    with pytest.raises(Unsupported, match="lower operators first"):
        cost.roofline(graph, machine=MACHINE)


def test_a_gather_reads_what_it_picks() -> None:
    graph = Graph("g")
    x, k = graph.add_input("x", (1000, 16), dace.float32), graph.add_input("k", (8,), dace.int64)
    y = graph.add_array("y", (8, 16), dace.float32)
    graph.add_operator("Gather", [x, k], [y])
    graph.add_output(y)
    ops.lower_all(graph)
    moved = cost.data_movement(graph)
    assert (int(moved.read), int(moved.written)) == (8 * 16 * 4 + 8 * 8, 8 * 16 * 4)
