"""What exploring a region of kernels depends on, as text: equal regions, such as layers of one kind, are explored
once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel


class RegionSignature:
    """Names the buffers of a region in the order in which its kernels meet them.

    ``outlives(array)``: is what a kernel writes there read outside of the region, or kept?
    """

    def __init__(self, graph: Graph, outlives: Callable[[str], bool]):
        self._graph, self._outlives = graph, outlives
        self._buffers: dict[str, int] = {}

    def of(self, kernels: Sequence[Kernel], paths: Sequence[Sequence[int]]) -> str:
        """``paths``: for each kernel, those that have to run behind it."""
        return repr([*map(self._kernel, kernels), *map(tuple, paths)])

    def _kernel(self, kernel: Kernel) -> Any:
        extents = [(str(p), str(n)) for p, n in kernel.extents.items()]
        local = {name: f"local{k}" for k, name in enumerate(kernel.locals)}
        kinds = [(str(dtype), str(shape)) for dtype, shape in kernel.locals.values()]
        stages = [
            (
                str(stage.params),
                [(c, *self._access(a, local)) for c, a in stage.reads.items()],
                [(c, *self._access(a, local), self._is_kept(a, local)) for c, a in stage.writes.items()],
                [(str(a.symbol), str(a.expr), str(a.dtype)) for a in stage.assignments],
            )
            for stage in kernel.stages
        ]
        return extents, str(kernel.outer), kinds, stages

    def _is_kept(self, access: Access, local: dict[str, str]) -> bool:
        return access.array not in local and self._outlives(access.array)

    def _access(self, access: Access, local: dict[str, str]) -> tuple[Any, ...]:
        index = (str(access.index), access.wcr)
        if access.array in local:
            return local[access.array], *index
        graph = self._graph
        root, offset = graph.root(access.array)
        number = self._buffers.setdefault(root, len(self._buffers))
        layout = (str(graph.shape(access.array)), str(graph.strides(access.array)), str(graph.dtype(access.array)))
        whole = (str(graph.shape(root)), str(graph.strides(root)))
        return number, str(offset), *layout, *whole, *index
