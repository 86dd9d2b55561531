"""Nodes that sum over an axis, such as gradients of weights over the batch: each instance has a sum over its items."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sympy

from daceopt.ir.data.provenance import label_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.library import Contraction, ConvolutionBackwardWeights, IndexAdd, NanWatch
from daceopt.ir.scalar import types
from daceopt.ir.scalar.affine import same
from daceopt.splits.along import NodeCut, SplitAxis, cut_of, settled_access
from daceopt.splits.kernels import check_locals
from daceopt.splits.rules import CannotSplit

Axes = Mapping[str, int]  # connector of an operand -> its dimension that is summed


def cut_or_sum(graph: Graph, node: Node, axis: SplitAxis) -> NodeCut:
    """How ``node`` is cut along ``axis``: into instances of all that it writes, or into sums over their items. Raises
    CannotSplit with the reason why it is not."""
    if all(n is None or n in axis.dims for n in graph.outputs_of(node)):
        return cut_of(graph, node, axis)
    return sum_of(graph, node, axis)


def sum_of(graph: Graph, node: Node, axis: SplitAxis) -> NodeCut:
    """How ``node`` is cut along ``axis`` where it sums over its items: what it writes is the sum of what it gives
    for the items of each instance. Raises CannotSplit with the reason why it is not.

    A kernel may also write arrays that have elements for each item. Results that nothing reads are not added up. Those
    of types that are narrower than those in which sums are computed are refused: they would be rounded once for each
    instance.
    """
    summed = {n for n in graph.outputs_of(node) if n is not None and n not in axis.dims}
    for name in sorted(summed):
        if types.compute_type(graph.dtype(name)) != graph.dtype(name):
            kind = types.name_of(graph.dtype(name))
            raise CannotSplit(f"{label_of(node)}: the sum {name} of {kind} would be rounded in each instance")
    if isinstance(node, KernelNode):
        return _of_kernel(graph, node, axis, frozenset(summed))
    find = next((_SUMS[c] for c in type(node).__mro__ if c in _SUMS), None)
    if find is None:
        raise CannotSplit(f"{label_of(node)} is not known to be a sum over {axis.items} items")
    axes, reads = find(graph, node, axis), graph.reads(node)
    for connector, d in axes.items():
        name = reads[connector]
        if axis.dims.get(name) != d % len(graph.shape(name)):
            raise CannotSplit(f"{label_of(node)} does not sum over the {axis.items} items of {name}")
    sliced = frozenset(reads[c] for c in axes)
    if any(n in sliced for c, n in reads.items() if c not in axes):
        raise CannotSplit(f"{label_of(node)} reads one array both cut and whole")
    return NodeCut(sliced, summed=frozenset(n for n in summed if graph.is_kept(n) or graph.all_consumers(n)))


# -------------------------------------------------------------------- library nodes


def _of_contraction(graph: Graph, node: Contraction, axis: SplitAxis) -> Axes:
    """The contracted dimension; what is added to the product would be added by each instance."""
    if extra := sorted(graph.reads(node).keys() - {"A", "B"}):
        raise CannotSplit(f"{label_of(node)} adds {' and '.join(extra)} to the sum")
    if node.activation:
        raise CannotSplit(f"{label_of(node)} applies {node.activation} to the sum")
    return {"A": -1, "B": -2}


def _of_weights(graph: Graph, node: ConvolutionBackwardWeights, axis: SplitAxis) -> Axes:
    return {"X": 0, "dY": 0}


def _of_rows(graph: Graph, node: IndexAdd, axis: SplitAxis) -> Axes:
    """A dimension of the indices, which the rows have, too."""
    reads = graph.reads(node)
    own = axis.dims.get(reads["Index"], 0)
    return {"Index": own, "dY": own}


def _of_watch(graph: Graph, node: NanWatch, axis: SplitAxis) -> Axes:
    """Each instance looks at its own items."""
    return {"X": axis.dims.get(graph.reads(node)["X"], 0)}


_SUMS: dict[type, Callable[[Graph, Node, SplitAxis], Axes]] = {
    Contraction: _of_contraction,
    ConvolutionBackwardWeights: _of_weights,
    IndexAdd: _of_rows,
    NanWatch: _of_watch,
}


# -------------------------------------------------------------------- kernels


def _of_kernel(graph: Graph, node: KernelNode, axis: SplitAxis, summed: frozenset[str]) -> NodeCut:
    kernel = node.kernel
    if kernel.is_tiled or kernel.schedule is not None:
        raise CannotSplit(f"kernel {kernel.label} has loops of its own already")
    if kernel.forwarded_arrays():
        raise CannotSplit(f"kernel {kernel.label} reads {min(kernel.forwarded_arrays())}, which it writes")
    p = _loop(graph, kernel, axis)
    copied = _copied_locals(kernel, summed) if p not in kernel.outer else {}  # else each item has a sum of its own
    check_locals(kernel, p, summed | copied.keys())
    for stage in kernel.stages:
        _check_writes(kernel, stage, p, axis, summed, copied)
    return NodeCut(_sliced_locals(kernel, p, axis), p, summed)


def _loop(graph: Graph, kernel: Kernel, axis: SplitAxis) -> sympy.Symbol:
    """The loop that walks over all items."""
    accesses = [settled_access(s, c) for s in kernel.stages for c in s.reads]
    accesses += kernel.writes()
    candidates = {
        a.index[axis.dims[a.array]]: graph.shape(a.array)[axis.dims[a.array]] for a in accesses if a.array in axis.dims
    }
    loops = [p for p, extent in candidates.items() if p in kernel.extents and same(kernel.extents[p], extent)]
    if len(loops) != 1 or len(candidates) != 1:
        raise CannotSplit(f"kernel {kernel.label} has no one loop over the {axis.items} items of what it reads")
    return loops[0]


def _copied_locals(kernel: Kernel, summed: frozenset[str]) -> dict[str, str]:
    """Locals that are sums and are copied into results, as ``reduction-lowering`` leaves them -> these results."""
    results: dict[str, str] = {}
    for stage in kernel.stages:
        result = stage.copy[1].array if stage.copy is not None else ""
        for access in stage.reads.values():
            if access.array in kernel.locals:
                results[access.array] = result if result in summed and access.array not in results else ""
    return {local: result for local, result in results.items() if result}


def _check_writes(
    kernel: Kernel, stage: Stage, p: sympy.Symbol, axis: SplitAxis, summed: frozenset[str], copied: Mapping[str, str]
) -> None:
    """Raise CannotSplit where a result is neither a sum over ``p`` nor has its elements for each item."""
    if any(a.array in copied for a in stage.reads.values()):
        return
    for access in stage.writes.values():
        name = access.array
        if name in summed or name in copied:
            if access.wcr != "sum" or p in access.params() or p not in stage.params:
                items = f"the {axis.items} items that it reads"
                raise CannotSplit(f"kernel {kernel.label}: {copied.get(name, name)} is no sum over {items}")
        elif name not in kernel.locals and not _is_along(access, p, axis):
            raise CannotSplit(f"kernel {kernel.label} writes {name} in another order than its {axis.items} items")


def _is_along(access: Access, p: sympy.Symbol, axis: SplitAxis) -> bool:
    """Does ``p`` walk along the axis of what is accessed, and nowhere else in it?"""
    if access.array not in axis.dims:
        return False
    own = axis.dims[access.array]
    others = (e for d, e in enumerate(access.index) if d != own)
    return access.index[own] == p and not any(p in getattr(e, "free_symbols", ()) for e in others)


def _sliced_locals(kernel: Kernel, p: sympy.Symbol, axis: SplitAxis) -> frozenset[str]:
    sliced, whole = set(), set()
    for stage in kernel.stages:
        for connector, access in stage.reads.items():
            if access.array in kernel.locals:
                continue
            settled = settled_access(stage, connector)
            if _is_along(settled, p, axis):
                sliced.add(access.array)
            elif p in settled.params():
                raise CannotSplit(f"kernel {kernel.label} reads {access.array} at other elements than its items'")
            else:
                whole.add(access.array)
    if both := sorted(sliced & whole):
        raise CannotSplit(f"kernel {kernel.label} reads {both[0]} both cut and whole")
    return frozenset(sliced)
