"""Attention that a library has as one operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from daceopt import libs
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.attention_calls import AttentionBackward, AttentionCall, AttentionForward, pad_rows
from daceopt.ir.scalar import types
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.widening import FACTORS_WERE, MASK_WAS
from daceopt.ops.families.attention import DROPOUT, SEES_A_KEY, scale_of
from daceopt.ops.families.fused_attention import DOMAIN, NAME, attributes_of, lay_out, why_not_whole
from daceopt.ops.families.tiled_attention import why_not_plain
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.coarse._attention_operands import as_it_was, move_narrow, read_dropout, round_to

_KEPT = ("is_causal", "q_num_heads", "kv_num_heads", SEES_A_KEY)


@dataclass(frozen=True)
class AttentionFusing(Transformation):
    """Leave attention to a library that computes it as one operation, and so its gradients.

    before:  y = Attention(q, k, v, mask)
    after:   y, sums = FusedAttention(q, k, v, mask)

    It is one operator until the operators are lowered, and then one node in each direction; the scores of all pairs
    stand nowhere. Where a library of the graph's target takes all of it, in the element type that queries, keys and
    values had before they were widened. Weights that are dropped at random are not left to a library, which would drop
    others than those of the stream of random numbers that all targets share.
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        kind = getattr(node, "op_type", None), getattr(node, "domain", "")
        if kind not in (("Attention", ""), (DROPOUT, DOMAIN)):
            return
        reason = _why_not(graph, node, is_plain=kind[0] == "Attention")
        yield Site(graph, (node,)) if reason is None else NearMiss(node, reason)

    def apply(self, site: Site) -> None:
        graph, (node,) = site.graph, site.nodes
        inputs, out = graph.inputs_of(node)[:4], graph.result(node, 0)
        attributes = {a: node.attributes[a] for a in _KEPT if a in node.attributes}
        attributes["scale"] = scale_of(graph, node)
        were, origins = node.attribute(FACTORS_WERE), graph.origins_of(node)
        graph.remove(node)
        with graph.label_nodes(origins=origins):
            if were is not None:
                inputs = [n if n is None or _is_bool(graph, n) else as_it_was(graph, n, were) for n in inputs]
                out = round_to(graph, out, were)
            if not (graph.is_kept(out) or graph.is_view(out) or graph.views_of(out)):
                graph.set_strides(out, lay_out(graph, out))
            graph.add_operator(NAME, inputs, [out], attributes, DOMAIN)
        if were is not None:
            move_narrow(graph, out)


def _is_bool(graph: Graph, name: str) -> bool:
    return types.is_bool(graph.dtype(name))


def _why_not(graph: Graph, node: Node, is_plain: bool) -> str | None:
    if is_plain:
        reason = why_not_plain(graph, node)
    else:
        reason, dropout = read_dropout(graph, node)
        reason = reason or ("weights are dropped at random, the same ones on each target" if dropout else None)
    mask = values.at(graph.inputs_of(node), 3)
    were = node.attribute(FACTORS_WERE)
    if reason is None and mask is not None and not _is_bool(graph, mask) and node.attribute(MASK_WAS) != were:
        reason = f"a mask of {types.name_of(graph.dtype(mask))}, which factors of another type would round"
    return reason or _why_no_library(graph, node)


def _why_no_library(graph: Graph, node: Node) -> str | None:
    """Why no library of the target takes the nodes of both directions."""
    were = node.attribute(FACTORS_WERE)
    sample = _Sample(graph, node, graph.dtype(graph.operand(node, 0)) if were is None else types.from_onnx(were))
    reason = why_not_whole(sample.graph, sample.operator)
    for call in () if reason else sample.calls():
        listed = libs.reasons(call, sample.graph)
        if None not in listed.values():
            reason = reason or "; ".join(f"{name}: {why}" for name, why in listed.items())
    return reason


class _Sample:
    """The operator, and its nodes, over arrays of their own."""

    def __init__(self, graph: Graph, node: Node, dtype: DType) -> None:
        self.graph = Graph("sample")
        self.graph.options = graph.options
        names = [*graph.inputs_of(node), None][:4]
        kinds = [None if n is None else graph.dtype(n) if _is_bool(graph, n) else dtype for n in names]
        self._inputs = [
            None if n is None else self.graph.add_array("given", graph.shape(n), kind) for n, kind in zip(names, kinds)
        ]
        self._result = self.graph.add_array("result", graph.shape(graph.result(node, 0)), dtype)
        attributes = {a: node.attributes[a] for a in _KEPT if a in node.attributes}
        attributes["scale"] = scale_of(graph, node)
        self.operator = self.graph.add_operator(NAME, self._inputs, [self._result], attributes, DOMAIN)

    def calls(self) -> Sequence[AttentionCall]:
        add, attributes = self.graph.add_array, attributes_of(self.operator)
        shape, dtype = self.graph.shape(self._result), self.graph.dtype(self._result)
        operands = {c: n for c, n in zip(("Q", "K", "V", "Mask"), self._inputs) if n is not None}
        rows = shape[2] if len(shape) == 4 else shape[1]
        heads = shape[1] if len(shape) == 4 else attributes["heads"]
        sums = add("sums", (shape[0], heads, pad_rows(rows)), types.from_onnx(1))
        forward = AttentionForward(inputs=tuple(operands), outputs=("Y", "Lse"), **attributes)
        self.graph.remove(self.operator)
        self.graph.add_node(forward, operands, {"Y": self._result, "Lse": sums})
        operands |= {"Y": self._result, "Lse": sums, "dY": add("given", shape, dtype)}
        results = {f"d{c}": add("gradient", self.graph.shape(operands[c]), dtype) for c in "QKV"}
        backward = AttentionBackward(inputs=tuple(operands), outputs=tuple(results), **attributes)
        self.graph.add_node(backward, operands, results)
        return forward, backward
