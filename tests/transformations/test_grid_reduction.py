"""Reductions in two kernels, for devices whose blocks do not wait for one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dace
import numpy as np
import pytest

from daceopt import recipes
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar
from daceopt.ir.schedule.schedule import Loop, loops, schedule_of
from daceopt.passes.runner import Runner
from daceopt.transformations.hardware.grid_reduction import GridReduction
from daceopt.transformations.hardware.kernel_fission import KernelFission
from tests.codegen.cuda.emulated import run
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import apply, finish, start

CUDA = recipes.get("cuda-kernels")
FEW = GridReduction(blocks=12, rows=2)


def _reduced(shape: tuple[Any, ...], axes: tuple[int, ...], kind: str = "sum", dtype: Any = dace.float32) -> Graph:
    graph, b, (x,) = start(shape, dtype=dtype)
    return finish(graph, b.reduce(kind, lambda v: v * 2, x, axes=list(axes)))


def _data(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {n: rng.standard_normal(graph.shape(n)).astype(np.float32) for n in graph.inputs}


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((24, 40), (0,)), ((3, 1024), (1,)), ((4096,), (0,)), ((6, 3, 4, 64), (0, 2, 3)), ((12, 33), (0,))],
)
def test_parts_are_reduced_and_then_their_results(shape: Any, axes: Any, kind: str, tmp_path: Path) -> None:
    graph = _reduced(shape, axes, kind)
    given = _data(graph)
    if kind == "prod":  # of numbers near to 1
        given = {n: np.float32(0.5) + x / 4096 for n, x in given.items()}
    expected = interpret(graph, given, np.float64)
    changed = graph.copy()
    apply(FEW, changed)
    assert len(changed.kernels()) == 2
    found = interpret(changed, given, np.float64)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)
    Runner(CUDA).run(changed)
    for name, value in run(changed, given, tmp_path).items():
        if name in graph.outputs:
            assert_within_rounding(value, expected[name])


@pytest.mark.parametrize(
    ("shape", "axes"), [((7, 31), (0,)), ((2, 3), (1,)), ((512, 512), (1,)), ((13, 500), (0,)), ((0, 64), (0,))]
)
def test_what_is_short_or_has_no_parts_is_left(shape: Any, axes: Any) -> None:
    graph = _reduced(shape, axes)
    apply(FEW, graph)
    assert len(graph.kernels()) == 1


def test_loops_may_have_any_names() -> None:
    """As in what is left of a fused kernel, whose loops are not numbered from 0."""
    graph, _, (x,) = start((24, 40))
    y = graph.add_array("y", (40,), dace.float32)
    i, j = param(3), param(2)
    code = Assignment(scalar.symbol("o", dace.float32), scalar.symbol("v", dace.float32), dace.float32)
    stage = Stage((i, j), {"v": Access(x, (i, j))}, {"o": Access(y, (j,), "sum")}, (code,))
    graph.add_kernel(Kernel("sums", {i: 24, j: 40}, [stage]))
    given = _data(finish(graph, y))
    expected = interpret(graph, given, np.float64)[y]
    apply(FEW, graph)
    assert len(graph.kernels()) == 2
    np.testing.assert_allclose(interpret(graph, given, np.float64)[y], expected, rtol=1e-12)


def test_sizes_that_are_not_known_are_left() -> None:
    n = dace.symbolic.symbol("n", dace.int64)
    graph = _reduced((n, 64), (0,))
    apply(FEW, graph)
    assert len(graph.kernels()) == 1


def _normalized(channels: int, size: int) -> Graph:
    """Statements that share a few channels: a mean, a variance, what is normalized, and numbers per channel."""
    graph, b, (x,) = start((4, channels, size))
    mean = b.elementwise(lambda v: v / (4 * size), b.reduce("sum", None, x, axes=[0, 2], keepdims=True))
    square = b.reduce("sum", lambda v, m: (v - m) ** 2, x, mean, axes=[0, 2], keepdims=True)
    scale = b.elementwise(lambda v: (v / (4 * size) + 1e-5) ** -0.5, square)
    y = b.elementwise(lambda v, m, s: (v - m) * s, x, mean, scale)
    graph = finish(graph, y, mean, scale)
    Runner(recipes.get("cpu"), None).run(graph, levels=("local",))
    return graph


def test_statements_of_few_channels_get_kernels_of_their_own(tmp_path: Path) -> None:
    graph = _normalized(8, 4096)
    given = _data(graph)
    expected = interpret(graph, given, np.float64)
    Runner(CUDA).run(graph)
    kernels = [entry.kernel for entry in graph.kernels()]
    widths = [_blocks(list(loops(schedule_of(k)))) for k in kernels]
    large = [w for k, w in zip(kernels, widths) if any(n == 4096 or n == 1024 for n in k.extents.values())]
    assert len(kernels) > 3 and min(large, default=0) >= 32
    found = run(graph, given, tmp_path)
    for name in graph.outputs:
        assert_within_rounding(found[name], expected[name])


def _blocks(found: list[Loop]) -> int:
    return int(np.prod([loop.extent for loop in found if loop.kind == "grid"], initial=1))


def test_many_channels_keep_their_kernel() -> None:
    graph = _normalized(1024, 16)
    before = len(graph.kernels())
    apply(KernelFission(), graph)
    assert len(graph.kernels()) == before


def _gradients_of_rows(rows: int, columns: int) -> Graph:
    """As of a layer norm: statements that share rows, of which two give a number for each column."""
    graph, _, (x, y) = start((rows, columns), (rows, columns))
    z, scale, shift = (
        graph.add_array(n, s, dace.float32) for n, s in (("z", (rows, columns)), ("s", (columns,)), ("t", (columns,)))
    )
    i, j = param(0), param(1)
    u, v, t, o = (scalar.symbol(n, dace.float32) for n in "uvto")
    both = {"u": Access(x, (i, j)), "v": Access(y, (i, j))}
    code = (Assignment(o, u * v, dace.float32),)
    stages = [
        Stage((i, j), both, {"o": Access("total", (0,), "sum")}, code),
        Stage(
            (i, j),
            both | {"t": Access("total", (0,))},
            {"o": Access(z, (i, j))},
            (Assignment(o, u - v * t, dace.float32),),
        ),
        Stage((i, j), both, {"o": Access(scale, (j,), "sum")}, code),
        Stage((i, j), {"v": Access(x, (i, j))}, {"o": Access(shift, (j,), "sum")}, (Assignment(o, v, dace.float32),)),
    ]
    graph.add_kernel(Kernel("rows", {i: rows, j: columns}, stages, (i,), {"total": (dace.float32, (1,))}))
    return finish(graph, z, scale, shift)


@pytest.mark.parametrize("columns", [40, 33])
def test_sums_over_the_same_rows_read_them_once(columns: int, tmp_path: Path) -> None:
    graph = _gradients_of_rows(24, columns)
    assert len(graph.kernels()) == 1
    given = _data(graph)
    expected = interpret(graph, given, np.float64)
    apply(KernelFission(), graph)
    sums = [k for k in _kernels(graph) if len(k.writes()) == 2]
    assert len(graph.kernels()) == 2 and len(sums) == 1
    (stage,) = sums[0].stages
    assert len(stage.reads) == 2  # each once, though both statements read one of them
    apply(FEW, graph)
    assert len(graph.kernels()) == 3  # the second kernel adds up the parts of both
    found = interpret(graph, given, np.float64)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)
    Runner(CUDA).run(graph)
    ran = run(graph, given, tmp_path)
    for name in graph.outputs:
        assert_within_rounding(ran[name], expected[name])


def _kernels(graph: Graph) -> list[Kernel]:
    return [entry.kernel for entry in graph.kernels()]
