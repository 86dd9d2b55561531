"""nvcc takes every form that kernels have, without a warning."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dace
import pytest
import sympy

from daceopt import recipes
from daceopt.codegen.cuda import toolchain
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from tests.codegen.cuda.emulated import sources_of

F = dace.float32
_FUNCTIONS: tuple[Any, ...] = (sympy.exp, sympy.tanh, sympy.erf, scalar.softplus, scalar.sigmoid, scalar.log1p)
_FUNCTIONS += (scalar.isinf, scalar.erfc, scalar.round_even, lambda v: scalar.power(v, v), lambda v: scalar.fmod(v, 3))


def _elements() -> Graph:
    graph = Graph("elements")
    b = Builder(graph)
    for dtype in types.NARROW:
        x = graph.add_input("x", (5, 40), dtype)
        b.reduce("max", None, b.elementwise(lambda v: v * 2 + 1, x), axes=(1,))
    for dtype in (dace.int8, dace.int64, dace.uint16, dace.bool_, dace.float64):
        x = graph.add_input("x", (20, 90), dtype)
        b.reduce("max", None, x, axes=(1,)), b.reduce("min", None, x, axes=(0,))
    x, n = graph.add_input("x", (40, 300), F), dace.symbolic.symbol("n", dace.int64)
    for function in _FUNCTIONS:
        b.elementwise(function, x)
    b.elementwise(sympy.cos, graph.add_input("open", (n, 7), F))
    table, out = graph.add_input("table", (10, 16), F), graph.add_array("out", (5, 16), F)
    reads = {"t": (table, lambda i, j: (None, j)), "k": (graph.add_input("k", (5,), dace.int64), lambda i, j: (i,))}
    b.map((5, 16), reads, {"o": (out, lambda i, j: (i, j))}, lambda params, t, k: scalar.load(t, k))
    return graph


def _softmax(columns: int) -> Graph:
    graph = Graph("softmax")
    b, x = Builder(graph), graph.add_input("x", (40, columns), F)
    top = b.reduce("max", None, x, axes=[1], keepdims=True)
    e = b.elementwise(lambda v, t: sympy.exp(v - t), x, top)
    graph.add_output(b.elementwise(lambda u, v: u / v, e, b.reduce("sum", None, e, axes=[1], keepdims=True)))
    Runner(Recipe("fusion", ("map-fusion",))).run(graph)
    return graph


def _units() -> Iterator[str]:
    for graph in (_elements(), _softmax(300), _softmax(3000)):
        Runner(recipes.get("cuda-kernels")).run(graph)
        yield from (source.unit for source in sources_of(graph))


@pytest.mark.slow
@pytest.mark.skipif(toolchain.nvcc() is None, reason="there is no nvcc")
def test_every_form_compiles(tmp_path: Path) -> None:
    units = list(dict.fromkeys(_units()))
    assert len(units) > 40
    (tmp_path / "all.cu").write_text("\n".join(units))
    command = [*toolchain.command(), "-Werror", "all-warnings", "-x", "cu", "-c", "all.cu", "-o", "all.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
