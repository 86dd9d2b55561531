"""Sums over what was stacked for them, without the stack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import dace
import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operators import axes_of, is_op, operator_writing
from daceopt.passes.transform import NearMiss, Site, Transformation, sweep

_TERMS = {"ReduceSum": "Sum", "ReduceMean": "Mean"}


@dataclass(frozen=True)
class StackReduction(Transformation):
    """Add up arrays element by element instead of stacking them first and adding along the stack.

    before:  y = ReduceSum(Concat(x0: (1, n), x1: (1, n), ...; axis=0), [0]; keepdims=0)
    after:   y = Squeeze(Sum(x0, x1, ...), [0])

    before:  y = ReduceSum(Concat(Unsqueeze(x0, [0]), Unsqueeze(x1, [0]), ...; axis=0), [0]; keepdims=0)
    after:   y = Sum(x0, x1, ...)

    ``torch.stack(xs).sum(0)`` is such: skips of WaveNet, members of an ensemble, experts. ``most`` terms make one
    statement; the stack of more is left. Largest and smallest elements stay, because equal ones share their gradient.
    """

    level: ClassVar[str] = "coarse"
    most: int = 64

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not is_op(node, *_TERMS):
            return
        concat = operator_writing(graph, graph.operand(node, 0), "Concat")
        if concat is None:
            return
        terms, stacked = [str(n) for n in graph.inputs_of(concat)], graph.result(concat, 0)
        axis = int(concat.attribute("axis")) % len(graph.shape(stacked))
        if axes_of(graph, node) != [axis]:
            return
        reason = self._why_not(graph, terms, stacked, axis)
        yield Site(graph, (node, concat), {"terms": terms, "axis": axis}) if reason is None else NearMiss(node, reason)

    def _why_not(self, graph: Graph, terms: list[str], stacked: str, axis: int) -> str | None:
        if any(graph.shape(n)[axis] != 1 for n in terms):
            return f"parts of {', '.join(str(graph.shape(n)[axis]) for n in terms)} along the axis; expected 1 each"
        if not 2 <= len(terms) <= self.most:
            return f"{len(terms)} terms; expected 2 to {self.most}"
        if graph.dtype(stacked) not in (dace.float32, dace.float64):
            return f"a sum of {graph.dtype(stacked)}, which accumulates in another type"
        if len(graph.all_consumers(stacked)) > 1 or graph.is_kept(stacked):
            return "the stack is read by others, too"
        return None

    def apply(self, site: Site) -> None:
        graph, (node, concat) = site.graph, site.nodes
        result, keeps = graph.result(node, 0), node.attribute("keepdims", 1) == 1
        kind, terms, axis = _TERMS[node.op_type], site["terms"], site["axis"]
        graph.remove(node)
        rows = [_unstack(graph, name, axis) for name in terms]
        if not keeps and None not in rows:  # as they are: an image with one dimension more is none to the layout search
            graph.add_operator(kind, rows, [result])
            sweep(graph, [concat])
            return
        total = result if keeps else graph.add_array("total", graph.shape(terms[0]), graph.dtype(result))
        graph.add_operator(kind, terms, [total])
        if not keeps:
            axes = graph.add_constant("axes", np.array([axis], np.int64))
            graph.add_operator("Squeeze", [total, axes], [result])
        sweep(graph, [concat])


def _unstack(graph: Graph, name: str, axis: int) -> str | None:
    """What ``name`` is with the axis of the stack added; None where it is something else."""
    node = operator_writing(graph, name, "Unsqueeze")
    if node is None or graph.is_kept(name):
        return None
    operand = graph.operand(node, 0)
    shape = graph.shape(name)
    return operand if graph.shape(operand) == (*shape[:axis], *shape[axis + 1 :]) else None
