"""isl's opinion on schedules: is one a schedule at all, in which order does it run, does it keep the dependences?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import islpy as isl
import numpy as np

from daceopt.errors import IllegalSchedule
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.legality.legality_isl import violation
from daceopt.ir.polyhedral.schedule_isl import order, to_isl
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.schedule.schedule import Do, Guard, Loop, Tree, children, schedule_of
from daceopt.ir.schedule.schedule_text import expression

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out


def verdict(graph: Graph, kernel: Kernel, tree: Tree) -> str | None:
    """Why ``tree`` is no legal schedule of ``kernel``; None where it is."""
    try:
        return violation(graph, kernel, to_isl(graph, kernel, tree))
    except IllegalSchedule as error:
        return str(error)


def assert_agrees(graph: Graph, kernel: Kernel, tree: Tree | None = None) -> None:
    """isl finds ``tree`` (or the kernel's own schedule) legal."""
    tree = schedule_of(kernel) if tree is None else tree
    assert violation(graph, kernel, to_isl(graph, kernel, tree)) is None


def assert_in_order(graph: Graph, kernel: Kernel, tree: Tree, sizes: Mapping[str, int]) -> None:
    """isl's schedule runs the instances that ``tree`` runs, one after the other as it does, for ``sizes``."""
    runs = order(to_isl(graph, kernel, tree))
    for name, value in sizes.items():
        if name in runs.get_space().get_var_names(isl.dim_type.param):
            runs = runs.intersect_params(isl.Set(f"[{name}] -> {{ : {name} = {value} }}"))
    found = sorted(run for m in _maps(runs) for run in _runs(m))
    assert [instance for _, instance in found] == list(_instances(tree, sizes))


Instance = tuple[int, tuple[int, ...]]


def _maps(maps: isl.UnionMap) -> list[isl.Map]:
    listed = maps.get_map_list()
    return [listed.get_at(k) for k in range(listed.n_map())]


def _runs(one: isl.Map) -> Iterator[tuple[tuple[int, ...], Instance]]:
    """When each instance of a statement runs, and the instance."""
    points: list[isl.Point] = []
    one.wrap().foreach_point(points.append)
    statement, count, all_of_it = int(one.get_tuple_name(_IN)[1:]), one.dim(_IN), one.dim(_IN) + one.dim(_OUT)
    for point in points:
        at = tuple(point.get_coordinate_val(isl.dim_type.set, k).get_num_si() for k in range(all_of_it))
        yield at[count:], (statement, at[:count])


def _instances(tree: Tree, values: Mapping[str, int]) -> Iterator[Instance]:
    """What runs, as the loops say; the text of expressions is Python's."""

    def number(expr: Dim) -> int:
        return int(eval(expression(expr), {}, dict(values)))

    if isinstance(tree, Do):
        yield tree.statement, tuple(map(number, tree.index))
    elif isinstance(tree, Loop):
        for k in range(min(number(e) for e in (tree.extent, tree.rest) if e is not None)):
            yield from _instances(tree.body, {**values, str(tree.param): k})
    elif not isinstance(tree, Guard) or all(c.func(number(c.lhs), number(c.rhs)) for c in tree.condition):
        for child in children(tree):
            yield from _instances(child, values)


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
