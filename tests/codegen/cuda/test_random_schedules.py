"""Random edits of schedules: whatever ``check`` accepts and the printer prints computes the right numbers in any order
of threads."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import dace
import numpy as np

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Alloc, Loop, Tree
from daceopt.ir.schedule.schedule_text import parse, text
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from tests.codegen.cuda.emulated import ORDERS, library_of, run_once, sources_of
from tests.ir.edits.test_schedule_edits import copy, total, two_stages

CASES, TRIES = 48, 600
_KINDS = ("serial", "unroll", "vector", "grid", "block", "block", "warp", "warp")


def _reduction(shape: tuple[int, ...], kind: str, *axes: int) -> tuple[Graph, Any]:
    graph = Graph("test")
    x = graph.add_input("x", shape, dace.float32)
    graph.add_output(Builder(graph).reduce(kind, None, x, axes=axes))
    return graph, graph.kernels()[0]


def _rows() -> tuple[Graph, Any]:
    """A sum of each row, what is left of it, and the largest of that: statements that share rows."""
    graph = Graph("test")
    b, x = Builder(graph), graph.add_input("x", (6, 20), dace.float32)
    sums = b.reduce("sum", None, x, axes=[1], keepdims=True)
    rest = b.elementwise(lambda u, v: u * 3 + v, x, sums)
    top = b.reduce("max", None, rest, axes=[1], keepdims=True)
    graph.add_output(b.elementwise(lambda u, v: u - v, rest, top))
    Runner(Recipe("fusion", ("map-fusion",))).run(graph)
    (entry,) = graph.kernels()
    return graph, entry


_MAKERS = (
    lambda: copy((11, 19)),
    lambda: total((9, 21)),
    lambda: _reduction((13, 22), "max", 0),
    lambda: _reduction((5, 6, 7), "sum", 1),
    lambda: _reduction((9, 14), "sum", 0, 1),
    two_stages,
    lambda: two_stages(reduced=True),
    _rows,
)


def _edited(tree: Tree, rng: random.Random) -> Tree:
    """A few loops split and moved, all bound to something, and locals placed somewhere."""
    for k in range(rng.randint(0, 3)):
        names = sorted({str(loop.param) for loop in schedule.loops(tree)})
        action = rng.choice(("split", "split", "fuse", "distribute", "reorder"))
        if action == "split":
            tree = edits.split(tree, rng.choice(names), rng.choice((2, 3, 4, 5, 8, 32)), f"part{k}")
        elif action == "reorder":
            tree = edits.reorder(tree, rng.sample(names, min(2, len(names))))
        else:
            tree = (edits.fuse_loops if action == "fuse" else edits.distribute)(tree, rng.choice(names))
    alike = rng.random() < 0.7
    kinds = {str(loop.param): rng.choice(_KINDS) for loop in schedule.loops(tree)}

    def change(node: Tree) -> Tree:
        if isinstance(node, Loop):
            return replace(node, kind=kinds[str(node.param)] if alike else rng.choice(_KINDS))
        return replace(node, scope=rng.choice(("thread", "shared", "shared"))) if isinstance(node, Alloc) else node

    return schedule.map_tree(tree, change)


def _cases(rng: random.Random) -> list[tuple[Graph, Any]]:
    found = []
    for _ in range(TRIES):
        graph, entry = rng.choice(_MAKERS)()
        try:
            placed = commit(graph, entry, _edited(loops_of(graph, entry).tree, rng)).tree
            if not any(loop.kind in schedule.HARDWARE for loop in schedule.loops(placed)):
                continue
            (source,) = sources_of(graph)
        except (IllegalSchedule, Unsupported):
            continue
        assert parse(text(placed)) == placed
        found.append((graph, source))
        if len(found) == CASES:
            break
    return found


def test_what_is_accepted_is_right(tmp_path: Path) -> None:
    cases = _cases(random.Random(5))
    assert len(cases) == CASES
    library = library_of([source for _, source in cases], tmp_path)
    for seed, (graph, source) in enumerate(cases):
        (x,), (y,) = graph.inputs, graph.outputs
        data = np.random.default_rng(seed).integers(-8, 8, graph.shape(x)).astype(np.float32)
        plain = graph.copy()
        for node in plain.kernels():
            node.kernel = replace(node.kernel, schedule=None)
        expected = interpret(plain, {x: data}, dtype=np.float64)[y]
        np.testing.assert_allclose(interpret(graph, {x: data}, dtype=np.float64)[y], expected, rtol=1e-12)
        for order in ORDERS:
            found = run_once(graph, [source], library, {x: data}, {}, order)[y]
            np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=source.text)
