"""Let a product be in memory in the order in which it is copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cmp_to_key
from typing import Any, ClassVar

from daceopt.ir.access.dataflow import address, is_bijective
from daceopt.ir.control.region import Region
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.attention_calls import AttentionCall
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar.affine import quotient
from daceopt.ir.scalar.dims import Shape, dim, is_dense, row_major
from daceopt.ops.families.strided import why_not_laid_out
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.local._copied_results import move, written_where_copied


@dataclass(frozen=True)
class RelayoutFusion(Transformation):
    """Store the result of a product in the order of axes in which it is copied, instead of copying it.

    before:  y: (B, H, S, D) strides (HSD, SD, D, 1) = Contraction(a, b)    z = copy(transpose(y, [0, 2, 1, 3]))
    after:   y: (B, H, S, D) strides (SHD, D, HD, 1) = Contraction(a, b)    z is a view of y

    Heads of attention are put side by side again in this form, and their gradients. A copy of anything that is in
    memory as it is copied goes as well: the gradient of a bias leaves one behind. Where the copy is a result of the
    program, the kernel that makes the source writes there instead. Rausch et al., DaCeML, sections 5.1 (transpositions
    join products) and 5.4 (layouts of intermediates).
    """

    level: ClassVar[str] = "local"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        for copy in _copies(graph, node):
            strides = copy.strides_of_source(graph)
            if strides is None:
                continue
            stays = strides == graph.strides(copy.source)
            reason = copy.why_not_a_view(graph) or (
                None if stays else _why_not_stored(graph, copy.source, strides, node)
            )
            moved = written_where_copied(graph, copy.source, copy.result, node) if reason and stays else None
            if reason is None:
                yield Site(graph, (node,), {"copy": copy, "strides": None if stays else strides})
            elif moved is not None:
                yield Site(graph, (node,), {"copy": copy, "moved": moved})
            elif not stays and isinstance(graph.producer(copy.source), Contraction | AttentionCall):
                yield NearMiss(node, reason)

    def apply(self, site: Site) -> None:
        graph, copy, (node,) = site.graph, site["copy"], site.nodes
        if "moved" in site.found:
            move(graph, copy.source, copy.result, node, site["moved"])
            return
        if site["strides"] is not None:
            graph.set_strides(copy.source, site["strides"])
        b = Builder(graph, "relayout")
        view, shape = b.transpose(copy.source, _as_stored(graph, copy.source)), graph.shape(copy.result)
        view = view if graph.shape(view) == shape else b.reshape(view, shape)
        kernel = node.kernel
        graph.replace_uses(copy.result, view)
        graph.remove(node)
        rest = _without(kernel, copy.connector)
        if rest is not None:
            graph.add_kernel(rest)


@dataclass(frozen=True)
class _Copy:
    """A write of a kernel, by its connector, that copies ``source`` element by element to ``result``.

    ``loops``: the extent of each, and how many elements one iteration steps in ``source`` and in ``result``.
    """

    connector: str
    source: str
    result: str
    loops: tuple[tuple[Any, Any, Any], ...]

    def strides_of_source(self, graph: Graph) -> Shape | None:
        """Those with which all of the source is what the copy is; None where no strides say that."""
        shape, own = graph.shape(self.source), graph.strides(self.source)
        if dim(graph.size(self.source) - graph.size(self.result)) != 0:
            return None
        if all(before == after for _, before, after in self.loops):
            return own if own == row_major(shape) or is_dense(shape, own) else None
        steps: dict[int, Any] = {k: 1 for k, n in enumerate(shape) if n == 1}
        for loop in self.loops:
            steps |= _steps(loop, shape, own)
        return tuple(steps[k] for k in range(len(shape))) if len(steps) == len(shape) else None

    def why_not_a_view(self, graph: Graph) -> str | None:
        """Why the readers of the result cannot read the source."""
        if graph.is_kept(self.result) or graph.is_part(self.result) or graph.parts_of(self.result):
            return f"{self.result} must be an array of its own"
        if not graph.is_contiguous(self.result):
            return f"{self.result} has strides of its own"
        if any(isinstance(n, Region) or getattr(n, "in_place", None) for n in graph.all_consumers(self.result)):
            return f"a reader of {self.result} may write into its memory"
        return None


def _copies(graph: Graph, node: Node) -> Iterator[_Copy]:
    """What the kernel at ``node``, if it has one stage, copies."""
    if not isinstance(node, KernelNode):
        return
    kernel = node.kernel
    if len(kernel.stages) != 1 or kernel.locals:
        return
    stage = kernel.stages[0]
    for connector, write in stage.writes.items():
        read = stage.reads.get(_value(stage, connector))
        loops = None if read is None or write.wcr else _loops(graph, kernel, read, write)
        if read is not None and loops is not None:
            yield _Copy(connector, graph.root(read.array)[0], write.array, loops)


def _loops(graph: Graph, kernel: Kernel, read: Access, write: Access) -> tuple[tuple[Any, Any, Any], ...] | None:
    """Extent and steps of each loop, where elements go from the start of a buffer to that of an array."""
    dtype = graph.dtype(write.array)
    if graph.dtype(read.array) != dtype or graph.is_view(write.array):
        return None
    if not is_bijective(write.index, graph.shape(write.array), dict(kernel.extents)):
        return None
    source, target = address(graph, read), address(graph, write)
    if source is None or target is None or source.constant != 0 or target.constant != 0:
        return None
    before, after = source.coefficients(), target.coefficients()
    return tuple((kernel.extents[p], before[p], after[p]) for p in after) if before.keys() == after.keys() else None


def _steps(loop: tuple[Any, Any, Any], shape: Shape, strides: Shape) -> dict[int, Any]:
    """For each axis through which ``loop`` goes, the elements that it steps along it in the result; nothing where it
    goes through a part of one."""
    extent, before, after = loop
    steps: dict[int, Any] = {}
    while extent != 1:
        axis = next((k for k, (n, s) in enumerate(zip(shape, strides)) if n != 1 and s == before), None)
        if axis is None or axis in steps or quotient(extent, shape[axis]) is None:
            return {}
        steps[axis], n = after, shape[axis]
        extent, before, after = quotient(extent, n), dim(before * n), dim(after * n)
    return steps


def _as_stored(graph: Graph, name: str) -> list[int]:
    """The axes in the order in which they lie in memory, the innermost last: steps divide one another."""

    def outward(a: int, b: int) -> int:
        return -1 if quotient(strides[a], strides[b]) is not None else 1

    shape, strides = graph.shape(name), graph.strides(name)
    large = sorted((k for k, n in enumerate(shape) if n != 1), key=cmp_to_key(outward))
    return large + [k for k, n in enumerate(shape) if n == 1]


def _why_not_stored(graph: Graph, name: str, strides: Shape, copy: KernelNode) -> str | None:
    """Why ``name`` cannot have these strides."""
    if not isinstance(graph.producer(name), Contraction | AttentionCall):
        return f"{name} is no result of a product or of attention"
    if graph.is_kept(name) or not graph.is_transient(name) or graph.is_part(name) or graph.parts_of(name):
        return f"{name} must stand in memory as it does"
    if 1 not in strides[-2:]:
        return f"neither rows nor columns of {name} would be contiguous in {strides}"
    return why_not_laid_out(graph, name, strides, copy)


def _value(stage: Stage, connector: str) -> str:
    """What the write ``connector`` stores, through assignments that do nothing: a name, "" for what is computed."""
    (last,) = (a for a in stage.assignments if a.symbol.name == connector)
    same = {a.symbol: a.expr for a in stage.assignments if a.dtype == last.dtype}
    value = last.symbol
    while value in same:
        value = same[value]
    return value.name if value.is_Symbol else ""


def _without(kernel: Kernel, connector: str) -> Kernel | None:
    """The kernel without one of its writes; None where it has no other."""
    (stage,) = kernel.stages
    writes = {c: w for c, w in stage.writes.items() if c != connector}
    return replace(kernel, stages=[stage.with_writes(writes)]) if writes else None
