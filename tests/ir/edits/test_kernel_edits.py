"""Edits that give kernels new statements and locals: what they make and what they refuse; results stay the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.kernel_edits import compute_at, peel, stage_reads, stage_writes
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.scalar.symbols import size
from daceopt.ir.schedule.schedule import Tree
from daceopt.ir.schedule.schedule_text import text
from daceopt.ir.text.parse import parse as parse_graph
from daceopt.ir.text.render import render
from tests.ir.edits.test_schedule_edits import copy, total, two_stages
from tests.ir.guarded import neighbours, random_inputs
from tests.ir.isl_checking import assert_agrees
from tests.ir.stencils import blur, blurred, flat, plane

N = size("n")


def _edited(
    made: tuple[Any, ...], before: Callable[[Tree], Tree], edit: Callable[[Graph, Kernel], Kernel]
) -> tuple[Any, str]:
    """A graph after ``edit`` of its kernel, scheduled as ``before`` says, and the new schedule; checked by isl."""
    graph, entry = made[:2]
    loops = loops_of(graph, entry)
    entry = commit(graph, entry, edit(graph, loops.on(before(loops.tree)).kernel))
    graph.validate()
    assert render(parse_graph(render(graph))) == render(graph)
    assert_agrees(graph, entry.kernel)
    return graph, "\n" + text(entry.tree).rstrip()


def _result(graph: Graph, extents: dict[str, int] | None = None) -> tuple[dict[str, np.ndarray], np.ndarray]:
    data = random_inputs(graph, extents or {})
    (found,) = interpret(graph, data, dtype=np.float64).values()
    return data, found


# ---------------------------------------------------------------- peel


def test_peel() -> None:
    graph, shown = _edited(copy((64, 7)), lambda t: t, lambda g, kernel: peel(kernel, "i0", first=2, last=1))
    assert (
        shown
        == """
for i0_first < 2:
  for i1_first < 7:
    s0(i0_first, i1_first)
for i0 < 61:
  for i1 < 7:
    s1(i0, i1)
for i0_last < 1:
  for i1_last < 7:
    s2(i0_last, i1_last)"""
    )
    data, found = _result(graph)
    np.testing.assert_array_equal(found, data["x_1"].astype(float) + 1)


def test_the_last_tile_peeled_off_leaves_whole_ones() -> None:
    graph, shown = _edited(
        copy((8, 70)), lambda t: edits.split(t, "i1", 32), lambda g, kernel: peel(kernel, "i1_block", last=1)
    )
    assert (
        shown
        == """
for i0 < 8:
  for i1_block < 2:
    for i1 < 32:
      s0(i0, i1_block, i1)
  for i1_block_last < 1:
    for i1_last < 32, 6 - 32*i1_block_last:
      s1(i0, i1_block_last, i1_last)"""
    )
    data, found = _result(graph)
    np.testing.assert_array_equal(found, data["x_1"].astype(float) + 1)


@pytest.mark.parametrize("n", [0, 1, 2, 31, 32, 33, 70, 96])
def test_peeled_tiles_of_an_open_size(n: int) -> None:
    graph, entry = copy((N, 3))
    graph.symbols["n"] = (graph.inputs[0], 0)
    loops = loops_of(graph, entry)
    tiled = loops.on(edits.split(loops.tree, "i0", 32)).kernel
    entry = commit(graph, entry, peel(tiled, "i0_block", first=1, last=1))
    middle = next(line for line in text(entry.tree).splitlines() if line.strip().startswith("for i0 <"))
    assert middle == "  for i0 < 32:"
    assert_agrees(graph, entry.kernel)
    data, found = _result(graph, {"n": n})
    np.testing.assert_array_equal(found, data["x_1"].astype(float) + 1)


_NOT_PEELED: dict[str, tuple[Callable[[], Any], Callable[[Kernel], Kernel], str]] = {
    "a sum": (total, lambda p: peel(p, "i1", last=1), "s0.out0 is reduced over i1, whose parts would each begin a sum"),
    "too many": (copy, lambda p: peel(p, "i0", first=60, last=5), "60 first and 5 last iterations of i0, which has 64"),
    "none": (copy, lambda p: peel(p, "i0"), "0 first and 0 last iterations"),
    "no loop": (copy, lambda p: peel(p, "i7", first=1), "the loop over i7 cannot be peeled: there is none"),
    "locals": (two_stages, lambda p: peel(p, "i0", first=1), "each of its iterations has locals of its own"),
    "tiles": (
        copy,
        lambda p: peel(replace(p, schedule=edits.split(p.schedule, "i1", 32)), "i1", first=1),
        "i1 has partial tiles; peel the one over the tiles",
    ),
    "guards": (
        copy,
        lambda p: peel(replace(p, schedule=edits.stretch(p.schedule, "i1", 2)), "i1", first=1),
        "a guard, in which no statement can be added",
    ),
}


@pytest.mark.parametrize("name", list(_NOT_PEELED))
def test_what_cannot_be_peeled_is_refused(name: str) -> None:
    make, edit, message = _NOT_PEELED[name]
    with pytest.raises(IllegalSchedule, match=message):
        edit(loops_of(*make()).kernel)


# ---------------------------------------------------------------- compute_at


def test_compute_at_with_a_halo() -> None:
    made = blur(100)
    graph, shown = _edited(
        made, lambda t: edits.split(t, "i1", 32), lambda g, kernel: compute_at(g, kernel, 0, "i1_block")
    )
    local = next(iter(graph.kernels()[0].kernel.locals))
    assert (
        shown
        == f"""
