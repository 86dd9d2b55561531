"""Locals that carry values along a serial loop: computed in order, and whatever would change the order is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daceopt.autodiff import splitting
from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.fusion.fusion import expand_locals
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Alloc, Loop, Sequence, Tree
from daceopt.ir.schedule.schedule_text import parse, text
from daceopt.ir.text.render import render
from tests.codegen.cpu import kernels
from tests.ir.carried import Made, N, logsumexp, recurrence
from tests.ir.isl_checking import assert_agrees, verdict


def _values(made: Made, columns: int = 37) -> np.ndarray:
    graph = made[0]
    shape = [n if isinstance(n, int) else columns for n in graph.shape(graph.inputs[0])]
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _expected(made: Made, x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    if made[0].name == "logsumexp":
        return np.asarray(np.log(np.exp(wide).sum(axis=1)))
    state, found = np.zeros(wide.shape[1]), []
    for row in wide:
        state = state / 2 + row
        found.append(state)
    return np.asarray(found)


MADE: dict[str, Callable[[], Made]] = {
    "partial tile": logsumexp,
    "whole tiles": lambda: logsumexp(5, 64),
    "one tile": lambda: logsumexp(3, 10),
    "one row": lambda: logsumexp(1, 33),
    "a size": lambda: logsumexp(5, N),
    "states": recurrence,
    "one step": lambda: recurrence(1, 4),
    "one state": lambda: recurrence(5, 1),
}


@pytest.mark.parametrize("name", MADE)
def test_values_are_carried_in_order(name: str, tmp_path: Path) -> None:
    made = graph, entry = MADE[name]()
    graph.validate()
    kernel = entry.kernel
    check(graph, kernel, schedule.default(kernel))
    assert_agrees(graph, kernel)
    x = _values(made)
    expected = _expected(made, x)
    (found,) = interpret(graph, {graph.inputs[0]: x}, dtype=np.float64).values()
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    sizes = {"n": x.shape[1]} if graph.symbols else {}
    built = kernels.run(graph, {graph.inputs[0]: x}, tmp_path, sizes)[graph.outputs[0]]
    np.testing.assert_allclose(built, expected, rtol=1e-6, atol=1e-6)


def test_infinities_stay_out_of_the_sum() -> None:
    made = graph, _ = logsumexp(2, 40)
    x = _values(made)
    x[0, 3:20] = -np.inf
    (found,) = interpret(graph, {graph.inputs[0]: x}, dtype=np.float64).values()
    np.testing.assert_allclose(found, _expected(made, x), rtol=1e-12)


def test_the_kernel_says_what_it_carries() -> None:
    graph, entry = logsumexp()
    kernel = entry.kernel
    assert [str(p) for p in kernel.serial] == ["i1"]
    assert kernel.kept_locals() == {"top", "total"}
    assert "outer i0\n    serial i1\n" in render(graph)
    copied = graph.copy()
    again = copied.kernels()[0].kernel
    assert (again.serial, again.kept_locals(), again.extents) == (kernel.serial, kernel.kept_locals(), kernel.extents)


def test_the_default_schedule() -> None:
    graph, entry = recurrence()
    assert (
        text(loops_of(graph, entry).tree)
        == """\
local state in thread:
  for i0 < 6:
    s0(i0)
  for i1 < 9:
    for i0 < 6:
      s1(i1, i0)
    for i0 < 6:
      s2(i1, i0)
