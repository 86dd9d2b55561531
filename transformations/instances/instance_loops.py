"""Equal instances of sub-graphs become loops whose bodies fit the caches of a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.passes.transform import NearMiss, Site, Transformation, label_of
from daceopt.splits.along import NodeCut, SplitAxis, split_axes
from daceopt.splits.rolling import roll
from daceopt.splits.rules import CannotSplit
from daceopt.splits.sums import cut_or_sum
from daceopt.transformations.instances._working_sets import AIMS, CacheBudget, InstanceGroup, groups


@dataclass(frozen=True)
class InstanceLoops(Transformation):
    """Run a sub-graph depth first: on as much of the batch at a time as stays in the caches, in a loop.

    before:  y = f(x); z = g(y)                                         (y is written to memory and read again)
    after:   for k < n // 4: y = f(x[4*k : 4*k + 4]); z[4*k : 4*k + 4] = g(y)     (y has 4 items and stays in a cache)

    Sub-graph instances of GraphTurbo (Zhao et al., OSDI 2023, sections 3 and 4) for a machine whose cores run one
    instance after the other together: equal instances share one body, operands are read and results written in place,
    what stays inside needs the memory of one instance. Sums over the batch, such as gradients of weights, are carried:
    each instance adds what its items give, in order, so results are the same in each run (``splits/sums.py``). Which
    nodes, and how many items each, is decided by what of their arrays a cache of ``cache`` bytes holds
    (``_working_sets.py``); with the ``aim`` of memory by how much less of that they take. The second inside of the
    first gives nested loops, few large instances of few small ones. ``items``: of an instance, for all that can be cut,
    instead of that.
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True
    items: int | None = None
    cache: int | None = None
    aim: str = "cache"

    def __post_init__(self) -> None:
        if self.aim not in AIMS:
            raise DaceoptError(f"{self.name}: aim {self.aim!r}; expected one of {', '.join(AIMS)}")

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        axis = next((data for data in split_axes(graph) if _is_batch(graph, data)), None)
        if axis is None:
            return
        cuts: dict[Node, NodeCut] = {}
        for node in graph.nodes():
            try:
                cuts[node] = cut_or_sum(graph, node, axis)
            except CannotSplit as error:
                if any(n in axis.dims for n in graph.inputs_of(node) if n is not None):
                    yield NearMiss(node, str(error))
        for group in groups(graph, axis, cuts, CacheBudget.of(self.cache), self.items, self.aim):
            data = {"group": group, "axis": axis, "cuts": cuts, "arrays": set(graph.arrays())}
            yield Site(graph, group.members, {**data, "title": _title(group, axis)})

    def apply(self, site: Site) -> None:
        graph, group = site.graph, site["group"]
        axis, cuts = site["axis"], site["cuts"]
        if any(n not in site["arrays"] for m in group.members for n in graph.inputs_of(m)):
            axis, cuts = _again(graph, axis, group)
        roll(graph, group.members, cuts, axis, group.items)


def _is_batch(graph: Graph, axis: SplitAxis) -> bool:
    """Is it the first dimension of most arrays (instances of rows of an image would need their neighbours' rows), also
    of such that have more than a number per item (channels have those), and of a number of items that is known, or is a
    size itself (and not what other instances have left)?"""
    if not isinstance(axis.items, int) and not axis.items.is_Symbol:
        return False
    first = [name for name, d in axis.dims.items() if d == 0]
    written = [sum(n != 1 for n in graph.shape(name)) for name in first if graph.producers(name)]
    return 2 * len(first) > len(axis.dims) and max(written, default=0) > 1


def _again(graph: Graph, axis: SplitAxis, group: InstanceGroup) -> tuple[SplitAxis, dict[Node, NodeCut]]:
    """The axis with the arrays that other loops have made since."""
    names = {n for m in group.members for n in graph.outputs_of(m)}
    axis = next(each for each in split_axes(graph) if names & each.dims.keys() and each.items == axis.items)
    return axis, {m: cut_or_sum(graph, m, axis) for m in group.members}


def _title(group: InstanceGroup, axis: SplitAxis) -> str:
    first, last = label_of(group.members[0]), label_of(group.members[-1])
    return f"{len(group.members)} nodes from {first} to {last}: {group.items} of {axis.items} items at a time"