for i1_block < 4:
  local {local} in thread:
    for {local}_0 < 34, 102 - 32*i1_block:
      s0(i1_block, {local}_0)
    for i1 < 32, 100 - 32*i1_block:
      s1(i1_block, i1)"""
    )
    assert graph.kernels()[0].kernel.locals[local][1] == (34,)
    data, found = _result(graph)
    np.testing.assert_allclose(found, blurred(data[made[2]["x"]]), rtol=1e-12)
    graph.prune()
    assert made[2]["a"] not in graph.arrays()


def test_compute_at_of_a_chain_of_an_open_size() -> None:
    for n in (0, 1, 15, 16, 50):
        made = blur(N, 2)
        graph, shown = _edited(
            made, lambda t: edits.split(t, "i2", 16), lambda g, kernel: compute_at(g, kernel, [0, 1], "i2_block")
        )
        locals_ = graph.kernels()[0].kernel.locals
        assert sorted(shape for _, shape in locals_.values()) == [(18,), (20,)] and "parallel" not in shown
        data, found = _result(graph, {"n": n})
        np.testing.assert_allclose(found, blurred(data[made[2]["x"]], 2), rtol=1e-12)


def test_compute_at_of_a_sum_in_two_dimensions() -> None:
    made = plane(9, 14)

    def tiled(tree: Tree) -> Tree:
        first, second = tree.children  # type: ignore[union-attr]
        blocks = edits.bind(edits.tile(second, {"i3": 4, "i4": 8}), "i3_block", "parallel")
        return type(tree)((first, blocks))  # type: ignore[call-arg]

    graph, shown = _edited(made, tiled, lambda g, kernel: compute_at(g, kernel, 0, "i4_block"))
    assert "parallel for i3_block < 3:" in shown and "accumulate s0.o:" in shown
    ((_, shape),) = graph.kernels()[0].kernel.locals.values()
    assert shape == (6, 10)
    data, found = _result(graph)
    np.testing.assert_allclose(found, flat(data[made[2]["x"]]), rtol=1e-12)


def _kept(made: Any) -> Any:
    made[0].add_output(made[2]["a"])
    return made


_NOT_MOVED: dict[str, tuple[Callable[[], Any], Callable[[Graph, Kernel], Kernel], str]] = {
    "a result": (
        lambda: _kept(blur(20)),
        lambda g, p: compute_at(g, p, 0, "i1"),
        r"a0_\d, which is read outside of blur",
    ),
    "the last": (lambda: blur(20), lambda g, p: compute_at(g, p, 1, "i0"), r"s1 writes a1_\d, which is read outside"),
    "no reader": (
        lambda: blur(20, 2),
        lambda g, p: compute_at(g, p, 0, "i2"),
        "the loop over i2 is not around all statements: s1 stands outside of it",
    ),
    "a local of rows": (
        two_stages,
        lambda g, p: compute_at(g, p, 0, "i1"),
        "which lives in one iteration of i0 already",
    ),
    "no loop": (lambda: blur(20), lambda g, p: compute_at(g, p, 0, "i9"), "there is no loop over i9"),
}


@pytest.mark.parametrize("name", list(_NOT_MOVED))
def test_what_cannot_be_computed_elsewhere_is_refused(name: str) -> None:
    make, edit, message = _NOT_MOVED[name]
    graph, entry = make()[:2]
    with pytest.raises(IllegalSchedule, match=message):
        edit(graph, loops_of(graph, entry).kernel)


# ---------------------------------------------------------------- stage


def test_stage_reads_in_a_transposition() -> None:
    graph, entry = copy((20, 30))
    x = graph.inputs[0]
    graph, shown = _edited(
        (graph, entry),
        lambda t: edits.tile(t, {"i0": 8, "i1": 16}),
        lambda g, kernel: stage_reads(g, kernel, x, "i1_block"),
    )
    local = next(iter(graph.kernels()[0].kernel.locals))
    assert (
        shown
        == f"""
