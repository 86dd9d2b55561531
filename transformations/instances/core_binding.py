"""Say which cores have which part of each array, and in which memory it lives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from daceopt.cost import machines
from daceopt.cost.core_bindings import Binding, infer, plain
from daceopt.ir.fusion.relations import flows
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.placements import LEVELS, Placement
from daceopt.passes.transform import NearMiss, Site, Transformation

_LOCAL, _SHARED, _MEMORY = LEVELS


@dataclass(frozen=True)
class CoreBinding(Transformation):
    """Bind the results of nodes to cores, and infer the memory that each lives in.

    before:  a = f(x); y = g(a)
    after:   a = f(x) on cores 8x1, in local buffers; y = g(a) on cores 8x1, in memory

    Algorithm 4 of GraphTurbo (Zhao et al., OSDI 2023, section 3.4). Nodes are visited against the order in which they
    run. A result that nobody has asked anything of is bound plainly: cores go to its outermost dimensions. From that
    follows how what the node reads should be bound. Where two readers ask for different bindings, or a writer would
    leave cores idle with the one that it is asked for, the array lives in the shared buffer, through which cores
    exchange it. Outputs and what is saved for a backward graph live in memory; what is given stays where it is.

    The paper infers nothing from a binding that was itself inferred, so that every second edge of a chain is unchecked;
    here inference goes on. It looks at results of sub-graph instances and leaves what is inside of them to its kernel
    generator, with the same rule; here all are looked at alike. Open extents are bound to one core.

    ``machine``: a name or file of ``cost.machines``; by default the one assumed, or this CPU.
    """

    level: ClassVar[str] = "hardware"
    changes_dataflow: ClassVar[bool] = False
    sites_are_independent: ClassVar[bool] = True
    machine: str = ""

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        cores = machines.get(self.machine).cores
        placements = _Inference(graph, cores).placements()
        if placements and placements != graph.placements:
            counts = {level: sum(p.level == level for p in placements.values()) for level in LEVELS}
            title = ", ".join(f"{count} in {level}" for level, count in counts.items())
            yield Site(graph, (), {"placements": placements, "title": f"{title}, {cores} cores"})

    def apply(self, site: Site) -> None:
        site.graph.placements = site["placements"]


class _Inference:
    """``bind`` and ``scope`` of the algorithm, by the arrays that nodes write."""

    def __init__(self, graph: Graph, cores: int):
        self._graph, self._cores = graph, cores
        self._bind: dict[str, Binding] = {}
        self._scope: dict[str, str] = {}

    def placements(self) -> dict[str, Placement]:
        graph = self._graph
        for node in reversed(graph.nodes()):
            self._visit(node, [n for n in graph.outputs_of(node) if n is not None])
        placements = {name: _MEMORY for name in self._bind if graph.is_kept(name)}
        scope = {**self._scope, **placements}
        order = (n for node in graph.nodes() for n in graph.outputs_of(node) if n is not None)
        return {name: Placement(scope[name], self._bind[name]) for name in order}

    def _visit(self, node: Node, results: list[str]) -> None:
        for name in results:
            own = plain(self._graph, name, self._cores)
            bound = self._bind.get(name)
            self._scope.setdefault(name, _LOCAL)
            if bound is None or self._scope[name] != _LOCAL:
                self._bind[name] = own
            elif prod(own) > prod(bound):
                self._bind[name], self._scope[name] = own, _SHARED
        if results:
            self._ask(infer(self._graph, node, self._bind[results[0]], flows(self._graph, node)))

    def _ask(self, bindings: Mapping[str, Binding]) -> None:
        """The writers of what a node reads hear how it should be bound."""
        for name, binding in bindings.items():
            if not self._graph.producers(name) or prod(binding) == 1:
                continue
            if name not in self._bind:
                self._bind[name], self._scope[name] = binding, _LOCAL
            elif self._bind[name] != binding:
                self._scope[name] = _SHARED
