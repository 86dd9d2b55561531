"""What runs: layers around their anchors, and the kernels that these are stitched into (GraphTurbo, section 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from daceopt.cost.core_bindings import halo, infer
from daceopt.cost.machines.hierarchy import MachineModel
from daceopt.cost.simulator.footprint import Footprints
from daceopt.cost.work import known_flops, operations
from daceopt.ir.fusion.relations import Flow, flows
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.library import (
    Contraction,
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    GroupedProduct,
    IndexAdd,
    Pool,
    PoolBackward,
)

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

PRODUCT, MAC, ELEMENTWISE = "product", "multiply-accumulate", "element-wise"


@dataclass(frozen=True)
class Layer:
    """Nodes that run as one loop nest: an anchor and the point-wise kernels behind it.

    ``kernel``: which kernel it is part of. ``work``: operations by kind. ``reads`` and ``writes``: bytes by array, each
    given or written by one node; what passes inside of the layer stays in registers and local buffers, and is in
    neither. ``aligned``: arrays of which each part of the layer needs the same part only, but for a halo.
    """

    label: str
    nodes: tuple[Node, ...]
    kernel: int
    work: Mapping[str, int]
    reads: Mapping[str, int]
    writes: Mapping[str, int]
    aligned: frozenset[str]


class Kernels:
    """The layers of a graph in the order in which they run, and how they are joined to kernels.

    A layer is a straight line of nodes with at most one that is no point-wise kernel, at its head (section 1.1). The
    library nodes of a graph have their epilogues already and its kernels are fused; what follows a convolution and
    waits for nothing else joins it here. The layers of a sub-graph's instance that follow one another are one kernel:
    what passes between them is stitched in local buffers (section 4.2); every other layer is a kernel of its own.
    """

    def __init__(self, graph: Graph, machine: MachineModel, sizes: Mapping[str, int] | None = None):
        self.graph, self.machine = graph, machine
        self.footprints = Footprints(graph, sizes)
        self._home = graph.instance_positions()
        self._rank = {node: k for k, node in enumerate(graph.nodes())}
        self._flows = {node: flows(graph, node) for node in self._rank}

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        members = sorted(self._members(), key=lambda nodes: self._rank[nodes[-1]])
        layers: list[Layer] = []
        kernel, last = -1, None
        for group in members:
            home = self._home.get(group[0])
            kernel += home is None or home != last
            last = home
            layers.append(self._layer(group, kernel))
        return tuple(layers)

    @property
    def count(self) -> int:
        """How many kernels there are."""
        return self.layers[-1].kernel + 1 if self.layers else 0

    def nbytes(self, name: str) -> int:
        """Bytes of an array as the machine stores it."""
        return self.footprints.elements(name) * self.machine.itemsize(self.graph.dtype(name))

    def binding(self, layer: Layer) -> tuple[int, ...]:
        """How the result of a layer is dealt to cores; () where no step has said so."""
        placements = (self.graph.placements.get(name) for name in layer.writes)
        return next((p.binding for p in placements if p is not None), ())

    def crossing(self, layer: Layer, name: str) -> int:
        """Bytes of an array in local buffers that cores need which do not have them: halos, or where it is dealt to
        cores in another way than the layer's result asks for, all of it (each core sends its own to all, once)."""
        have, wish = self.graph.placements.get(name), self.binding(layer)
        if have is None or not have.binding or not wish:
            return 0
        itemsize = self.machine.itemsize(self.graph.dtype(name))
        shape = [self.footprints.number(n) for n in self.graph.shape(name)]
        total = 0
        for node in layer.nodes:
            readers = [f for (read, _), f in self._flows[node].items() if name in self.graph.sources(read)]
            if readers and infer(self.graph, node, wish, self._flows[node]).get(name) != have.binding:
                return self.nbytes(name) if have.cores > 1 else 0
            total += sum(halo(f, wish, shape) for f in readers if len(f.dims) == len(shape))
        return min(total * itemsize, self.nbytes(name))

    # ---------------------------------------------------------------- layers

    def _members(self) -> list[list[Node]]:
        groups: dict[Node, list[Node]] = {}  # last node of a layer -> the layer
        for node in self._rank:
            before = self._follows(node)
            if before is None or before not in groups:
                groups[node] = [node]
                continue
            groups[node] = [*groups.pop(before), node]
        return list(groups.values())

    def _follows(self, node: Node) -> Node | None:
        """The node behind which a point-wise kernel runs in the same layer, or None."""
        if not self._is_pointwise(node):
            return None
        reads = [n for n in self.graph.inputs_of(node) if n is not None]
        sources = {source: name for name in reads for source in self.graph.producers(name)}
        if not sources:
            return None
        last = max(sources, key=self._rank.__getitem__)
        name, written = sources[last], [n for n in self.graph.outputs_of(last) if n is not None]
        alone = written == [name] and self.graph.all_consumers(name) == [node] and not self.graph.is_kept(name)
        together = self._home.get(last) == self._home.get(node)
        return last if alone and together and self._is_equal(node, name) else None

    def _is_pointwise(self, node: Node) -> bool:
        kinds = {relation.kind for flow in self._flows[node].values() for relation in flow.dims}
        return isinstance(node, KernelNode) and kinds <= {"bijective", "injective"}

    def _is_equal(self, node: Node, name: str) -> bool:
        ways = [flow for (read, _), flow in self._flows[node].items() if read == name]
        return bool(ways) and all(flow.is_equal for flow in ways)

    def _layer(self, members: list[Node], kernel: int) -> Layer:
        graph = self.graph
        own = [n for node in members[:-1] for n in graph.outputs_of(node) if n is not None]
        reads: dict[str, int] = {}
        for node in members:
            for name, count in self.footprints.reads(node).items():
                size = count * self.machine.itemsize(graph.dtype(name))
                if name not in own:
                    reads[name] = max(reads.get(name, 0), size)
        writes = {name: self.nbytes(name) for name in self.footprints.writes(members[-1])}
        work: Counter[str] = Counter()
        for node in members:
            work.update(self.work(node))
        label = str(getattr(members[0], "label", members[0]))
        return Layer(label, tuple(members), kernel, dict(work), reads, writes, self._aligned_reads(members, reads))

    def work(self, node: Node) -> dict[str, int]:
        """Operations of one execution by kind of work; of a node whose work nobody knows, one for each element that it
        writes."""
        if not isinstance(node, KernelNode):
            return {self._unit(node): self._operations(node)}
        kernel = node.kernel
        counts: Counter[str] = Counter()
        for stage in kernel.stages:
            scalar = operations(stage.assignments)
            sums = sum(1 for access in stage.writes.values() if access.wcr)
            count = self.footprints.number(kernel.most(stage.params))
            fused = sums and scalar <= 1  # a product that is added, or what is added as it is
            counts[MAC if fused else ELEMENTWISE] += count * max(scalar, 0 if sums else 1)
            counts[MAC] += count * sums
        return {kind: count for kind, count in counts.items() if count}

    def _unit(self, node: Node) -> str:
        """The work of a library node: convolutions of single channels and windows multiply and accumulate."""
        if isinstance(node, Contraction | GroupedProduct):
            return PRODUCT
        if isinstance(node, (Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights)):
            weight = next(n for c, n in node.operands(self.graph).items() if c in ("W", "dW"))
            return PRODUCT if self.footprints.number(self.graph.shape(weight)[1]) > 1 else MAC
        return MAC if isinstance(node, (Pool, PoolBackward, IndexAdd)) else ELEMENTWISE

    def _operations(self, node: Node) -> int:
        return self.footprints.number(known_flops(self.graph, node)) or sum(self.footprints.writes(node).values())

    def _aligned_reads(self, members: list[Node], reads: Mapping[str, int]) -> frozenset[str]:
        ways: dict[str, list[Flow]] = {}
        for node in members:
            for (read, _), flow in self._flows[node].items():
                for name in self.graph.sources(read):
                    ways.setdefault(name, []).append(flow)
        return frozenset(name for name in reads if name in ways and all(map(_goes_along, ways[name])))


def _goes_along(flow: Flow) -> bool:
    """Does the outermost dimension of an input go along that of the output, step by step?"""
    axis = next((k for k, n in enumerate(flow.out) if n != 1), None)
    first = next((r for r in flow.dims if r.axis is not None or r.kind not in ("bijective", "injective")), None)
    return first is not None and first.axis == axis and first.kind in ("bijective", "neighbourhood")