for i0_block < 3:
  for i1_block < 2:
    local {local} in thread:
      for {local}_0 < 8, 20 - 8*i0_block:
        for {local}_1 < 16, 30 - 16*i1_block:
          s0(i0_block, i1_block, {local}_0, {local}_1)
      for i0 < 8, 20 - 8*i0_block:
        for i1 < 16, 30 - 16*i1_block:
          s1(i0_block, i1_block, i0, i1)"""
    )
    data, found = _result(graph)
    np.testing.assert_array_equal(found, data[x].astype(float) + 1)


@pytest.mark.parametrize("n", [100, N])
def test_stage_reads_of_neighbours(n: Any) -> None:
    made = blur(n)
    graph, _ = _edited(made, lambda t: edits.split(t, "i1", 32), lambda g, kernel: compute_at(g, kernel, 0, "i1_block"))
    graph, _ = _edited(
        (graph, graph.kernels()[0]), lambda t: t, lambda g, kernel: stage_reads(g, kernel, made[2]["x"], "i1_block")
    )
    assert sorted(s for _, s in graph.kernels()[0].kernel.locals.values()) == [(34,), (34,)]
    data, found = _result(graph, {"n": 70})
    np.testing.assert_allclose(found, blurred(data[made[2]["x"]]), rtol=1e-12)


def test_a_box_behind_the_end_of_the_array_has_no_elements() -> None:
    """Tiles of tiles: some of the inner ones are empty, and what they would read is not there."""
    graph, entry = copy((9, 7))
    x = graph.inputs[0]

    def tiled(tree: Tree) -> Tree:
        inner = edits.split(edits.split(tree, "i1", 5, "part"), "i1", 1)
        return edits.reorder(inner, ["i1_part", "i1_block", "i1", "i0"])

    graph, _ = _edited((graph, entry), tiled, lambda g, kernel: stage_reads(g, kernel, x, "i1_block"))
    data, found = _result(graph)
    np.testing.assert_array_equal(found, data[x].astype(float) + 1)
    graph, _ = _edited(
        (graph, graph.kernels()[0]),
        lambda t: t,
        lambda g, k: stage_writes(g, k, graph.outputs[0], "i1_block"),
    )
    data, found = _result(graph)
    np.testing.assert_array_equal(found, data[x].astype(float) + 1)


def test_stage_writes_of_sums() -> None:
    graph, entry = total((20, 30))
    y = graph.outputs[0]
    graph, shown = _edited(
        (graph, entry), lambda t: edits.split(t, "i0", 8), lambda g, kernel: stage_writes(g, kernel, y, "i0_block")
    )
    local = next(iter(graph.kernels()[0].kernel.locals))
    assert (
        shown
        == f"""
