"""What kernels are but for the names of arrays: kernels of one pattern are merged, scheduled and printed alike.

Layers of a network repeat; what is decided for one of them holds for the others, under their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Access, Kernel
from daceopt.ir.schedule import Alloc, Tree, transformed


@dataclass(frozen=True)
class KernelPattern:
    """``form``: loops, statements, locals and the layout of arrays, a hashable value that calls each array by its
    number; ``names``: what they are called here, in the order of these numbers."""

    form: Any
    names: tuple[str, ...]

    def numbered(self, tree: Tree) -> Tree:
        """A schedule of these kernels with the numbers of its locals in the place of their names."""
        return renamed(tree, {name: str(k) for k, name in enumerate(self.names)})


def pattern(graph: Graph, *kernels: Kernel) -> KernelPattern:
    """The pattern of ``kernels`` of ``graph`` together. Their labels and schedules are no part of it."""
    numbers: dict[str, int] = {}
    for kernel in kernels:
        for stage in kernel.stages:
            for access in (*stage.reads.values(), *stage.writes.values()):
                numbers.setdefault(access.array, len(numbers))
    local = {n: kind for kernel in kernels for n, kind in kernel.locals.items()}
    roots = [graph.root(name)[0] for name in numbers if name not in local]
    for root in roots:
        numbers.setdefault(root, len(numbers))
    arrays = tuple(local.get(name) or _array(graph, name, numbers) for name in numbers)
    loops = tuple(_loops(kernel, numbers) for kernel in kernels)
    return KernelPattern((arrays, loops, tuple(graph.assumptions), graph.options.target), tuple(numbers))


def renamed(tree: Tree, names: Mapping[str, str]) -> Tree:
    """A schedule whose locals are called what ``names`` says."""
    return transformed(tree, lambda n: replace(n, array=names[n.array]) if isinstance(n, Alloc) else n)


def _array(graph: Graph, name: str, numbers: Mapping[str, int]) -> tuple[Any, ...]:
    root, offset = graph.root(name)
    return graph.dtype(name), graph.shape(name), graph.strides(name), numbers[root], offset


def _loops(kernel: Kernel, numbers: Mapping[str, int]) -> tuple[Any, ...]:
    stages = tuple(
        (s.params, _accesses(s.reads, numbers), _accesses(s.writes, numbers), s.assignments) for s in kernel.stages
    )
    return stages, tuple(kernel.extents.items()), kernel.outer, kernel.serial


def _accesses(part: Mapping[str, Access], numbers: Mapping[str, int]) -> tuple[Any, ...]:
    return tuple((c, numbers[a.array], a.index, a.wcr) for c, a in part.items())
