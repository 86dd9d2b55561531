"""Edits of loops as steps with options: before, after, what is refused and why, and that numbers stay."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import sympy

from daceopt import recipes
from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.schedule.schedule import loops, schedule_of
from daceopt.ir.schedule.schedule_text import text
from daceopt.passes.runner import Runner
from daceopt.passes.transform import Transformation
from tests.ir.edits.test_schedule_edits import two_stages
from tests.ir.isl_checking import assert_agrees
from tests.ir.stencils import blur
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import apply, compiled, finish, misses, size_symbol, start, values


def plus_one(shape: tuple[Any, ...] = (64, 70)) -> Graph:
    graph, b, (x,) = start(shape)
    return finish(graph, b.elementwise(lambda v: v + 1, x))


def open_rows() -> Graph:
    return plus_one((size_symbol(), 70))


def rows(shape: tuple[Any, ...] = (64, 70)) -> Graph:
    graph, b, (x,) = start(shape)
    return finish(graph, b.reduce("sum", None, x, axes=[1]))


def columns() -> Graph:
    """Sums of rows, all of them at once."""
    graph = rows()
    after(graph, "map-interchange{order=('i1', 'i0')}")
    return graph


def pair() -> Graph:
    return two_stages()[0]


def product() -> Graph:
    """A matrix product in loops, as a naive kernel has it."""
    graph, b, (x, y) = start((32, 24), (24, 48))
    left, right = b.unsqueeze(x, [1]), b.unsqueeze(b.transpose(y, [1, 0]), [0])
    return finish(graph, b.reduce("sum", lambda u, v: u * v, left, right, axes=[2]))


def after(graph: Graph, *steps: str) -> str:
    for step in steps:
        assert len(apply(Transformation.parse(step), graph).sites) == 1, step
    (entry,) = graph.kernels()
    kernel = entry.kernel
    assert_agrees(graph, kernel)
    return "\n" + text(schedule_of(kernel)).rstrip()


def test_map_tiling() -> None:
    assert (
        after(plus_one(), "map-tiling")
        == """
for i0_block < 2:
  for i1_block < 3:
    for i0 < 32:
      for i1 < 32, 70 - 32*i1_block:
        s0(i0 + 32*i0_block, i1 + 32*i1_block)"""
    )
    assert (
        after(plus_one(), "map-tiling{size=(16,), loops='i1'}")
        == """
for i0 < 64:
  for i1_block < 5:
    for i1 < 16, 70 - 16*i1_block:
      s0(i0, i1 + 16*i1_block)"""
    )
    assert "for i0_block < (n + 31) // 32:" in after(plus_one((size_symbol(), 70)), "map-tiling{loops='i0'}")


def test_map_interchange() -> None:
    assert (
        after(rows(), "map-interchange{order=('i1', 'i0')}")
        == """
