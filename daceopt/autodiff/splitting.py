"""Fused kernels are split into their stages: what lived inside one iteration becomes an array of the backward graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode


def split(
    graph: Graph, node: KernelNode, runs: Sequence[Sequence[int]] | None = None
) -> tuple[list[KernelNode], set[str]]:
    """Replace a kernel of several stages by one kernel per stage, or one for each of ``runs`` of stages that have the
    loops alone which all share; all of its name.

    Returns the new kernels in order and the names of the arrays that were local: they exist in no forward program, so
    they can be recomputed but not stored.
    """
    kernel = node.kernel
    if kernel.is_tiled:
        raise Unsupported(f"kernel {kernel.label} carries values along a loop; differentiate before a step tiles it")
    if len(kernel.stages) == 1 and not kernel.locals:
        return [node], set()
    graph.remove(node)
    parts = [[kernel.stages[k] for k in run] for run in runs or [[k] for k in range(len(kernel.stages))]]
    names = _arrays_between(graph, kernel, parts)
    nodes = [graph.add_kernel(_part(kernel, stages, names)) for stages in parts]
    return nodes, set(names.values())


def _arrays_between(graph: Graph, kernel: Kernel, parts: Sequence[Sequence[Stage]]) -> dict[str, str]:
    """Local -> an array of the graph, for those that do not live in the loops that several stages share."""
    around = [kernel.extents[p] for p in kernel.outer]
    names = {}
    for local, (dtype, shape) in kernel.locals.items():
        users = [stages for stages in parts if any(local in stage.arrays() for stage in stages)]
        if len(users) > 1 or any(len(stages) == 1 for stages in users):
            names[local] = graph.add_array(local, (*around, *shape), dtype)
    return names


def _part(kernel: Kernel, stages: Sequence[Stage], names: dict[str, str]) -> Kernel:
    """A kernel of these stages."""
    widened = [_widen(stage, kernel, names) for stage in stages]
    extents = {p: kernel.extents[p] for stage in widened for p in stage.params}
    arrays = set().union(*(stage.arrays() for stage in widened))
    own = {local: kernel.locals[local] for local in kernel.locals if local in arrays}
    return Kernel(kernel.label, extents, widened, kernel.outer if len(stages) > 1 else (), own)


def _widen(stage: Stage, kernel: Kernel, names: dict[str, str]) -> Stage:
    """The stage with accesses to locals turned into accesses to arrays that have the outer dimensions in front."""

    def move(access: Access) -> Access:
        if access.array not in names:
            return access
        return Access(names[access.array], (*kernel.outer, *access.index), access.wcr)

    return replace(stage.with_accesses(move), params=tuple(dict.fromkeys((*kernel.outer, *stage.params))))
