"""Kernels that hand an array on in memory: one statement writes it, later ones read it at other elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from daceopt.autodiff import splitting
from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.fusion.fusion import expand_locals
from daceopt.ir.fusion.relations import Relation, flows
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Access, Kernel
from daceopt.ir.scalar.symbols import size
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Guard, Loop, Sequence, Tree
from daceopt.ir.schedule.schedule_text import text
from daceopt.ir.text.parse import parse as parse_graph
from daceopt.ir.text.render import render
from daceopt.splits import why_not
from tests.ir.guarded import F, V, random_inputs, stage
from tests.ir.isl_checking import assert_agrees, verdict
from tests.ir.pooled import I0, expected, fused, pooled

M, N = size("m"), size("n")


@pytest.mark.parametrize("shape", [(7, 10), (6, 6), (4, 5), (M, N), (M, 5)])
@pytest.mark.parametrize("kept", [True, False])
def test_a_sum_and_a_pool_in_one_loop_nest(shape: tuple[Any, ...], kept: bool) -> None:
    graph, entry, names = pooled(*shape, kept)
    graph.validate()
    tree = commit(graph, entry, fused(loops_of(graph, entry).tree, *shape)).tree
    assert (
        text(tree)
        == f"""for i0 < {shape[0]}:
  for i1 < {shape[1]}:
    s0(i0, i1)
    if (i0 + 1) % 2 == 0 and (i1 + 1) % 2 == 0:
      s1(i0 // 2, i1 // 2)
"""
    )
    assert_agrees(graph, entry.kernel)
    assert render(parse_graph(render(graph))) == render(graph)
    assert render(graph.copy()) == render(graph)
    for m, n in ((7, 10), (1, 5), (2, 5)) if M in shape else (shape,):
        data = random_inputs(graph, {"m": m, "n": n})
        found = interpret(graph, data)
        for name in graph.outputs:
            np.testing.assert_allclose(found[name], expected(data, names)[name], rtol=1e-6)


def test_what_the_graph_knows_of_it() -> None:
    graph, entry, names = pooled(7, 10)
    assert graph.inputs_of(entry) == sorted([names["x"], names["bias"]])
    assert graph.outputs_of(entry) == sorted([names["a"], names["pool"]])
    assert entry.kernel.forwarded_arrays() == {names["a"]}
    assert flows(graph, entry)[names["x"], names["pool"]].dims == (Relation("opaque"),) * 2
    assert "reads a" in str(why_not(graph, entry, 0))
    with pytest.raises(Unsupported, match="reads what it writes"):
        expand_locals(entry.kernel)
    parts, _ = splitting.split(graph, entry)
    graph.validate()
    assert len(parts) == 2 and graph.operands(parts[1]) == [names["a"]]
    graph, entry, names = pooled(7, 10, kept=False)
    assert graph.prune() == 0
    graph.remove(entry)
    assert names["a"] in graph.arrays()


# ---------------------------------------------------------------- refused


def _fused(tree: Tree) -> Tree:
    return fused(tree, 8, 10)


def _first_corner(tree: Tree) -> Tree:
    """The pool in the first iteration of four instead of the last."""

    def change(node: Tree) -> Tree:
        if not isinstance(node, Guard):
            return node
        return Guard(tuple(replace_one(c) for c in node.condition), node.body)

    def replace_one(c: Any) -> Any:
        (p,) = c.free_symbols
        return type(c)(p % 2, 0, evaluate=False)

    return schedule.map_tree(_fused(tree), change)


def _swapped(tree: Tree) -> Tree:
    return Sequence(tuple(reversed(tree.children)))  # type: ignore[union-attr]


_WRONG: dict[str, tuple[Callable[[Tree], Tree], str]] = {
    "too early": (_first_corner, r"a_\d is read before it is written"),
    "in another order": (_swapped, r"a_\d is read before it is written"),
    "rows at once": (
        lambda t: edits.bind(_fused(t), "i0", "parallel"),
        r"a_\d passes between iterations of the p",
    ),
    "columns at once": (
        lambda t: edits.bind(_fused(t), "i1", "vector"),
        r"a_\d passes between iterations of the v",
    ),
    "one row at a time": (
        lambda t: edits.bind(edits.split(_fused(t), "i0", 1), "i0_block", "parallel"),
        r"a_\d passes",
    ),
}


@pytest.mark.parametrize("name", list(_WRONG))
def test_what_breaks_the_dependence_is_refused(name: str) -> None:
    change, message = _WRONG[name]
    graph, entry, _ = pooled(8, 10)
    tree = change(loops_of(graph, entry).tree)
    with pytest.raises(IllegalSchedule, match=message):
        commit(graph, entry, tree)
    assert verdict(graph, entry.kernel, tree) is not None


def test_pairs_of_rows_at_once() -> None:
    graph, entry, names = pooled(8, 10)
    tree = edits.bind(edits.split(_fused(loops_of(graph, entry).tree), "i0", 2), "i0_block", "parallel")
    commit(graph, entry, tree)
    data = random_inputs(graph, {})
    np.testing.assert_allclose(interpret(graph, data)[names["pool"]], expected(data, names)[names["pool"]], rtol=1e-6)


def test_a_statement_may_stand_before_the_one_whose_last_iteration_it_reads() -> None:
    """``b[i - 1] = f(a[i - 1]); a[i] = ...``: a pipeline of depth one."""
    graph = Graph("pipeline")
    x = graph.add_input("x", (9,), F)
    a, b = graph.add_array("a", (9,), F), graph.add_array("b", (9,), F)
    p = type(I0)("i5")
    stages = [
        stage((I0,), Access(x, (I0,)), Access(a, (I0,)), V * 2),
        stage((p,), Access(a, (p,)), Access(b, (p,)), V + 1),
    ]
    entry = graph.add_kernel(Kernel("pipeline", {I0: 9, p: 9}, stages))
    graph.add_output(b)
    late = Loop(p, 9, schedule.Do(1, (p,)))
    early = Loop(I0, 9, schedule.Do(0, (I0,)))
    behind = edits.shift(late, "i5", 1)
    assert text(behind) == "for i5 < 10:\n  if 1 <= i5:\n    s1(i5 - 1)\n"
    longer = edits.shift(early, "i0", 0, 10)
    tree = edits.fuse_loops(Sequence((edits.rename(behind, "i5", "i0"), longer)), "i0")
    commit(graph, entry, tree)
    data = random_inputs(graph, {})
    np.testing.assert_array_equal(interpret(graph, data)[b], data[x] * 2 + 1)
    with pytest.raises(IllegalSchedule, match=r"a_\d is read before it is written"):
        commit(graph, entry, Sequence((late, early)))


def test_an_array_is_whole_before_the_first_reader() -> None:
    graph = Graph("circle")
    x = graph.add_input("x", (4,), F)
    a = graph.add_array("a", (4,), F)
    first = stage((I0,), Access(x, (I0,)), Access(a, (I0,)), V)
    both = replace(first, reads={"v": Access(a, (I0,))})
    entry = graph.add_kernel(Kernel("circle", {I0: 4}, [both]))
    graph.add_output(a)
    with pytest.raises(IllegalSchedule, match=r"s0 reads a_\d, which s0 writes; expected all writers before it"):
        commit(graph, entry, loops_of(graph, entry).tree)