"""
    )


# ---------------------------------------------------------------- what is legal


def _fused(graph: Any, entry: Any) -> Tree:
    return edits.fuse_loops(loops_of(graph, entry).tree, "i0")


def _rows_outside(graph: Any, entry: Any) -> Tree:
    """Each state by itself, from the first step to the last."""
    del graph, entry
    return parse(
        "local state in thread:\n  for i0 < 6:\n    s0(i0)\n    for i1 < 9:\n      s1(i1, i0)\n      s2(i1, i0)"
    )


LEGAL: dict[str, tuple[Callable[[], Made], Callable[..., Tree]]] = {
    "fused loops": (recurrence, _fused),
    "rows outside": (recurrence, _rows_outside),
    "parallel rows": (logsumexp, lambda g, e: edits.bind(loops_of(g, e).tree, "i0", "parallel")),
    "vector columns": (logsumexp, lambda g, e: edits.bind(loops_of(g, e).tree, "i2", "vector")),
    "tiles of steps": (recurrence, lambda g, e: edits.split(loops_of(g, e).tree, "i1", 4)),
    "unrolled steps": (recurrence, lambda g, e: edits.unroll(loops_of(g, e).tree, "i1")),
    "tiles of rows": (logsumexp, lambda g, e: edits.split(loops_of(g, e).tree, "i0", 2)),
}


@pytest.mark.parametrize("name", LEGAL)
def test_other_orders_that_keep_the_dependences(name: str, tmp_path: Path) -> None:
    build, edit = LEGAL[name]
    made = graph, entry = build()
    commit(graph, entry, edit(graph, entry))
    assert_agrees(graph, entry.kernel)
    x = _values(made)
    (found,) = interpret(graph, {graph.inputs[0]: x}, dtype=np.float64).values()
    np.testing.assert_allclose(found, _expected(made, x), rtol=1e-12)
    built = kernels.run(graph, {graph.inputs[0]: x}, tmp_path)[graph.outputs[0]]
    np.testing.assert_allclose(built, _expected(made, x), rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- what is refused


def _changed(tree: Tree, old: str, new: str) -> Tree:
    there = text(schedule.without_accumulators(tree))
    assert old in there
    return parse(there.replace(old, new))


def _last_first(graph: Any, entry: Any) -> Tree:
    """Tiles of steps, in the wrong order."""
    tree = edits.split(loops_of(graph, entry).tree, "i1", 3)
    return edits.reorder(tree, ["i1", "i1_block"])


def _inside(graph: Any, entry: Any) -> Tree:
    """The states live for one step only."""
    tree = loops_of(graph, entry).tree
    assert isinstance(tree, Alloc)

    def change(node: Tree) -> Tree:
        return replace(node, body=Alloc("state", "thread", node.body)) if _is_over(node, "i1") else node

    return schedule.map_tree(tree.body, change)


def _is_over(node: Tree, name: str) -> bool:
    return isinstance(node, Loop) and str(node.param) == name


def _swapped(graph: Any, entry: Any) -> Tree:
    """The result before the step."""

    def change(node: Tree) -> Tree:
        if _is_over(node, "i1") and isinstance(node.body, Sequence):  # type: ignore[union-attr]
            return replace(node, body=Sequence(node.body.children[::-1]))  # type: ignore[union-attr]
        return node

    return schedule.map_tree(loops_of(graph, entry).tree, change)


def _shared_rows(graph: Any, entry: Any) -> Tree:
    """The running maximum outside of the rows that threads share."""
    tree = edits.bind(loops_of(graph, entry).tree, "i0", "parallel")
    bare = schedule.map_tree(tree, lambda n: n.body if isinstance(n, Alloc) and n.array == "top" else n)
    return Alloc("top", "thread", bare)


REFUSED: dict[str, tuple[Callable[[], Made], Callable[..., Tree], str]] = {
    "distributed": (
        recurrence,
        lambda g, e: edits.distribute(loops_of(g, e).tree, "i1"),
        "state is carried along i1 from s1 to s2, which do not stand in one loop over it",
    ),
    "parallel steps": (
        lambda: recurrence(9, 1),
        lambda g, e: edits.bind(loops_of(g, e).tree, "i1", "parallel"),
        "threads of the parallel loop over i1 would share the local state",
    ),
    "vector steps": (
        lambda: recurrence(9, 1),
        lambda g, e: edits.bind(loops_of(g, e).tree, "i1", "vector"),
        "state is carried along i1 from s1 to s1: the loop over i1 must run in order and is vector",
    ),
    "steps in another order": (recurrence, _last_first, "its loops do not count .* up"),
    "too short a life": (recurrence, _inside, "does not live from s0 on until it is read"),
    "swapped statements": (recurrence, _swapped, "s2 reads state before s1 writes it"),
    "shared by threads": (logsumexp, _shared_rows, "threads of the parallel loop over i0 would share the local top"),
    "in a register": (
        recurrence,
        lambda g, e: _changed(loops_of(g, e).tree, "local state in thread", "local state in register"),
        "expected state in thread",
    ),
    "a tile that drops the rest": (
        logsumexp,
        lambda g, e: _changed(loops_of(g, e).tree, "for i2 < 16, 70 - 16*i1", "for i2 < 16, 64 - 16*i1"),
        r"i2 takes min\(16, 64 - 16\*i1\) values; expected min\(16, 70 - 16\*i1\)",
    ),
    "a tile that runs over": (
        logsumexp,
        lambda g, e: _changed(loops_of(g, e).tree, "for i2 < 16, 70 - 16*i1", "for i2 < 16"),
        r"i2 takes min\(16, None\) values",
    ),
    "threads over tiles": (
        logsumexp,
        lambda g, e: edits.bind(loops_of(g, e).tree, "i1", "parallel"),
        "threads of the parallel loop over i1 would share the local",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_order_is_refused(name: str) -> None:
    build, edit, reason = REFUSED[name]
    graph, entry = build()
    tree = edit(graph, entry)
    with pytest.raises(IllegalSchedule, match=reason):
        commit(graph, entry, tree)
    assert entry.tree is None
    kernel = entry.kernel
    if name != "in a register":  # where a value stands is no question of order
        assert verdict(graph, kernel, schedule.add_accumulators(tree, kernel)) is not None


def _edited(edit: Callable[[Kernel], Kernel]) -> Made:
    graph, entry = recurrence()
    kernel = edit(entry.kernel)
    graph.remove(entry)
    return graph, graph.add_kernel(kernel)


def test_a_local_without_a_first_value_is_refused() -> None:
    def edit(kernel: Kernel) -> Kernel:
        return replace(kernel, stages=kernel.stages[1:])

    graph, entry = _edited(edit)
    with pytest.raises(IllegalSchedule, match="state is read before anything is written to it"):
        check(graph, entry.kernel, loops_of(graph, entry).tree)


def test_a_reduction_into_a_carried_local_is_refused() -> None:
    def edit(kernel: Kernel) -> Kernel:
        step = kernel.stages[1]
        write = replace(step.writes["o"], wcr="sum")
        return replace(kernel, stages=[kernel.stages[0], replace(step, writes={"o": write}), kernel.stages[2]])

    graph, entry = _edited(edit)
    with pytest.raises(IllegalSchedule, match="s1 reduces into state, which is kept"):
        check(graph, entry.kernel, loops_of(graph, entry).tree)


def test_other_steps_leave_it_alone() -> None:
    graph, entry = logsumexp()
    with pytest.raises(Unsupported, match="given by hand"):
        _ = loops_of(graph, entry).nests
    with pytest.raises(Unsupported, match="lse is tiled"):
        expand_locals(entry.kernel)
    with pytest.raises(Unsupported, match="differentiate before a step tiles it"):
        splitting.split(graph, entry)