accumulate s0.out0:
  for i1 < 70:
    for i0 < 64:
      s0(i0, i1)"""
    )


def test_local_storage_of_what_is_read() -> None:
    graph = plus_one((64, 70))
    found = after(graph, "map-tiling{size=8}", "local-storage{array='x*', loop='i1_block'}")
    assert "local x_1_3 in thread:" in found and "s0(i0_block, i1_block, x_1_3_0, x_1_3_1)" in found


def test_local_storage_of_what_is_written() -> None:
    found = after(rows(), "map-tiling{size=16, loops='i0'}", "local-storage{array='k*', loop='i0_block'}")
    assert found.count("for ") == 4 and "local " in found


def test_loop_binding() -> None:
    found = after(plus_one(), "loop-binding{loops='i0', kind='parallel'}", "loop-binding{loops='i1', kind='vector'}")
    assert "parallel for i0 < 64:" in found and "vector for i1 < 70:" in found
    assert "unroll for i1 < 70:" in after(plus_one(), "loop-binding{loops='i1', kind='unroll'}")


def test_loop_distribution_takes_back_loop_fusion() -> None:
    separate = after(pair())
    graph = pair()
    assert after(graph, "loop-fusion") != separate
    assert after(graph, "loop-distribution{loop='i1'}") == separate


def test_loop_peeling() -> None:
    found = after(plus_one(), "loop-peeling{loop='i0', first=2, last=1}")
    assert [line for line in found.splitlines() if line.startswith("for i0")] == [
        *("for i0_first < 2:", "for i0 < 61:", "for i0_last < 1:")
    ]


def test_micro_kernel_call() -> None:
    assert "call product:" in after(product(), "micro-kernel-call{loops=('i0', 'i1', 'i2')}")


def test_computation_placement() -> None:
    graph = blur(100)[0]
    found = after(graph, "map-tiling{loops='i1'}", "computation-placement{statements=(0,), loop='i1_block'}")
    assert found.count("for ") == 3 and "_0 < 34, 102 - 32*i1_block:" in found
    told = misses(apply(Transformation.parse("computation-placement{statements=(7,), loop='i1'}"), graph))
    assert "there is no statement s7" in told


@pytest.mark.parametrize(
    ("graph", "step", "reason"),
    [
        (plus_one, "map-interchange", "expected two loops or more"),
        (plus_one, "map-interchange{order=('i1', 'i7')}", "does not stand directly inside"),
        (plus_one, "map-tiling{loops='j'}", "there is no loop over j; the loops are over i0, i1"),
        (plus_one, "local-storage{array='x*'}", "names no loop"),
        (plus_one, "local-storage{array='x*', loop='i9'}", "there is no loop over i9"),
        (rows, "local-storage{array='k*', loop='i1'}", "reduced over i1"),
        (rows, "loop-binding{loops='i1', kind='block'}", "a block loop is one of an accelerator"),
        (plus_one, "loop-binding", "names no loop"),
        (columns, "loop-binding{loops='i0'}", "threads of the parallel loop over i0 would share the accumulator of s0"),
        (plus_one, "loop-binding{loops='i0', kind='vector'}", "stands inside of a vector loop"),
        (
            lambda: plus_one((size_symbol(), 70)),
            "loop-binding{loops='i0', kind='unroll'}",
            "expected a number to unroll",
        ),
        (plus_one, "loop-distribution", "names no loop"),
        (rows, "loop-peeling{loop='i1'}", "reduced over i1"),
        (pair, "loop-peeling{loop='i0'}", "has locals of its own"),
        (plus_one, "loop-peeling", "names no loop"),
        (plus_one, "computation-placement", "expected numbers of statements"),
        (pair, "computation-placement{statements=(0,), loop='i1'}", "lives in one iteration of i0 already"),
        (plus_one, "micro-kernel-call{loops=('i0', 'i1')}", "does not sum into one array"),
        (plus_one, "micro-kernel-call{loops=('i1', 'i2')}", "the innermost loops around s0 are not those"),
    ],
)
def test_what_is_not_legal_is_a_near_miss_and_changes_nothing(graph: Any, step: str, reason: str) -> None:
    found = graph()
    before = text(schedule_of(found.kernels()[0].kernel))
    told = misses(apply(Transformation.parse(step), found))
    assert told and reason in told
    assert text(schedule_of(found.kernels()[0].kernel)) == before


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("map-tiling{size=0}", "a size of 1 or more"),
        ("map-tiling{size=(8, 8)}", "for all loops or for each"),
        ("local-storage{scope='far'}", "expected one of register"),
        ("loop-binding{kind='vectr'}", "did you mean 'vector'"),
        ("loop-peeling{last=0}", "1 or more together"),
        ("micro-kernel-call{statement=-1}", "expected 0 or more"),
        ("map-tiling{sizes=8}", "no option 'sizes'"),
    ],
)
def test_options_that_cannot_be(step: str, message: str) -> None:
    with pytest.raises(DaceoptError, match=message):
        Transformation.parse(step)


def test_kernels_are_chosen_by_name() -> None:
    graph = plus_one()
    assert misses(apply(Transformation.parse("map-tiling{kernel='softmax*'}"), graph)) == ""
    assert len(apply(Transformation.parse("map-tiling{kernel='k*'}"), graph).sites) == 1


def _random_steps(graph: Graph, draw: random.Random) -> None:
    """Steps with options that fit the loops that are there, legal or not."""
    for _ in range(4):
        (entry,) = graph.kernels()
        names = [str(loop.param) for loop in loops(schedule_of(entry.kernel))]
        one, other = draw.choice(names), draw.choice(names)
        steps = [
            f"map-tiling{{size={draw.choice((2, 3, 8))}, loops={one!r}}}",
            f"map-interchange{{order=({one!r}, {other!r})}}",
            f"local-storage{{array={draw.choice(('x*', 'k*'))!r}, loop={one!r}}}",
            f"loop-binding{{loops={one!r}, kind={draw.choice(('parallel', 'vector', 'unroll'))!r}}}",
            f"loop-distribution{{loop={one!r}}}",
            f"loop-peeling{{loop={one!r}, first={draw.randrange(3)}, last=1}}",
        ]
        apply(Transformation.parse(draw.choice(steps)), graph)


def _random_graph(seed: int) -> Graph:
    shapes = [(6, 10), (5, 16), (7, 3)]
    graph = [plus_one, rows][seed % 2](shapes[seed % 3])
    _random_steps(graph, random.Random(seed))
    return graph


def test_random_edits_keep_the_numbers_interpreted() -> None:
    for seed in range(40):
        graph = _random_graph(seed)
        assert_agrees(graph, graph.kernels()[0].kernel)


def test_random_edits_keep_the_numbers_built() -> None:
    graphs = [_random_graph(seed) for seed in range(10)]
    expected, single = [values(g) for g in graphs], [values(g, dtype=None) for g in graphs]
    for ours, exact, narrow in zip(compiled("edited loops", graphs), expected, single, strict=True):
        for a, b, c in zip(ours, exact, narrow, strict=True):
            assert_within_rounding(a, b, c, ulps=16.0)


def test_steps_after_a_whole_recipe() -> None:
    graph, b, (x,) = start((40, 300))
    e = b.elementwise(sympy.exp, x)
    finish(graph, e, b.reduce("sum", None, e, axes=[1]), b.copy(b.transpose(e, (1, 0))))
    data = {x: np.random.default_rng(1).standard_normal((40, 300)).astype(np.float32)}
    before = interpret(graph, data, dtype=np.float64)
    Runner(recipes.get("cpu") + "map-tiling{size=16}", "numerics").run(graph, levels=("hardware",))
    for ours, theirs in zip(interpret(graph, data, dtype=np.float64).values(), before.values()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
