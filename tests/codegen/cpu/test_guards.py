"""Guards in compiled kernels: each branch does its part, in one parallel region."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daceopt.codegen.cpu.kernel_source import kernel_source
from daceopt.ir import schedule_edits as edits
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Access, Kernel
from daceopt.ir.schedule_text import parse
from daceopt.ir.symbols import Parameter
from tests.codegen.cpu import kernels
from tests.ir.guarded import SIZES, F, V, blocks, expected, neighbours, random_inputs, stage
from tests.ir.test_schedule_edits import copy
from tests.numerics import assert_within_rounding


@pytest.mark.parametrize("extents", [(21, 13, 40), SIZES])
def test_side_by_side(extents: Any, tmp_path: Path) -> None:
    graph, entry, names = neighbours(extents)
    edits.commit(graph, entry, blocks(edits.of(graph, entry)))
    source = kernel_source(graph, Kernel.extract(graph, entry)).text
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
    edits.commit(graph, entry, edits.stretch(edits.of(graph, entry), "i0", 3))
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
    entry = Kernel("many", extents, stages).emit(graph)
    for y in written:
        graph.add_output(y)
    nests = edits.of(graph, entry).children  # type: ignore[union-attr]
    tree = edits.side_by_side([edits.split(nest, f"i{k}", 4) for k, nest in enumerate(nests)])
    edits.commit(graph, entry, edits.bind(tree, "block", "parallel"))
    text = kernel_source(graph, Kernel.extract(graph, entry)).text
    depths = [len(line) - len(line.lstrip()) for line in text.splitlines() if " && i0 < " in line]
    assert len(depths) == count - 1 and max(depths) <= 2 * 9  # six halvings inside of region and loop
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
    edits.commit(graph, entry, parse("for t < 8:\n  if (t - 3) // 2 >= 0:\n    s0(t - 3)\n"))
    data = random_inputs(graph, {})
    found = kernels.run(graph, data, tmp_path)
    np.testing.assert_array_equal(found[graph.outputs[0]], data[x] + 1)
