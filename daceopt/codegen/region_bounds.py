"""Proof that no view or access that moves with a loop's counter leaves its array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.control.region import Repeat, regions
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.dims import Dim

Ranges = Mapping[sympy.Symbol, "Dim | None"]  # counter -> number of iterations at most; None: unknown


def check(graph: Graph, ranges: Ranges | None = None) -> None:
    """Raise Unsupported for a position in a body of ``graph`` that is not proved to be inside of its array."""
    ranges = dict(ranges or {})
    if ranges:
        for name in graph.arrays():
            if graph.is_view(name):
                _check_view(graph, name, ranges)
        for kernel in graph.kernels():
            _check_kernel(graph, kernel, ranges)
    for node in regions(graph):
        own = {node.counter: _most(node)} if isinstance(node, Repeat) else {}
        if 0 in own.values():
            continue  # never runs
        for body in node.bodies:
            check(body, {**ranges, **own})


def _most(node: Repeat) -> Dim | None:
    if node.limit is not None:
        return node.limit
    return node.trips


def _check_view(graph: Graph, name: str, ranges: Ranges) -> None:
    root, offset = graph.root(name)
    moving = _counters(offset, ranges)
    extents = (*graph.shape(name), *graph.strides(name))
    if any(_counters(e, ranges) for e in extents):
        raise Unsupported(f"{graph.source.names.get(name, name)!r} changes its shape from iteration to iteration")
    if not moving or 0 in graph.shape(name):
        return
    last = sum((n - 1) * s for n, s in zip(graph.shape(name), graph.strides(name)))
    room = graph.desc(root).total_size - 1
    sizes = graph.sizes.knowing(n - 1 for n in (*graph.shape(name), *_runs(moving, ranges)))  # or nothing is there
    for corner in _corners(offset, moving, ranges, name):
        start = sympy.sympify(offset).xreplace(corner)
        if not (sizes.is_natural(start) and sizes.is_natural(room - last - start)):
            raise Unsupported(
                f"{graph.source.names.get(name, name)!r} moves along {root} with a loop, and may leave it: "
                f"it starts at element {offset}"
            )


def _check_kernel(graph: Graph, node: KernelNode, ranges: Ranges) -> None:
    for stage in node.kernel.stages:
        for access in (*stage.reads.values(), *stage.writes.values()):
            if any(_counters(i, ranges) for i in access.index if i is not None):
                raise Unsupported(f"{access.array} is read in steps that depend on the iteration of a loop")


def _counters(expr: Dim, ranges: Ranges) -> list[sympy.Symbol]:
    free = getattr(expr, "free_symbols", ())
    return [t for t in ranges if t in free]


def _runs(moving: Sequence[sympy.Symbol], ranges: Ranges) -> list[Dim]:
    return [n for t in moving if (n := ranges[t]) is not None]


def _corners(
    offset: sympy.Expr, moving: list[sympy.Symbol], ranges: Ranges, name: str
) -> list[dict[sympy.Symbol, Dim]]:
    """First and last iteration of every loop that moves: positions are linear in the counters."""
    for t in moving:
        if ranges[t] is None:
            raise Unsupported(f"{name} moves with a loop whose number of iterations is not known before running")
    if not affine(offset, moving).is_exact:
        raise Unsupported(f"{name} does not move evenly with a loop: it starts at element {offset}")
    ends = [(sympy.Integer(0), _last(ranges[t])) for t in moving]
    return [dict(zip(moving, corner)) for corner in product(*ends)]


def _last(count: Dim) -> sympy.Expr:
    """The last iteration of a loop that runs."""
    count = sympy.sympify(count)
    return sympy.Integer(0) if isinstance(count, sympy.Min) and 1 in count.args else count - 1
