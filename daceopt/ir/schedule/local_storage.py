"""How much memory a local takes: what one iteration of the loops around it touches, and no more."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Alloc, Do, Loop, Tree


def fold_locals(kernel: Kernel, tree: Tree) -> Kernel:
    """``kernel`` with smaller locals: a dimension of which each iteration of the loops around a local's ``Alloc`` in
    ``tree`` has one element is left out. The same kernel where there is none.

    ``tree`` is a legal schedule, so what is read in an iteration was written in it. What this gives is for execution in
    ``tree`` alone.
    """
    removed_axes: dict[str, set[int]] = {}
    dos = schedule.dos(tree)
    for node, around in schedule.walk(tree):
        if isinstance(node, Alloc) and node.array not in kernel.kept_locals():
            outside = {n.param for n in around if isinstance(n, Loop)}
            removed_axes[node.array] = _single(kernel, dos, node.array, outside)
    return kernel.without_dimensions(removed_axes) if any(removed_axes.values()) else kernel


def _single(kernel: Kernel, dos: Sequence[Do], array: str, outside: set[sympy.Symbol]) -> set[int]:
    """Dimensions in which all accesses have one and the same place in each iteration of the loops ``outside``."""
    places: list[list[sympy.Expr]] = [[] for _ in kernel.locals[array][1]]
    for do in dos:
        stage = kernel.stages[do.statement]
        values = dict(zip(stage.params, do.index))
        for access in (*stage.reads.values(), *stage.writes.values()):
            for k, e in enumerate(access.index if access.array == array else ()):
                places[k].append(None if e is None else sympy.sympify(e).xreplace(values))
    return {k for k, indices in enumerate(places) if _is_one(indices, outside)}


def _is_one(places: list[sympy.Expr], outside: set[sympy.Symbol]) -> bool:
    first = places[0] if places else None
    if first is None or not first.free_symbols or not first.free_symbols <= outside:
        return False
    return all(p is not None and p == first for p in places)
