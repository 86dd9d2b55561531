"""How the elements of arrays are dealt to the cores of a cluster: by dimensions, and what readers ask of writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from daceopt.ir.fusion.relations import Flow, Relation, flows, view_flow
from daceopt.ir.graph.kinds import Node
from daceopt.ir.scalar.dims import Dim

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

Binding = tuple[int, ...]
Flows = Mapping[tuple[str, str], Flow]
_MATCHED = ("bijective", "neighbourhood")


def plain(graph: Graph, name: str, cores: int) -> Binding:
    """Cores for each dimension of an array: as many as there are for the outermost one, what they leave for the next.

    GraphTurbo (Zhao et al., OSDI 2023, section 3.4): a factor is the largest of ``cores`` and its halves that divides
    the extent, so that all cores have as much to do. The outermost dimension is the one with the longest stride.
    """
    shape, strides = graph.shape(name), graph.strides(name)
    factors, free_cores = [1] * len(shape), cores
    numbers = [k for k, s in enumerate(strides) if isinstance(s, int)]
    for k in sorted(numbers, key=lambda k: -strides[k]) if len(numbers) == len(shape) else range(len(shape)):
        factors[k] = _factor(shape[k], free_cores)
        free_cores //= factors[k]
    return tuple(factors)


def _factor(extent: Dim, cores: int) -> int:
    factor = cores
    while factor > 1 and not (isinstance(extent, int) and extent and extent % factor == 0):
        factor //= 2
    return max(1, factor)


def infer(graph: Graph, node: Node, binding: Binding, ways: Flows | None = None) -> dict[str, Binding]:
    """How the arrays that ``node`` reads would have to be bound so that each core has what it needs for its part of the
    first array that ``node`` writes; by the arrays that nodes write or that are given, parts by themselves.

    A dimension that goes along one of the output (but for a halo) is bound as that is, others are not. What is not in
    the result has no such binding: it is read in different ways, or its extents cannot be divided so.
    """
    out = next(n for n in graph.outputs_of(node) if n is not None)
    bindings: dict[str, Binding | None] = {}
    for (read, written), flow in (flows(graph, node) if ways is None else ways).items():
        if written != out:
            continue
        factors = _through_views(graph, read, [_of(relation, binding) for relation in flow.dims])
        for name in graph.sources(read):
            fits = all(n == 1 or (isinstance(e, int) and e % n == 0) for n, e in zip(factors, graph.shape(name)))
            same = bindings.get(name, tuple(factors)) == tuple(factors)
            bindings[name] = tuple(factors) if fits and same else None
    return {name: b for name, b in bindings.items() if b is not None}


def _of(relation: Relation, binding: Sequence[int]) -> int:
    return binding[relation.axis] if relation.kind in _MATCHED and relation.axis is not None else 1


def _through_views(graph: Graph, name: str, factors: list[int]) -> list[int]:
    while graph.is_view(name):
        factors = [_of(relation, factors) for relation in view_flow(graph, name).dims]
        name = graph.view_source(name)
    return factors


def halo(flow: Flow, binding: Sequence[int], shape: Sequence[int]) -> int:
    """Elements of an array of ``shape`` that two cores need, where the output of ``flow`` is bound as ``binding``."""
    total = 0
    for k, relation in enumerate(flow.dims):
        factor = _of(relation, binding)
        if relation.kind == "neighbourhood" and factor > 1:
            width, stride = relation.width, relation.stride
            has_numbers = isinstance(width, int) and isinstance(stride, int)
            rows = max(0, width - abs(stride)) if has_numbers else shape[k]
            total += (factor - 1) * min(rows, shape[k]) * prod(shape) // max(shape[k], 1)
    return total
