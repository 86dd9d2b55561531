"""isl's opinion on schedules: is one a schedule at all, does it come back as it was, does it keep the dependences?"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import numpy as np

from daceopt.errors import IllegalSchedule
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.legality.legality_isl import violation
from daceopt.ir.polyhedral.schedule_isl import from_isl, kind_of, to_isl
from daceopt.ir.schedule.schedule import Tree, schedule_of


def verdict(graph: Graph, kernel: Kernel, tree: Tree) -> str | None:
    """Why ``tree`` is no legal schedule of ``kernel``; None where it is."""
    try:
        return violation(graph, kernel, to_isl(graph, kernel, tree))
    except IllegalSchedule as error:
        return str(error)


def assert_agrees(graph: Graph, kernel: Kernel, tree: Tree | None = None) -> None:
    """``tree`` (or the kernel's own schedule) goes to isl and back, and isl finds it legal."""
    tree = schedule_of(kernel) if tree is None else tree
    there = to_isl(graph, kernel, tree)
    assert from_isl(graph, kernel, there) == tree
    assert violation(graph, kernel, there) is None


def assert_computes(graph: Graph, entry: KernelNode, tree: Tree) -> None:
    """The graph's results are the same in float64 where the kernel at ``entry`` runs as ``tree`` says."""
    rng = np.random.default_rng(0)
    data = {n: rng.uniform(0.5, 1.5, [e if isinstance(e, int) else 5 for e in graph.shape(n)]) for n in graph.inputs}
    expected = interpret(graph, data, dtype=np.float64, sizes={"n": 5})
    before = entry.kernel
    entry.kernel = replace(before, schedule=tree)
    try:
        found = interpret(graph, data, dtype=np.float64, sizes={"n": 5})
    finally:
        entry.kernel = before
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12)


def unmarked(found: isl.Schedule) -> isl.Schedule:
    """Without the marks: what isl itself knows."""
    mark = isl.schedule_node_type.mark
    return found.map_schedule_node_bottom_up(lambda node: node.delete() if kind_of(node) == mark else node)
