"""Fused kernels are split into their stages: what lived inside one iteration becomes an array of the backward graph."""

from __future__ import annotations

from dace import nodes

from daceopt.errors import Unsupported
from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Access, Kernel, Stage


def split(graph: Graph, entry: nodes.MapEntry) -> tuple[list[nodes.MapEntry], set[str]]:
    """Replace a kernel of several stages by one kernel per stage, all of its name.

    Returns the new kernels in order and the names of the arrays that were local: they exist in no forward program, so
    they can be recomputed but not stored.
    """
    kernel = Kernel.extract(graph, entry)
    if kernel.is_tiled:
        raise Unsupported(f"kernel {kernel.label} carries values along a loop; differentiate before a step tiles it")
    if len(kernel.stages) == 1 and not kernel.locals:
        return [entry], set()
    graph.remove(entry)
    around = [kernel.extents[p] for p in kernel.outer]
    names = {local: graph.add_array(local, (*around, *shape), dtype) for local, (dtype, shape) in kernel.locals.items()}
    made = []
    for stage in kernel.stages:
        widened = _widen(stage, kernel, names)
        extents = {p: kernel.extents[p] for p in widened.params}
        made.append(Kernel(kernel.label, extents, [widened]).emit(graph))
    return made, set(names.values())


def _widen(stage: Stage, kernel: Kernel, names: dict[str, str]) -> Stage:
    """The stage with accesses to locals turned into accesses to arrays that have the outer dimensions in front."""

    def move(access: Access) -> Access:
        if access.array not in names:
            return access
        return Access(names[access.array], (*kernel.outer, *access.index), access.wcr)

    reads = {c: move(a) for c, a in stage.reads.items()}
    writes = {c: move(a) for c, a in stage.writes.items()}
    params = tuple(dict.fromkeys((*kernel.outer, *stage.params)))
    return Stage(params, reads, writes, stage.assignments)
