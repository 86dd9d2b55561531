"""The loop nests of APOLLO's listings (Zhao et al., MLSys 2022, section 4.1) as graphs."""

from __future__ import annotations

from typing import Any

import dace
import sympy

from daceopt.ir.fusion.joining import join
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.scalar import scalar
from daceopt.ir.schedule.schedule_text import text
from tests.transformations.lowered import start

Four = tuple[Any, Any, Any, Any]


def bias_and_pool(m: Any = 17, n: Any = 16) -> Graph:
    """Listing 1: ``a(i, j) + bias``, then the maxima of squares of 2 x 2."""
    graph, b, (a, bias) = start((m, n), ())
    shifted = b.elementwise(lambda u, v: u + v, a, bias)
    shape = tuple(e // 2 if isinstance(e, int) else sympy.floor(e / 2) for e in (m, n))
    pool = graph.add_array("pool", shape, dace.float32)
    places = {f"v{i}{j}": (i, j) for i in range(2) for j in range(2)}
    reads = {c: (shifted, lambda p, q, i=i, j=j: (2 * p + i, 2 * q + j)) for c, (i, j) in places.items()}

    def largest(i: Any, **v: Any) -> Any:
        return scalar.maximum(scalar.maximum(v["v00"], v["v01"]), scalar.maximum(v["v10"], v["v11"]))

    b.map(shape, reads, {"o": (pool, lambda p, q: (p, q))}, largest)
    graph.add_output(pool)
    return graph


def bias_and_sum(shape: Four = (3, 4, 5, 6)) -> Graph:
    """Listing 3: ``a(i, j, k, l) + bias``, and the sums over j and l."""
    graph, b, (a, bias) = start(shape, ())
    total = b.reduce("sum", None, b.elementwise(lambda u, v: u + v, a, bias), axes=(1, 3))
    graph.add_output(total)
    return graph


def in_one(graph: Graph) -> Kernel:
    """All kernels of ``graph`` as one."""
    kernels = [node.kernel for node in graph.nodes()]
    return join(graph, kernels, graph.is_kept)


def replaced(graph: Graph, kernel: Kernel) -> tuple[Graph, Any]:
    """A copy of ``graph`` with ``kernel`` in the place of all its nodes, and the entry."""
    new = graph.copy()
    for node in list(new.nodes()):
        new.remove(node)
    return new, new.add_kernel(kernel, as_it_is=True)


def shown(tree: Any) -> str:
    """The schedule as text, with locals called by their hint."""
    return str(text(tree))
