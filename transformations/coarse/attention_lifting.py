"""Scaled dot-product attention from products and a softmax."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.graph import Graph, Shape
from daceopt.ops.attention import SEES_A_KEY
from daceopt.transform import NearMiss, Site, Transformation, sweep
from daceopt.transformations.coarse._patterns import is_op, made_by, reads_only, scaled

_SWAP = [0, 1, 3, 2]


@dataclass(frozen=True)
class AttentionLifting(Transformation):
    """One Attention operator for queries, keys and values of (batch, head, position, feature), without dropout.

    before:  y = MatMul(Softmax(MatMul(q, Transpose(k)) * s + mask), v)
    after:   y = Attention(q, k, v, mask; scale=s)
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        if not is_op(node, "MatMul"):
            return
        weights, v = (str(n) for n in graph.inputs_of(node))
        if made_by(graph, weights, "Dropout") is not None:
            yield NearMiss(node, "dropout stands between the softmax and the product with the values")
            return
        softmax = made_by(graph, weights, "Softmax")
        if softmax is not None:
            found = _scores(graph, node, softmax, v)
            yield NearMiss(node, found) if isinstance(found, str) else Site(graph, (node,), found)

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        output = graph.outputs_of(node)[0]
        sources = [graph.producer(n) for n in graph.inputs_of(node) if n is not None]
        graph.remove(node)
        operands = [site["q"], _swapped(graph, site["kt"]), site["v"]]
        if site["mask"] is not None:
            operands.append(site["mask"])
        graph.add_operator("Attention", operands, [output], {"scale": site["scale"], SEES_A_KEY: 1})
        sweep(graph, sources)


def _scores(graph: Graph, node: Any, softmax: Any, v: str) -> dict[str, Any] | str:
    """The operands of the attention that ends in ``node``, or why it is none."""
    weights, scores = str(graph.outputs_of(softmax)[0]), str(graph.inputs_of(softmax)[0])
    rank = len(graph.shape(weights))
    if rank != 4 or len(graph.shape(v)) != 4:
        ranks = f"the weights have {rank} and the values {len(graph.shape(v))} dimensions"
        return f"{ranks}, expected 4: batch, head, position, feature"
    if softmax.attribute("axis", -1) % rank != rank - 1:
        return f"the softmax is over axis {softmax.attribute('axis', -1)}, expected the last"
    if not reads_only(graph, weights, node):
        return f"the attention weights {weights} have another user"
    mask, scores = _mask(graph, scores)
    found = scaled(graph, scores)
    scores, scale = found if found is not None else (scores, 1.0)
    product = made_by(graph, scores, "MatMul")
    if product is None:
        return f"the scores {scores} are not a product of queries and keys"
    q, kt = (str(n) for n in graph.inputs_of(product))
    if len(graph.shape(q)) != 4 or len(graph.shape(kt)) != 4 or graph.shape(q)[:2] != graph.shape(kt)[:2]:
        return (
            f"queries of shape {graph.shape(q)} and transposed keys of shape {graph.shape(kt)} differ in batch or heads"
        )
    if graph.shape(v)[:2] != graph.shape(q)[:2]:
        return f"values of shape {graph.shape(v)} and queries of shape {graph.shape(q)} differ in batch or heads"
    if mask is not None and not _broadcasts(graph.shape(mask), graph.shape(weights)):
        return f"the mask of shape {graph.shape(mask)} is larger than the scores {graph.shape(weights)}"
    return {"q": q, "kt": kt, "v": v, "mask": mask, "scale": scale}


def _mask(graph: Graph, scores: str) -> tuple[str | None, str]:
    """``(mask, scores)`` of an addition, in either order; the scores are the operand made by a product."""
    node = made_by(graph, scores, "Add")
    if node is None:
        return None, scores
    a, b = (str(n) for n in graph.inputs_of(node))
    return (a, b) if _is_product(graph, b) and not _is_product(graph, a) else (b, a)


def _is_product(graph: Graph, name: str) -> bool:
    found = scaled(graph, name)
    return made_by(graph, found[0] if found else name, "MatMul") is not None


def _broadcasts(shape: Shape, to: Shape) -> bool:
    return len(shape) <= len(to) and all(s in (1, t) for s, t in zip(reversed(shape), reversed(to), strict=False))


def _swapped(graph: Graph, kt: str) -> str:
    """The keys: what ``kt`` transposes if that undoes the swap, else ``kt`` transposed once more (a view)."""
    source, perm = kt, _SWAP
    node = made_by(graph, kt, "Transpose")
    if node is not None:
        source, inner = str(graph.inputs_of(node)[0]), list(node.attribute("perm") or (3, 2, 1, 0))
        perm = [inner[p] for p in _SWAP]
    if perm == sorted(perm):
        return source
    k = graph.add_array("k", [graph.shape(source)[p] for p in perm], graph.dtype(source))
    graph.add_operator("Transpose", [source], [k], {"perm": perm})
    return k
