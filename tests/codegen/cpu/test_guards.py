"""Guards in compiled kernels: each branch does its part, in one parallel region."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daceopt import libs
from daceopt.codegen import trial
from daceopt.codegen.assemble import load_program
from daceopt.codegen.build import build
from daceopt.codegen.cpu.kernel_source import kernel_source
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Access, Kernel
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar.functions import idiv
from daceopt.ir.scalar.symbols import Parameter, size
from daceopt.ir.schedule.schedule_text import parse
from tests.codegen.cpu import kernels
from tests.ir.edits.test_schedule_edits import copy
from tests.ir.guarded import SIZES, F, V, blocks, expected, neighbours, random_inputs, stage
from tests.ir.pooled import expected as pooled_by_hand
from tests.ir.pooled import fused, pooled
from tests.numerics import assert_within_rounding


@pytest.mark.parametrize("extents", [(21, 13, 40), SIZES])
def test_side_by_side(extents: Any, tmp_path: Path) -> None:
    graph, entry, names = neighbours(extents)
    commit(graph, entry, blocks(loops_of(graph, entry).tree))
    source = kernel_source(graph, entry.kernel).text
    assert source.count("omp parallel") == 1
    for m, n, k in [(21, 13, 40), (0, 1, 16), (16, 0, 0)] if extents is SIZES else [extents]:
        values = {"m": m, "n": n, "k": k}
        data = random_inputs(graph, values)
        found = kernels.run(graph, data, tmp_path, values)
        for name, value in expected(data, names).items():
            assert_within_rounding(found[name], value)


@pytest.mark.parametrize("rows", [5, 6])
def test_stretched(rows: int, tmp_path: Path) -> None:
    graph, entry = copy((rows, 7))
    commit(graph, entry, edits.stretch(loops_of(graph, entry).tree, "i0", 3))
    data = random_inputs(graph, {})
    found = kernels.run(graph, data, tmp_path)
    assert_within_rounding(found[graph.outputs[0]], next(iter(data.values())).astype(float) + 1)


def test_fifty_branches_are_found_by_halves(tmp_path: Path) -> None:
    count = 50
    graph = Graph("many")
    stages, extents, read, written = [], {}, [], []
    for k in range(count):
        extent, p = 3 + k % 7, Parameter(f"i{k}")
        x, y = graph.add_input(f"x{k}", (extent,), F), graph.add_array(f"y{k}", (extent,), F)
        stages.append(stage((p,), Access(x, (p,)), Access(y, (p,)), V * (k + 1)))
        extents[p] = extent
        read.append(x)
        written.append(y)
    entry = graph.add_kernel(Kernel("many", extents, stages))
    for y in written:
        graph.add_output(y)
    nests = loops_of(graph, entry).tree.children  # type: ignore[union-attr]
    tree = edits.side_by_side([edits.split(nest, f"i{k}", 4) for k, nest in enumerate(nests)])
    commit(graph, entry, edits.bind(tree, "block", "parallel"))
    text = kernel_source(graph, entry.kernel).text
    guards = [line for line in text.splitlines() if " && i0 < " in line or "if (i0 == " in line]
    depths = [len(line) - len(line.lstrip()) for line in guards]
    assert len(depths) == count and max(depths) <= 2 * 9  # six halvings inside of region and loop
    data = random_inputs(graph, {})
    found = kernels.run(graph, data, tmp_path)
    for k, (x, y) in enumerate(zip(read, written)):
        np.testing.assert_array_equal(found[y], data[x] * np.float32(k + 1))


def test_conditions_are_evaluated_as_they_are_meant_where_they_do_not_hold(tmp_path: Path) -> None:
    """``(t - 3) // 2 >= 0`` does not hold for t = 2, whose quotient C++ would round up to 0."""
    graph = Graph("floors")
    x = graph.add_input("x", (5,), F)
    graph.add_output(Builder(graph).elementwise(lambda v: v + 1, x))
    (entry,) = graph.kernels()
    commit(graph, entry, parse("for t < 8:\n  if (t - 3) // 2 >= 0:\n    s0(t - 3)\n"))
    data = random_inputs(graph, {})
    found = kernels.run(graph, data, tmp_path)
    np.testing.assert_array_equal(found[graph.outputs[0]], data[x] + 1)


@pytest.mark.parametrize("shape", [(7, 10), (size("m"), size("n"))])
@pytest.mark.parametrize("rows", [0, 4])
def test_a_sum_and_a_pool_in_one_loop_nest(shape: tuple[Any, Any], rows: int, tmp_path: Path) -> None:
    """Listing 2 of APOLLO (Zhao et al., MLSys 2022); ``rows``: so many at once, by threads."""
    graph, entry, names = pooled(*shape)
    tree = fused(loops_of(graph, entry).tree, *shape)
    if rows:
        tree = edits.bind(edits.split(tree, "i0", rows), "i0_block", "parallel")
    commit(graph, entry, tree)
    values = {"m": 7, "n": 10}
    data = random_inputs(graph, values)
    found = kernels.run(graph, data, tmp_path, values)
    for name, value in pooled_by_hand(data, names).items():
        assert_within_rounding(found[name], value)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("others", [True, False])
def test_a_program_that_hands_an_array_on(kept: bool, others: bool) -> None:
    """The array has its memory, whether anybody else reads it or not."""
    graph, entry, names = pooled(7, 10, kept)
    b = Builder(graph)
    graph.add_output(b.elementwise(lambda v: v * 3, names["pool"]))
    if others:
        graph.add_output(b.elementwise(lambda v: v + 1, names["a"]))
    commit(graph, entry, fused(loops_of(graph, entry).tree, 7, 10))
    data = random_inputs(graph, {})
    roles = {n: f"input:{k}" for k, n in enumerate(graph.inputs)}
    roles |= {n: f"output:{k}" for k, n in enumerate(graph.outputs)}
    (key,) = build(f"handed on {kept} {others}", [(graph, roles)], libs.implement)
    found = trial.run(load_program(key), {roles[n]: data[n] for n in graph.inputs}).outputs
    wanted = interpret(graph, data, dtype=np.float64)
    for name in graph.outputs:
        assert_within_rounding(found[roles[name]], wanted[name])


def test_a_read_of_an_element_that_may_be_new(tmp_path: Path) -> None:
    """``y[i] = a[i // 2]`` behind ``a[i] = 2 * x[i]`` in one iteration: for i = 0, it is the element just written."""
    graph = Graph("halves")
    x = graph.add_input("x", (9,), F)
    a, y = graph.add_array("a", (9,), F), graph.add_array("y", (9,), F)
    p = Parameter("i0")
    stages = [
        stage((p,), Access(x, (p,)), Access(a, (p,)), V * 2),
        stage((p,), Access(a, (idiv(p, 2),)), Access(y, (p,)), V + 1),
    ]
    entry = graph.add_kernel(Kernel("halves", {p: 9}, stages))
    for name in (a, y):
        graph.add_output(name)
    commit(graph, entry, parse("for i0 < 9:\n  s0(i0)\n  s1(i0)\n"))
    data = random_inputs(graph, {})
    found = kernels.run(graph, data, tmp_path)
    np.testing.assert_array_equal(found[y], data[x][np.arange(9) // 2] * 2 + 1)
    np.testing.assert_array_equal(interpret(graph, data)[y], found[y])
