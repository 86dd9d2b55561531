"""Compute with arrays of one repeated value as if they were that value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.ir.graph.operators import is_op, operator_writing
from daceopt.ir.scalar import types
from daceopt.ops.core import reference
from daceopt.passes.transform import NearMiss, Site, Transformation

_POINTWISE = (
    *("Add", "Sub", "Mul", "Div", "Neg", "Min", "Max", "Cast", "Not", "And", "Or", "Xor", "IsNaN"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Where"),
)
_MOVES = ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Slice", "ReduceMax", "ReduceMin")


@dataclass(frozen=True)
class UniformFolding(Transformation):
    """Fold operators over arrays whose elements are all equal: attention masks that mask nothing, mostly.

    before:  m = Expand(true, [8, 1, 512, 512]); s = Where(m, x, -inf)
    after:   s = x

    Nothing of the array's size is made at compile time, unlike by constant folding.
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not is_op(node, *_POINTWISE, *_MOVES):
            return
        output = graph.result(node, 0)
        if output in graph.outputs or not all(isinstance(d, int) and d > 0 for d in graph.shape(output)):
            return
        operands = [n for n in graph.inputs_of(node) if n is not None]
        values = [_uniform(graph, n) for n in operands[: 1 if is_op(node, *_MOVES) else None]]
        if all(v is not None for v in values):
            value = values[0] if is_op(node, *_MOVES) else _compute(node, values)
            if isinstance(value, np.ndarray):
                yield Site(graph, (node,), {"value": value})
        elif is_op(node, "Where") and values[0] is not None:
            yield Site(graph, (node,), {"chosen": operands[1] if bool(values[0].item()) else operands[2]})

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        output = graph.result(node, 0)
        source = site.found.get("chosen")
        if source is None:
            value = site["value"].astype(types.to_numpy(graph.dtype(output)))
            source = graph.add_constant("uniform", value.reshape((1,) * len(graph.shape(output))))
        graph.remove(node)
        if graph.shape(source) == graph.shape(output) and graph.size(output) != 1:
            graph.replace_uses(output, source)
            return
        stated = graph.add_constant("shape", np.asarray(graph.shape(output), np.int64))
        graph.add_operator("Expand", [source, stated], [output])


def _uniform(graph: Graph, name: str) -> np.ndarray | None:
    """The value (one element, shape (1,)) that every element of ``name`` has, if that is known."""
    expand = operator_writing(graph, name, "Expand")
    while expand is not None:
        name = graph.operand(expand, 0)
        expand = operator_writing(graph, name, "Expand")
    value = graph.constants.get(name)
    if value is None or value.size == 0:
        return None
    first = value.reshape(-1)[:1]
    return first if value.size == 1 or _all_equal(value, first) else None


def _all_equal(value: np.ndarray, first: np.ndarray) -> bool:
    signs = np.signbit if value.dtype.kind == "f" else np.zeros_like  # 0 and -0 compare equal, and are not
    return bool((value == first).all() and (signs(value) == signs(first)).all())


def _compute(node: Operator, values: list[Any]) -> np.ndarray | None:
    try:
        return np.asarray(reference.compute(node, values)[0])
    except DaceoptError:
        return None
