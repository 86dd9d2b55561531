"""Before maxima, minima and products are differentiated: what they reduce becomes an array of its own.

Their gradients ask which element is the largest, or zero. The answer must be the forward's own: computed a second time,
by other instructions, an element may differ in its last bit, and then none would be equal to the maximum. So the
elements are in memory (see :mod:`daceopt.autodiff.forwarding`, which stores them).
"""

from __future__ import annotations

import dace

from daceopt.autodiff.rules import preparation
from daceopt.autodiff.splitting import split
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar

COMPARED = ("max", "min", "prod")  # reductions whose gradient compares elements


@preparation(KernelNode)
def materialize(b: Builder, node: KernelNode) -> None:
    """Let each such reduction of the kernel read its elements from memory."""
    kernel = node.kernel
    if not any(_comparing_writes(kernel, s) for s in kernel.stages):
        return
    for part in split(b.graph, node)[0]:
        _materialize(b.graph, part)


def compared_arrays(graph: Graph) -> set[str]:
    """The arrays that kernels of one stage reduce by such a reduction."""
    arrays: set[str] = set()
    for node in graph.kernels():
        kernel = node.kernel
        if not kernel.locals and any(w.wcr in COMPARED for w in kernel.writes()):
            arrays |= {graph.root(a.array)[0] for a in kernel.reads()}
    return arrays


def _comparing_writes(kernel: Kernel, stage: Stage) -> list[str]:
    """Writes of the stage that reduce so, and reduce something that is computed on the way."""
    plain = {c for c, a in stage.reads.items() if a.array not in kernel.locals and None not in a.index}
    comparing = [c for c, a in stage.writes.items() if a.wcr in COMPARED and stage.reduced_params(c)]
    return [c for c in comparing if _source(stage, c) not in plain]


def _source(stage: Stage, conn: str) -> str:
    """The symbol that ``conn`` is a copy of, through assignments."""
    values = {str(a.symbol): a.expr for a in stage.assignments}
    name = conn
    while name in values and values[name].is_Symbol:
        name = str(values[name])
    return name


def _materialize(graph: Graph, node: KernelNode) -> None:
    kernel = node.kernel
    (stage,) = kernel.stages
    connectors = _comparing_writes(kernel, stage)
    if not connectors:
        return
    graph.remove(node)
    elements = {c: _elements(graph, kernel, stage, c) for c in connectors}
    writes = {c: elements.get(c, a) for c, a in stage.writes.items()}
    extents = {p: kernel.extents[p] for p in stage.params}
    graph.add_kernel(Kernel(kernel.label, extents, [Stage(stage.params, stage.reads, writes, stage.assignments)]))
    for conn, access in elements.items():
        stage_of_one = _reduction(graph, stage, access, stage.writes[conn])
        graph.add_kernel(Kernel(kernel.label, dict(extents), [stage_of_one]))


def _elements(graph: Graph, kernel: Kernel, stage: Stage, conn: str) -> Access:
    """A new array with one element for each iteration of the stage, to hold what ``conn`` reduces."""
    dtype = next(a.dtype for a in stage.assignments if str(a.symbol) == conn)
    name = graph.add_array(f"{kernel.label}_elements", [kernel.extents[p] for p in stage.params], dtype)
    return Access(name, stage.params)


def _reduction(graph: Graph, stage: Stage, elements: Access, target: Access) -> Stage:
    dtype: dace.typeclass = graph.dtype(elements.array)
    value = Assignment(scalar.symbol("out", dtype), scalar.symbol("x", dtype), dtype)
    return Stage(stage.params, {"x": elements}, {"out": target}, (value,))
