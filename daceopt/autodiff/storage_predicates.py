"""Arrays of the forward pass as predicates see them, and the predicates that have names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from daceopt.ir.data.provenance import label_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.library import Contraction, Convolution
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim


@dataclass(frozen=True)
class ForwardArray:
    """``shape``: extents, expressions over size symbols where they are open; ``bytes``: of all elements; ``dtype``: the
    name of the type; ``modules``: where it is computed in the model. ``label`` is that of the node that writes it,
    ``kind`` what that is: "elementwise", "reduction", "product" or "other"."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    bytes: Dim
    modules: tuple[str, ...]
    label: str
    kind: str


Predicate: TypeAlias = Callable[[ForwardArray], bool]

NAMED: dict[str, Predicate] = {
    "@elementwise": lambda a: a.kind == "elementwise",
    "@reductions": lambda a: a.kind == "reduction",
    "@products": lambda a: a.kind == "product",
}
"""Predicates that the text of a recipe may name. Products are convolutions as well."""


def describe(graph: Graph, name: str, is_elementwise: Callable[[Node], bool]) -> ForwardArray:
    """The buffer ``name``, which a node of ``graph`` writes."""
    maker, dtype = graph.producers(name)[0], graph.dtype(name)
    size = graph.size(name) * types.itemsize(dtype)
    modules = graph.origins.get(name, ())
    kind = "elementwise" if is_elementwise(maker) else _kind(maker)
    return ForwardArray(name, graph.shape(name), types.name_of(dtype), size, modules, label_of(maker), kind)


def _kind(maker: Node | None) -> str:
    if isinstance(maker, KernelNode):
        return "reduction"
    return "product" if isinstance(maker, Contraction | Convolution) else "other"
