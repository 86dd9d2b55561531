"""What is known at compile time about small integer operands: shapes, axes, bounds, counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sympy

from daceopt.ir.graph import Dim, Graph, dim
from daceopt.ir.interpret import strided
from daceopt.ops.operator import Operator

Values = tuple[Dim, ...]
_MAX_ELEMENTS = 64


def known(graph: Graph, name: str | None) -> Values | None:
    """The elements of an integer array, row-major, as ints or expressions over size symbols; None when unknown."""
    if name is None:
        return None
    if name in graph.constants:
        return tuple(dim(v) for v in graph.constants[name].reshape(-1).tolist())
    if name in graph.shape_values:
        return tuple(graph.shape_values[name])
    if graph.is_view(name):
        return _of_view(graph, name)
    node = graph.producer(name)
    if not isinstance(node, Operator) or node.op_type not in _RULES:
        return None
    return _RULES[node.op_type](graph, node, graph.inputs_of(node))


def constant(graph: Graph, name: str | None) -> np.ndarray | None:
    """The value of a constant, followed through views; None for anything else."""
    if name is None:
        return None
    if name in graph.constants:
        return graph.constants[name]
    root, offset = graph.root(name)
    if root not in graph.constants or not isinstance(offset, int):
        return None
    shape, strides = graph.shape(name), graph.strides(name)
    if not all(isinstance(e, int) for e in (*shape, *strides)):
        return None
    flat = graph.constants[root].reshape(-1)
    return strided(flat[offset:], shape, strides).copy()


def scalar_value(graph: Graph, name: str | None) -> Any | None:
    """The Python number of a one-element constant; None when it is not known."""
    value = constant(graph, name)
    return None if value is None or value.size != 1 else value.reshape(()).item()


def integers(
    graph: Graph, node: Operator, inputs: Sequence[str | None], attribute: str, position: int
) -> list[int] | None:
    """A list of ints given as an attribute (older opsets) or as an input; None when neither is given or known."""
    value = node.attribute(attribute)
    if value is not None:
        return [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
    found = known(graph, at(inputs, position))
    return [int(v) for v in found or ()] if found is not None and _all_ints(found) else None


class UnknownValue(str):
    """A reason for refusal that goes away once the value of one of the operands at ``positions`` is known."""

    positions: tuple[int, ...] = ()

    @classmethod
    def at(cls, reason: str, *positions: int) -> UnknownValue:
        """The reason ``reason`` about these operands."""
        found = cls(reason)
        found.positions = positions
        return found


def unknown(graph: Graph, node: Operator, *positions: int) -> UnknownValue | None:
    """The reason, when one of these inputs is given but its integers are not known at compile time."""
    inputs = graph.inputs_of(node)
    for position in positions:
        name = at(inputs, position)
        if name is not None and not _all_ints(known(graph, name)):
            conn = node.input_connectors[position]
            reason = f"input {conn} of {node.op_type} is computed at run time; expected a constant"
            return UnknownValue.at(reason, position)
    return None


def at(names: Sequence[str | None], position: int) -> str | None:
    """The operand at a position; None when it is absent or beyond the end."""
    return names[position] if position < len(names) else None


def _all_ints(found: Values | None) -> bool:
    return found is not None and all(isinstance(v, int) for v in found)


# -------------------------------------------------------------------- shape arithmetic

Rule = Callable[[Graph, Operator, Sequence["str | None"]], "Values | None"]


def _of_view(graph: Graph, name: str) -> Values | None:
    source = graph.view_source(name)
    inner = known(graph, source)
    if inner is None or graph.view_offset(name) != 0 or graph.size(name) != graph.size(source):
        return None
    return inner if graph.is_contiguous(name) and graph.is_contiguous(source) else None


def _shape(graph: Graph, node: Operator, inputs: Sequence[str | None]) -> Values | None:
    shape = graph.shape(str(inputs[0]))
    return shape[slice(node.attribute("start", 0), node.attribute("end"))]


def _size(graph: Graph, node: Operator, inputs: Sequence[str | None]) -> Values | None:
    return (graph.size(str(inputs[0])),)


def _same(graph: Graph, node: Operator, inputs: Sequence[str | None]) -> Values | None:
    return known(graph, inputs[0])


def _gather(graph: Graph, node: Operator, inputs: Sequence[str | None]) -> Values | None:
    data, index = known(graph, inputs[0]), known(graph, inputs[1])
    if data is None or not _all_ints(index) or len(graph.shape(str(inputs[0]))) != 1:
        return None
    return tuple(data[int(i)] for i in index or ())


def _concat(graph: Graph, node: Operator, inputs: Sequence[str | None]) -> Values | None:
    parts = [known(graph, n) for n in inputs]
    if any(p is None for p in parts):
        return None
    return tuple(v for part in parts for v in part or ())


def _slice(graph: Graph, node: Operator, inputs: Sequence[str | None]) -> Values | None:
    data, start, end = (known(graph, n) for n in inputs[:3])
    step = known(graph, inputs[4]) if len(inputs) > 4 and inputs[4] else (1,)
    if data is None or len(graph.shape(str(inputs[0]))) != 1 or not all(_all_ints(v) for v in (start, end, step)):
        return None
    return data[slice(int(start[0]), int(end[0]), int(step[0]))]  # type: ignore[index]


def _arithmetic(combine: Callable[[Any, Any], Any]) -> Rule:
    def rule(graph: Graph, node: Operator, inputs: Sequence[str | None]) -> Values | None:
        a, b = known(graph, inputs[0]), known(graph, inputs[1])
        if a is None or b is None or (1 not in (len(a), len(b)) and len(a) != len(b)):
            return None
        count = max(len(a), len(b))
        if count > _MAX_ELEMENTS:
            return None
        return tuple(dim(combine(a[k % len(a)], b[k % len(b)])) for k in range(count))

    return rule


def _quotient(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return int(a / b) if b else 0
    return sympy.floor(sympy.sympify(a) / b)


_RULES: dict[str, Rule] = {
    "Shape": _shape,
    "Size": _size,
    "Identity": _same,
    "Cast": _same,
    "Reshape": _same,
    "Unsqueeze": _same,
    "Squeeze": _same,
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Add": _arithmetic(lambda a, b: a + b),
    "Sub": _arithmetic(lambda a, b: a - b),
    "Mul": _arithmetic(lambda a, b: a * b),
    "Div": _arithmetic(_quotient),
}
