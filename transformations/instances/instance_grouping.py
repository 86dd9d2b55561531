"""Group nodes into sub-graphs that run in instances which fit a buffer of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from daceopt.cost.machines import MachineModel, get
from daceopt.cost.work import known_flops
from daceopt.errors import DaceoptError
from daceopt.ir.data.provenance import label_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.sub_graphs import HALOS, SubGraph
from daceopt.ir.nodes import library
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.instances._cuts import Cut, Cuts, cuts_of
from daceopt.transformations.instances._merging import Merging
from daceopt.transformations.instances._pieces import HaloCosts, halo_costs
from daceopt.transformations.instances._splitting_information import PLANNED, AxisSplit, Budget
from daceopt.transformations.instances._traffic import seconds

_PRODUCTS = (
    library.Contraction,
    library.Convolution,
    library.ConvolutionBackwardData,
    library.ConvolutionBackwardWeights,
)


@dataclass(frozen=True)
class InstanceGrouping(Transformation):
    """Decide which nodes are split together, along which axis and into how many instances; edits nothing else.

    before:  x -> conv -> relu -> conv -> add -> ...               (each 4 MiB; the buffers of a cluster have 2 MiB)
    after:   sub-graph {conv, relu, conv, add}, axis 0, 4 instances

    GraphTurbo (Zhao et al., OSDI 2023): splitting information (algorithm 1), best split (equation 1), grouping
    (algorithm 2). Axes are followed from node to node by their flows, and whether a node can be split by the rules of
    ``daceopt.splits``, so no operator is named here. ``machine``: a name or file of ``cost.machines``, or a model (this
    CPU where it is empty). ``buffer``: the one for which instances are sized, ``local`` or ``shared``; where it is
    empty, the one for which a model says that data moves faster. ``finer``: positions of sub-graphs, each as often as
    its factor becomes the next that is at least twice as large, so that there is room for results that wait. What
    cannot be split stays as it is; the near misses say why. Raises DaceoptError for positions that do not exist.
    """

    level: ClassVar[str] = "hardware"
    changes_dataflow: ClassVar[bool] = False
    sites_are_independent: ClassVar[bool] = True
    machine: Any = ""
    buffer: str = ""
    finer: tuple[int, ...] = ()

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        if graph.sub_graphs or not graph.nodes():
            return
        planned = [cuts_of(graph, node) for node in graph.nodes()]
        merging = self._group(graph, planned)
        position = 0
        for leader in merging.clusters.topological():
            why_not = self._refine(merging, leader, position)
            members = sorted(merging.clusters.members(leader))
            sites = list(_Decision(graph, planned, merging, leader, members).find())
            yield from sites
            if any(isinstance(one, Site) for one in sites):
                position += 1
                yield from (NearMiss(planned[members[0]].node, reason) for reason in why_not)
        if any(not 0 <= k < position for k in self.finer):
            expected = f"expected positions of its {position} sub-graphs, from 0"
            raise DaceoptError(f"{self.name}: finer={self.finer!r}; {expected}")

    def _refine(self, merging: Merging, leader: int, position: int) -> list[str]:
        """Split a group more finely, as often as ``finer`` has its position; why not, where that cannot be."""
        for _ in range(self.finer.count(position)):
            if not merging.refine(leader):
                return [
                    "cannot be split more finely: no larger factor divides its axis, or its instances share elements"
                ]
        return []

    def _group(self, graph: Graph, planned: Sequence[Cuts]) -> Merging:
        """For the buffer of the option, or the one for which data moves faster."""
        machine = get(self.machine)
        if self.buffer not in ("", *PLANNED):
            raise DaceoptError(f"{self.name}: buffer {self.buffer!r}; expected one of {', '.join(PLANNED)}, or nothing")
        candidates = [
            Merging(graph, planned, Budget(machine, level)).run()
            for level in ((self.buffer,) if self.buffer else PLANNED)
        ]
        return min(candidates, key=lambda merging: seconds(graph, merging))

    def apply(self, site: Site) -> None:
        site.graph.put_sub_graph(site["group"])


@dataclass(frozen=True)
class _Decision:
    """What has been decided of one group."""

    graph: Graph
    planned: Sequence[Cuts]
    merging: Merging
    leader: int
    members: Sequence[int]

    def find(self) -> Iterator[Site | NearMiss]:
        split, nodes = self._split, [self.planned[k].node for k in self.members]
        yield from (NearMiss(c.node, c.reason) for c in map(self.planned.__getitem__, self.members) if not c.ways)
        if split is None:
            if self.planned[self.leader].ways:
                yield NearMiss(nodes[0], self._too_large())
            return
        costs = self._costs if split.halo and split.factor * split.clusters > 1 else None
        if costs is not None and min(costs.recomputed, costs.kept) == float("inf"):
            yield NearMiss(nodes[0], f"{split.factor} instances along axis {split.axis} would leave some without work")
            return
        halos = costs.best if costs else HALOS[0]
        group = SubGraph(self._axes(), split.factor, split.clusters, halos)
        yield Site(self.graph, tuple(nodes), {"group": group, "title": self._title(split, costs)})

    @property
    def _split(self) -> AxisSplit | None:
        return self.merging.groups[self.leader].best

    @property
    def _budget(self) -> Budget:
        return self.merging.budget

    def _cut(self, k: int) -> Cut | None:
        assert self._split is not None
        return self.merging.cut_of(k, self._split.way)

    def _axes(self) -> dict[str, int]:
        axes: dict[str, int] = {}
        for k in self.members:
            cut = self._cut(k)
            axes |= dict(cut.division.axes) if cut else dict.fromkeys(self.planned[k].writes, 0)
        return axes

    @cached_property
    def _costs(self) -> HaloCosts:
        cuts = [(self.planned[k].node, self._cut(k)) for k in self.members]
        members = [(node, cut) for node, cut in cuts if cut is not None]
        split, machine = self._split, self._budget.machine
        assert split is not None
        slower = machine.shared if self._budget.level == "local" else machine.memory

        def transfer(name: str) -> float:
            return 2 * int(self.graph.size(name)) * machine.itemsize(self.graph.dtype(name)) / slower.bandwidth

        def work(node: Node) -> float:
            return _seconds(self.graph, node, machine)

        return halo_costs(self.graph, members, split.factor * split.clusters, work, transfer)

    def _title(self, split: AxisSplit, costs: HaloCosts | None) -> str:
        first, last = (label_of(self.planned[k].node) for k in (self.members[0], self.members[-1]))
        nodes = f"{first} ... {last} ({len(self.members)} nodes)" if len(self.members) > 1 else first
        where = f" along axis {split.axis}" if split.axis >= 0 else ""
        clusters = f" on each of {split.clusters} clusters" if split.clusters > 1 else ""
        size = f"{split.footprint} of {self._budget.bytes} bytes ({self._budget.level})"
        plural = "instances" if split.factor > 1 else "instance"
        return f"{nodes}: {split.factor} {plural}{where}{clusters}, {size}{f', {costs}' if costs else ''}"

    def _too_large(self) -> str:
        group = self.merging.groups[self.leader]
        return (
            f"{int(group.profile.peak)} bytes are alive, and no axis divides them into instances of "
            f"{self._budget.bytes} bytes ({self._budget.level} buffers of {self._budget.machine.name})"
        )


def _seconds(graph: Graph, node: Node, machine: MachineModel) -> float:
    """The time of a node on all cores of a cluster."""
    try:
        operations = float(known_flops(graph, node))
    except TypeError:  # of open sizes
        return 0.0
    kind = "product" if isinstance(node, _PRODUCTS) else "element-wise"
    return machine.seconds(kind, operations, machine.cores)
