"""A bias added to a matrix, and the largest of each 2 x 2 elements: one kernel that hands the matrix on in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import dim
from daceopt.ir.schedule.schedule import Guard, Loop, Tree, map_tree, sequence
from tests.ir.guarded import F, V

I0, I1, I2, I3 = (param(k) for k in range(4))
_PLACES = ((0, 0), (0, 1), (1, 0), (1, 1))


def pooled(m: Any, n: Any, kept: bool = True) -> tuple[Graph, Any, dict[str, str]]:
    """``a = x + bias`` over m x n, ``pool[i, j] = max(a[2i, 2j], ..., a[2i + 1, 2j + 1])``; ``kept``: ``a`` is a
    result, too (Zhao et al., APOLLO, MLSys 2022, listing 1)."""
    graph = Graph("pooled")
    x = graph.add_input("x", (m, n), F)
    bias = graph.add_input("bias", (), F)
    rows, columns = (dim(sympy.floor(sympy.sympify(e) / 2)) for e in (m, n))
    a, pool = graph.add_array("a", (m, n), F), graph.add_array("pool", (rows, columns), F)
    graph.symbols |= {str(e): (x, k) for k, e in enumerate((m, n)) if isinstance(e, sympy.Symbol)}
    w, o = scalar.symbol("w", F), scalar.symbol("o", F)
    both, code = (I0, I1), (Assignment(o, V + w, F),)
    first = Stage(both, {"v": Access(x, both), "w": Access(bias, ())}, {"o": Access(a, both)}, code)
    corners = [scalar.symbol(f"c{k}", F) for k in range(4)]
    reads = {str(c): Access(a, (2 * I2 + di, 2 * I3 + dj)) for c, (di, dj) in zip(corners, _PLACES)}
    top = scalar.maximum(scalar.maximum(corners[0], corners[1]), scalar.maximum(corners[2], corners[3]))
    second = Stage((I2, I3), reads, {"o": Access(pool, (I2, I3))}, (Assignment(o, top, F),))
    entry = graph.add_kernel(Kernel("pooled", {I0: m, I1: n, I2: rows, I3: columns}, [first, second]))
    for name in (a, pool) if kept else (pool,):
        graph.add_output(name)
    return graph, entry, {"x": x, "bias": bias, "a": a, "pool": pool}


def sink_guards(tree: Tree, param: str) -> Tree:
    """Move what guards a loop into it, so that it can be fused with its neighbours.

    before:  if c: for p: f(p)
    after:   for p: if c: f(p)

    Raises IllegalSchedule where no guard stands directly around the loop.
    """

    def change(node: Tree) -> Tree:
        if not isinstance(node, Guard) or not isinstance(node.body, Loop) or str(node.body.param) != param:
            return node
        inner = node.body.body
        both = Guard((*node.condition, *inner.condition), inner.body) if isinstance(inner, Guard) else None
        return replace(node.body, body=both or Guard(node.condition, inner))

    new = map_tree(tree, change)
    if new == tree:
        raise IllegalSchedule(f"no guard stands directly around a loop over {param}")
    return new


def fused(tree: Tree, m: Any, n: Any) -> Tree:
    """Listing 2: the loops of the pool as long as those of the sum, and one with them."""
    first, second = tree.children  # type: ignore[union-attr]
    stretched = edits.stretch(edits.stretch(second, "i2", 2, m), "i3", 2, n)
    inside = sink_guards(edits.rename(edits.rename(stretched, "i2", "i0"), "i3", "i1"), "i1")
    return edits.fuse_loops(edits.fuse_loops(sequence([first, inside]), "i0"), "i1")


def expected(data: dict[str, np.ndarray], names: dict[str, str]) -> dict[str, np.ndarray]:
    """In float64, from the inputs."""
    a = np.asarray(data[names["x"]], np.float64) + float(data[names["bias"]])
    m, n = a.shape[0] // 2 * 2, a.shape[1] // 2 * 2
    return {names["a"]: a, names["pool"]: a[:m, :n].reshape(m // 2, 2, n // 2, 2).max((1, 3))}
