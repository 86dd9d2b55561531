"""What a kernel would move, and how long it would take, before it is in a graph or has a schedule."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from daceopt.ir.scalar.dims import Dim

if TYPE_CHECKING:
    from daceopt.cost.rates import Rates
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.kernel.kernel import Access, Kernel, Stage


def kernel_bytes(graph: Graph, kernel: Kernel, number: Callable[[Dim], float]) -> float:
    """Bytes that ``kernel`` reads and writes of arrays of ``graph``; ``number`` says what an extent is.

    Of an array no more counts than loops visit, and of a buffer no more than it has, through however many views.
    """
    total = 0.0
    for written in (False, True):
        elements: dict[str, float] = {}  # the most that one access reaches, by array
        for stage in kernel.stages:
            for access in (stage.writes if written else stage.reads).values():
                if access.array not in kernel.locals:
                    reach = _reach(graph, kernel, stage, access, number)
                    elements[access.array] = max(elements.get(access.array, 0.0), reach)
        total += _of_buffers(graph, elements, number)
    return total


def access_bytes(graph: Graph, kernel: Kernel, stage: Stage, access: Access, number: Callable[[Dim], float]) -> float:
    """Bytes that one access of a statement reaches."""
    return _reach(graph, kernel, stage, access, number) * graph.dtype(access.array).bytes


def _reach(graph: Graph, kernel: Kernel, stage: Stage, access: Access, number: Callable[[Dim], float]) -> float:
    """Elements that an access visits: bounded by its loops, and by what the array has."""
    named = stage.params if None in access.index else [p for p in stage.params if p in access.params()]
    return min(number(kernel.most(named)), _elements(graph, access.array, number))


def _elements(graph: Graph, array: str, number: Callable[[Dim], float]) -> float:
    return prod(number(n) for n, step in zip(graph.shape(array), graph.strides(array)) if step != 0)


def _of_buffers(graph: Graph, elements: dict[str, float], number: Callable[[Dim], float]) -> float:
    buffers: dict[str, float] = {}
    for array, count in elements.items():
        root = graph.root(array)[0]
        buffers[root] = buffers.get(root, 0.0) + count
    return sum(min(n, number(graph.size(root))) * graph.dtype(root).bytes for root, n in buffers.items())


def kernel_seconds(machine: Rates, nbytes: float, operations: float) -> float:
    """Of loops that are not scheduled yet: by one core, or by all where that is faster."""
    alone = machine.seconds(nbytes, operations)
    if machine.cores == 1:
        return machine.call + alone
    together = machine.region + machine.seconds(nbytes, operations, threads=machine.cores)
    return machine.call + min(alone, together)