for i0_block < 3:
  local {local} in thread:
    for i0 < 8, 20 - 8*i0_block:
      accumulate s0.out0:
        for i1 < 30:
          s0(i0_block, i0, i1)
    for {local}_0 < 8, 20 - 8*i0_block:
      s1(i0_block, {local}_0)"""
    )
    data, found = _result(graph)
    np.testing.assert_allclose(found, data[graph.inputs[0]].astype(float).sum(1), rtol=1e-12)


_NOT_STAGED: dict[str, tuple[Callable[[], Any], Callable[[Graph, Kernel], Kernel], str]] = {
    "another array": (
        copy,
        lambda g, p: stage_reads(g, p, g.outputs[0], "i0"),
        "reads no array kernel_\\d that it is given",
    ),
    "an unfinished sum": (total, lambda g, p: stage_writes(g, p, g.outputs[0], "i1"), "is reduced over i1"),
    "an input": (copy, lambda g, p: stage_writes(g, p, g.inputs[0], "i0"), "is not written by one statement"),
    "some statements": (
        lambda: neighbours((4, 5, 6)),
        lambda g, p: stage_reads(g, p, g.inputs[0], "i0"),
        "the loop over i0 is not around all statements: s1 stands outside of it",
    ),
    "a sum of loops": (
        lambda: copy((8, 6)),
        lambda g, p: stage_writes(g, replace(p, schedule=edits.split(p.schedule, "i1", 2)), g.outputs[0], "i0"),
        "which is no box",
    ),
}


@pytest.mark.parametrize("name", list(_NOT_STAGED))
def test_what_cannot_be_staged_is_refused(name: str) -> None:
    make, edit, message = _NOT_STAGED[name]
    graph, entry = make()[:2]
    with pytest.raises(IllegalSchedule, match=message):
        edit(graph, loops_of(graph, entry).kernel)


def test_what_does_not_fit_the_scope_is_refused() -> None:
    graph, entry = copy((20, 30))
    staged = stage_reads(graph, loops_of(graph, entry).kernel, graph.inputs[0], "i0", "register")
    with pytest.raises(IllegalSchedule, match="elsewhere than it is written; expected .* in thread"):
        commit(graph, entry, staged)
    staged = stage_reads(graph, loops_of(graph, entry).kernel, graph.inputs[0], "i0", "shared")
    with pytest.raises(IllegalSchedule, match="is shared, but there are no threads of a block to share it"):
        commit(graph, entry, staged)
    assert entry.kernel.locals == {}


# ---------------------------------------------------------------- any of them, one after the other

_MAKERS: tuple[Callable[[], Any], ...] = (
    lambda: copy((9, 7)),
    lambda: total((9, 7)),
    lambda: two_stages(),
    lambda: two_stages(reduced=True),
    lambda: blur(21),
    lambda: blur(13, 2),
    lambda: plane(5, 6),
)


def _drawn(random: Random, graph: Graph, kernel: Kernel) -> Kernel:
    tree = kernel.schedule
    names = [str(loop.param) for loop in edits.schedule.loops(tree)]
    p = random.choice(names)
    arrays = sorted({a for s in kernel.stages for a in s.arrays()})
    way = random.randrange(8)
    if way == 0:
        return replace(
            kernel, schedule=edits.split(tree, p, random.choice([1, 2, 3, 4, 5, 8]), random.choice(["block", "part"]))
        )
    if way == 1:
        return replace(kernel, schedule=edits.reorder(tree, random.sample(names, min(2, len(names)))))
    if way == 2:
        return peel(kernel, p, random.randrange(3), random.randrange(3))
    if way in (3, 4):
        statements = random.sample(range(len(kernel.stages)), random.randint(1, max(1, len(kernel.stages) - 1)))
        return compute_at(graph, kernel, statements, p)
    if way == 5:
        return stage_writes(graph, kernel, random.choice(arrays), p)
    if way == 6:
        return replace(kernel, schedule=edits.bind(tree, p, random.choice(["vector", "parallel", "unroll"])))
    return stage_reads(graph, kernel, random.choice(arrays), p)


@given(st.integers(0, len(_MAKERS) - 1), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_random_edits_compute_the_same(which: int, random: Random) -> None:
    graph, entry = _MAKERS[which]()[:2]
    data = random_inputs(graph, {})
    expected = interpret(graph, data, dtype=np.float64)
    for _ in range(6):
        try:
            entry = commit(graph, entry, _drawn(random, graph, loops_of(graph, entry).kernel))
        except (IllegalSchedule, Unsupported):
            continue
        graph.validate()
        assert_agrees(graph, entry.kernel)
        for name, value in interpret(graph, data, dtype=np.float64).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-12)
