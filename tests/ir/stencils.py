"""Kernels with neighbourhoods: what one statement writes, the next reads at several places."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar
from tests.ir.guarded import F, V, stage

Made = tuple[Graph, Any, dict[str, str]]


def summed(params: Any, reads: list[Access], write: Access) -> Stage:
    """One statement that writes the sum of what it reads."""
    values = [scalar.symbol(f"v{k}", F) for k in range(len(reads))]
    out = scalar.symbol("o", F)
    found = {str(v): a for v, a in zip(values, reads)}
    return Stage(params, found, {"o": write}, (Assignment(out, sympy.Add(*values), F),))


def blur(n: Any, steps: int = 1) -> Made:
    """``a = exp(x)`` of n + 2 * steps elements, then ``steps`` sums of three neighbours each, the last one a result."""
    graph = Graph("blur")
    x = graph.add_input("x", (n + 2 * steps,), F)
    if isinstance(n, sympy.Symbol):
        graph.symbols[str(n)] = (graph.add_input("like", (n,), F), 0)
    params = [param(k) for k in range(steps + 1)]
    arrays = [graph.add_array(f"a{k}", (n + 2 * (steps - k),), F) for k in range(steps + 1)]
    first = stage((params[0],), Access(x, (params[0],)), Access(arrays[0], (params[0],)), sympy.exp(V))
    stages = [first]
    for k in range(steps):
        p = params[k + 1]
        stages.append(summed((p,), [Access(arrays[k], (p + d,)) for d in range(3)], Access(arrays[k + 1], (p,))))
    extents = {p: n + 2 * (steps - k) for k, p in enumerate(params)}
    entry = graph.add_kernel(Kernel("blur", extents, stages))
    graph.add_output(arrays[-1])
    return graph, entry, {"x": x, "a": arrays[0], "y": arrays[-1]}


def blurred(x: np.ndarray, steps: int = 1) -> np.ndarray:
    """The same in float64."""
    found = np.exp(x.astype(np.float64))
    for _ in range(steps):
        found = found[:-2] + found[1:-1] + found[2:]
    return found


def plane(rows: int, columns: int) -> Made:
    """Sums of rows of a cube, then of 3 x 3 neighbours of those."""
    graph = Graph("plane")
    i, j, k, p, q = (param(m) for m in range(5))
    x = graph.add_input("x", (rows + 2, columns + 2, 5), F)
    a, y = graph.add_array("a", (rows + 2, columns + 2), F), graph.add_array("y", (rows, columns), F)
    sums = stage((i, j, k), Access(x, (i, j, k)), Access(a, (i, j), "sum"), V)
    places = [Access(a, (p + d, q + e)) for d in range(3) for e in range(3)]
    entry = graph.add_kernel(
        Kernel(
            "plane",
            {i: rows + 2, j: columns + 2, k: 5, p: rows, q: columns},
            [sums, summed((p, q), places, Access(y, (p, q)))],
        )
    )
    graph.add_output(y)
    return graph, entry, {"x": x, "a": a, "y": y}


def flat(x: np.ndarray) -> np.ndarray:
    """``plane`` in float64."""
    a = x.astype(np.float64).sum(2)
    m, n = a.shape[0] - 2, a.shape[1] - 2
    return np.asarray(sum(a[d : d + m, e : e + n] for d in range(3) for e in range(3)))
