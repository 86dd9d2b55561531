"""What a program takes while it runs, beside what its caller gives and gets: planned, and node by node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from daceopt.codegen import in_place
from daceopt.codegen.lending import SAVED_BLOCK
from daceopt.codegen.memory_plan import aligned_bytes, as_built, residents_as_built
from daceopt.ir.control import region_settling
from daceopt.ir.control.program import Program
from daceopt.ir.data.provenance import label_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar.dims import hint


@dataclass(frozen=True)
class Moment:
    """While ``node`` runs: the bytes of each buffer that is alive, the largest first, but of those that are where a
    result will."""

    node: str
    alive: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.alive)


@dataclass(frozen=True)
class DirectionMemory:
    """One program: the bytes of its arena, and what is alive there and in the saved block while each of its nodes
    runs."""

    name: str
    arena: int
    moments: tuple[Moment, ...]

    @property
    def fullest(self) -> Moment | None:
        return max(self.moments, key=lambda m: m.bytes, default=None)


@dataclass(frozen=True)
class WorkingMemory:
    """``saved``: arrays from the forward to the backward, which are in one block of ``saved_bytes`` until that has
    run; ``directions``: forward and backward, each with an arena of its own beside it. Where a saved array is not
    written yet, or was read for the last time, other arrays are in the block."""

    saved: tuple[tuple[str, int], ...]
    saved_bytes: int
    directions: tuple[DirectionMemory, ...]

    @property
    def peak(self) -> int:
        """The saved block and the larger arena."""
        return self.saved_bytes + max(d.arena for d in self.directions)

    def holders(self) -> list[tuple[str, int]]:
        """The four largest arrays among those that are alive when most is."""
        moments = [d.fullest for d in self.directions if d.fullest is not None]
        fullest = max(moments, key=lambda moment: moment.bytes, default=None)
        return list(fullest.alive[:4]) if fullest is not None else []


def plan_memory(program: Program, sizes: Mapping[str, int] | None = None) -> WorkingMemory:
    """As the programs will be built; sizes that are not given count as ``ir.scalar.dims.HINT``."""
    graphs = [_settle(graph) for graph in program.directions()]
    saved = tuple((n, hint(aligned_bytes(graphs[0], n), sizes)) for n in graphs[0].saved)
    directions = tuple(
        _direction(name, graph, sizes) for name, graph in zip(("forward", "backward"), graphs, strict=False)
    )
    return WorkingMemory(saved, sum(size for _, size in saved), directions)


def _settle(graph: Graph) -> Graph:
    """As ``build`` settles it before it plans."""
    graph = graph.copy()
    region_settling.settle(graph)
    if graph.replaced:
        graph.order = in_place.order_of(graph)
    return graph


def _direction(name: str, graph: Graph, sizes: Mapping[str, int] | None) -> DirectionMemory:
    arena = hint(as_built(graph).arena_bytes, sizes)
    nodes = graph.nodes()
    held: list[list[tuple[str, int]]] = [[] for _ in nodes]
    for resident in (r for r in residents_as_built(graph) if r.lent_by in (None, SAVED_BLOCK)):
        size = hint(resident.bytes, sizes)
        for position in range(resident.first, resident.last + 1):
            held[position].append((resident.name, size))
    moments = (Moment(label_of(n), tuple(sorted(h, key=lambda b: -b[1]))) for n, h in zip(nodes, held, strict=True))
    return DirectionMemory(name, arena, tuple(moments))
