"""Ten transformations with a bug each, as people write them: they match, apply, and leave a graph that looks right.

Each works on lowered graphs, forward and backward. ``only`` says on which: the name of a graph ends like that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.nodes.library import Contraction, Convolution, ConvolutionBackwardData
from daceopt.ir.scalar import scalar, types
from daceopt.ir.schedule.schedule import Accumulate, Loop, default, map_tree
from daceopt.transform import Site, Transformation

BACKWARD = "_backward"


@dataclass(frozen=True)
class Planted(Transformation):
    """Does something wrong once, at the first place where it can."""

    level = "hardware"
    sites_are_independent = True
    backward: bool = False

    def match(self, graph: Graph) -> Iterator[Any]:
        if graph.name.endswith(BACKWARD) != self.backward:
            return
        for node in graph.nodes():
            for site in self.places(graph, node):
                yield site
                return

    def places(self, graph: Graph, node: Any) -> Iterable[Site]:
        raise NotImplementedError


@dataclass(frozen=True)
class PlantedInKernel(Planted):
    """Replaces a kernel by a wrong one."""

    def places(self, graph: Graph, node: Any) -> Iterable[Site]:
        if node not in graph.kernels() or node.tree is not None:
            return
        kernel = node.kernel
        if kernel.is_tiled or len(kernel.stages) != 1:
            return
        wrong = self.spoiled(graph, kernel)
        if wrong is not None:
            yield Site(graph, (node,), {"kernel": wrong})

    def apply(self, site: Site) -> None:
        site.graph.remove(site.nodes[0])
        site.graph.add_kernel(site["kernel"])

    def spoiled(self, graph: Graph, kernel: Kernel) -> Kernel | None:
        raise NotImplementedError


def _with_stage(kernel: Kernel, **changes: Any) -> Kernel:
    return replace(kernel, stages=[replace(kernel.stages[0], **changes)])


def _reads(stage: Stage, connector: str, index: Any) -> dict[str, Access]:
    return {**stage.reads, connector: replace(stage.reads[connector], index=tuple(index))}


@dataclass(frozen=True)
class WrongAxis(PlantedInKernel):
    """Walks a square operand along its other axis."""

    def spoiled(self, graph: Graph, kernel: Kernel) -> Kernel | None:
        (stage,) = kernel.stages
        for c, a in stage.reads.items():
            extents = [kernel.extents.get(e) for e in a.index]
            if len(a.index) == 2 and a.index[0] != a.index[1] and None not in extents and extents[0] == extents[1] != 1:
                return _with_stage(kernel, reads=_reads(stage, c, reversed(a.index)))
        return None


@dataclass(frozen=True)
class DroppedTile(PlantedInKernel):
    """Leaves out what a whole number of tiles does not reach."""

    tile: int = 3

    def spoiled(self, graph: Graph, kernel: Kernel) -> Kernel | None:
        for p, n in kernel.extents.items():
            if isinstance(n, int) and n > self.tile and n % self.tile:
                return replace(kernel, extents={**kernel.extents, p: n - n % self.tile})
        return None


@dataclass(frozen=True)
class LostAccumulation(PlantedInKernel):
    """Stores each summand in the place of the sum."""

    def spoiled(self, graph: Graph, kernel: Kernel) -> Kernel | None:
        (stage,) = kernel.stages
        summed = {c: a for c, a in stage.writes.items() if a.wcr == "sum"}
        if not summed:
            return None
        return _with_stage(kernel, writes=stage.writes | {c: replace(a, wcr=None) for c, a in summed.items()})


@dataclass(frozen=True)
class Race(Planted):
    """Lets threads share the loop of a sum, and its accumulator."""

    def places(self, graph: Graph, node: Any) -> Iterable[Site]:
        if node not in graph.kernels() or node.tree is not None:
            return
        kernel = node.kernel
        tree = default(kernel)
        wrong = map_tree(tree, _shared)
        if wrong != tree:
            yield Site(graph, (node,), {"tree": wrong})

    def apply(self, site: Site) -> None:
        site.nodes[0].kernel = replace(site.nodes[0].kernel, schedule=site["tree"])


def _shared(node: Any) -> Any:
    if isinstance(node, Accumulate) and isinstance(node.body, Loop):
        return replace(node, body=replace(node.body, kind="parallel"))
    return node


@dataclass(frozen=True)
class OffByOneHalo(Planted):
    """Moves the window of a convolution by one element."""

    def places(self, graph: Graph, node: Any) -> Iterable[Site]:
        if isinstance(node, (Convolution, ConvolutionBackwardData)) and any(node.pads):
            yield Site(graph, (node,))

    def apply(self, site: Site) -> None:
        (node,) = site.nodes
        pads = list(node.pads)
        half = len(pads) // 2
        node.pads = [pads[0] - 1, *pads[1:half], pads[half] + 1, *pads[half + 1 :]]


@dataclass(frozen=True)
class WrongBroadcast(PlantedInKernel):
    """Repeats a row down the columns, or a column along the rows."""

    def spoiled(self, graph: Graph, kernel: Kernel) -> Kernel | None:
        (stage,) = kernel.stages
        (written,) = stage.writes.values()
        for c, a in stage.reads.items():
            for d, e in enumerate(a.index):
                if e not in kernel.extents or len(a.params()) != 1:
                    continue
                others = [p for p in written.params() - {e} if kernel.extents.get(p) == kernel.extents[e]]
                if others:
                    other = sorted(others, key=str)[0]
                    return _with_stage(kernel, reads=_reads(stage, c, [*a.index[:d], other, *a.index[d + 1 :]]))
        return None


@dataclass(frozen=True)
class StaleBuffer(Planted):
    """Lets a reader take what stood in the buffer before: the operand of what it should read."""

    def places(self, graph: Graph, node: Any) -> Iterable[Site]:
        if node not in graph.kernels() or node.tree is not None:
            return
        for new in graph.outputs_of(node):
            for old in graph.inputs_of(node):
                alike = graph.shape(old) == graph.shape(new) and graph.dtype(old) == graph.dtype(new)
                if alike and new not in graph.outputs and graph.consumers(new):
                    yield Site(graph, (node,), {"old": old, "new": new})
                    return

    def apply(self, site: Site) -> None:
        site.graph.replace_uses(site["new"], site["old"])


@dataclass(frozen=True)
class WrongDtype(PlantedInKernel):
    """Keeps an intermediate value in half precision."""

    def spoiled(self, graph: Graph, kernel: Kernel) -> Kernel | None:
        (stage,) = kernel.stages
        last = stage.assignments[-1]
        if not types.is_float(last.dtype) or last.expr.is_Symbol:
            return None
        rounded = replace(last, expr=scalar.cast(scalar.cast(last.expr, types.from_name("bfloat16")), last.dtype))
        return _with_stage(kernel, assignments=(*stage.assignments[:-1], rounded))


@dataclass(frozen=True)
class SwappedOperands(Planted):
    """Multiplies square matrices in the other order, or subtracts the other way round."""

    def places(self, graph: Graph, node: Any) -> Iterable[Site]:
        if isinstance(node, Contraction):
            names = node.operands(graph)
            if graph.shape(names["A"]) == graph.shape(names["B"]):
                yield Site(graph, (node,), names)

    def apply(self, site: Site) -> None:
        graph, (node,) = site.graph, site.nodes
        reads, writes = graph.reads(node), graph.writes(node)
        graph.remove(node)
        attributes = {"alpha": node.alpha, "activation": node.activation}
        twin = Contraction(node.label, inputs=list(reads), **attributes)
        graph.add_node(twin, {**reads, "A": reads["B"], "B": reads["A"]}, writes)


@dataclass(frozen=True)
class MissingDependency(Planted):
    """Takes an edge out of the graph: nothing says any longer that a reader waits for what it reads."""

    def places(self, graph: Graph, node: Any) -> Iterable[Site]:
        for name in graph.inputs_of(node):
            if name is not None and graph.producers(name) and node in graph.kernels():
                yield Site(graph, (node,), {"name": name})
                return

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        for connector in [c for c, name in graph.reads(node).items() if name == site["name"]]:
            graph.def_use.drop_read(node, connector)


ALL: tuple[type[Planted], ...] = (
    WrongAxis,
    DroppedTile,
    LostAccumulation,
    Race,
    OffByOneHalo,
    WrongBroadcast,
    StaleBuffer,
    WrongDtype,
    SwappedOperands,
    MissingDependency,
)
