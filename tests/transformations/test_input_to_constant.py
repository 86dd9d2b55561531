"""Constants of one value are literals of the code that read them, in their own type."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest

from daceopt.ir.scalar import scalar
from daceopt.ir.text.render import render
from daceopt.transformations.local.input_to_constant import InputToConstant
from tests.transformations.lowered import apply, finish, start


def summed(value: Any, dtype: Any = np.float32) -> Any:
    graph, b, (x,) = start((3, 4))
    c = b.constant(np.asarray(value, dtype))
    return finish(graph, b.elementwise(lambda v, w: v * w, x, b.expand(c, (3, 4)) if c and np.ndim(value) else c))


@pytest.mark.parametrize("value", [np.full((3, 4), 2.5), np.zeros((3, 4)), np.full((3, 1), -1.0), np.float32(0.0)])
def test_arrays_of_one_value(value: Any) -> None:
    """Zero, too: a product with it is NaN where the other factor is infinite."""
    graph = summed(value)
    assert len(apply(InputToConstant(), graph, special=True).sites) == 1
    assert not graph.constants and len(graph.inputs_of(graph.nodes()[0])) == 1


def test_golden() -> None:
    graph = summed(np.zeros((3, 4)))
    InputToConstant().run(graph)
    assert render(graph) == (
        "graph test(x_1: float32[3, 4]) -> k_4\n"
        "  k_4: float32[3, 4] = kernel k\n"
        "    s0(i0 < 3, i1 < 4):\n"
        "      in0 <- x_1[i0, i1]\n"
        "      out0: float32 = in0*cast_float32(0)\n"
        "      out0 -> k_4[i0, i1]\n"
    )


@pytest.mark.parametrize(
    "value", [np.arange(12.0).reshape(3, 4), np.full((3, 4), np.nan), np.full((3, 4), -0.0), [[0.0], [-0.0], [0.0]]]
)
def test_other_values_are_read(value: Any) -> None:
    graph = summed(value)
    assert apply(InputToConstant(), graph, special=True).sites == [] and graph.constants


def test_conditions() -> None:
    graph, b, (x,) = start((3, 4))
    mask = b.constant(np.ones((3, 4), bool))
    finish(graph, b.elementwise(lambda m, v: scalar.select(m, v, 0), mask, x))
    assert len(apply(InputToConstant(), graph, special=True).sites) == 1 and not graph.constants


@pytest.mark.parametrize("value", [True, False])
def test_flags_that_are_results_themselves(value: bool) -> None:
    """As a number: SymPy's own truth values have no type in scalar code."""
    graph, b, (x,) = start((3, 4))
    out = graph.add_array("out", (3, 4), dace.bool_)
    b.elementwise(lambda m, v: m, b.constant(np.full((3, 4), value)), x, out=out)
    assert len(apply(InputToConstant(), finish(graph, out), special=True).sites) == 1
    (assignment,) = graph.nodes()[0].kernel.stages[0].assignments
    assert assignment.expr == int(value)
    assert scalar.Types({}).strong(assignment.expr) == dace.int64 and assignment.dtype == dace.bool_


def test_run_time_indices_may_be_outside() -> None:
    graph, b, (x,) = start((3,))
    table = b.constant(np.ones(5, np.float32))
    out = graph.add_array("out", (3,), dace.float32)
    index = b.constant(np.array([0, 1, 2]))
    reads = {"t": (table, lambda *i: (None,)), "k": (index, lambda *i: i), "v": (x, lambda *i: i)}
    b.map((3,), reads, {"out": (out, lambda *i: i)}, lambda i, t, k, v: v + scalar.load(t, k))
    assert apply(InputToConstant(), finish(graph, out)).sites == []
