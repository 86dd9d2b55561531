"""One multiplication by a constant in attention instead of several on the queries, the keys and the scores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.graph import Graph
from daceopt.transform import NearMiss, Site, Transformation, sweep
from daceopt.transformations.coarse._patterns import add_like, add_scalar, is_op, reads_only, scaled

_HOPS = 2  # the mask and the softmax


@dataclass(frozen=True)
class AttentionScaleFolding(Transformation):
    """Gather the constant factors of a product that feeds a softmax into one multiplication of the scores.

    before:  p = Softmax(MatMul(q * sqrt(s), k * sqrt(s)) + mask)
    after:   p = Softmax(MatMul(q, k) * s + mask)
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        if not is_op(node, "MatMul"):
            return
        operands = [str(n) for n in graph.inputs_of(node)]
        found = [scaled(graph, n) for n in operands]
        factors = [f[1] for f in found if f is not None]
        if not factors:
            return
        end, after = _scale_after(graph, node)
        if not _feeds_softmax(graph, end):
            yield NearMiss(node, "the scaled product does not feed a Softmax")
            return
        total = after
        for factor in factors:
            total *= factor
        plain = [f[0] if f is not None else n for f, n in zip(found, operands, strict=True)]
        yield Site(graph, tuple(dict.fromkeys((node, end))), {"operands": plain, "scale": total})

    def apply(self, site: Site) -> None:
        graph, product, end = site.graph, site.nodes[0], site.nodes[-1]
        output = str(graph.outputs_of(end)[0])
        sources = [graph.producer(n) for n in graph.inputs_of(product) if n is not None]
        for node in reversed(site.nodes):
            graph.remove(node)
        scores = add_like(graph, "scores", output)
        graph.add_operator("MatMul", site["operands"], [scores])
        graph.add_operator("Mul", [scores, add_scalar(graph, site["scale"], output)], [output])
        sweep(graph, sources)


def _scale_after(graph: Graph, product: Any) -> tuple[Any, float]:
    """The multiplication that follows the product and its factor; the product itself and 1 when there is none."""
    name = str(graph.outputs_of(product)[0])
    readers = graph.consumers(name)
    if len(readers) == 1 and reads_only(graph, name, readers[0]) and is_op(readers[0], "Mul", "Div"):
        found = scaled(graph, graph.outputs_of(readers[0])[0])
        if found is not None and found[0] == name:
            return readers[0], found[1]
    return product, 1.0


def _feeds_softmax(graph: Graph, node: Any) -> bool:
    """Is the only reader a Softmax, or an Add or Where (the mask) whose only reader is one?"""
    for _ in range(_HOPS):
        readers = graph.consumers(str(graph.outputs_of(node)[0]))
        if len(readers) != 1:
            return False
        node = readers[0]
        if is_op(node, "Softmax"):
            return True
        if not is_op(node, "Add", "Where"):
            return False
    return False
