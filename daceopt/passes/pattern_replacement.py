"""What a rule puts in the place of a match: an operator with those that it reads, or an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dace
import numpy as np

from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operator import schema_of
from daceopt.ir.scalar import types
from daceopt.ir.scalar.types import DType
from daceopt.passes.pattern_matching import Array, Match, Op, Pattern, Scalar

_FIXED = {"tensor(bool)": dace.bool_, "tensor(int64)": dace.int64, "tensor(float)": dace.float32}


@dataclass(frozen=True, eq=False)
class Value(Pattern):
    """A constant of a replacement."""

    value: np.ndarray


def put(result: Op | str, m: Match) -> None:
    """Let ``result`` write the result of ``m``, or be read in its place; the operators that wrote it go."""
    if isinstance(result, Op):
        _remove(m.graph, m)
        _add(result, m, m.result)
    else:
        _stand_in(m, str(m.get(result, result)))


def _remove(graph: Graph, m: Match) -> None:
    for node in reversed(m.chain):
        graph.remove(node)


def _stand_in(m: Match, name: str) -> None:
    """Let the readers of the result read ``name``."""
    graph = m.graph
    if (graph.shape(name), graph.dtype(name)) != (graph.shape(m.result), graph.dtype(m.result)):
        raise DaceoptError(
            f"the replacement {name} of {m.result} has shape {graph.shape(name)} and type {graph.dtype(name)}: "
            f"expected {graph.shape(m.result)} and {graph.dtype(m.result)}"
        )
    if graph.is_kept(m.result) and (graph.is_view(name) or not graph.is_transient(name)):
        _remove(graph, m)
        graph.add_operator("Identity", [name], [m.result])
        return
    graph.replace_uses(m.result, name)
    _remove(graph, m)


def _add(template: Op, m: Match, result: str | None = None) -> str:
    """Add the operator that ``template`` says, after those that it reads; returns what it writes."""
    graph = m.graph
    operands = [_operand(o, m) for o in template.operands]
    while operands and operands[-1] is None:
        operands.pop()
    (op_type,) = template.types
    name = result or _array_for(graph, template, operands, dict(template.attributes))
    graph.add_operator(op_type, operands, [name], dict(template.attributes), template.domain)
    return name


def _operand(pattern: Pattern, m: Match) -> str | None:
    graph = m.graph
    if isinstance(pattern, Op):
        return _add(pattern, m)
    value: Any = None
    if isinstance(pattern, Array):
        value = m.bound.get(pattern.name, None if pattern.optional else pattern.name)
    elif isinstance(pattern, (Scalar, Value)):
        value = pattern.value
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, np.ndarray):
        value = np.asarray(value, types.to_numpy(graph.dtype(m.result)))
    return graph.add_constant("constant", value)


def _array_for(graph: Graph, template: Op, operands: list[str | None], attributes: dict[str, Any]) -> str:
    from daceopt.ops.core import inference

    (op_type,) = template.types
    (shape,) = inference.result_shapes(graph, op_type, operands, 1, attributes, template.domain)
    dtype = _dtype(graph, template, operands, attributes)
    if shape is None or dtype is None:
        raise DaceoptError(f"the shape or type of {op_type} in a replacement is not known: build it with Builder")
    return graph.add_array(op_type, shape, dtype)


def _dtype(graph: Graph, template: Op, operands: list[str | None], attributes: dict[str, Any]) -> DType | None:
    """The element type of an operator's result: as its schema says."""
    if "to" in attributes:
        return types.from_onnx(attributes["to"])
    schema = schema_of(template.types[0], template.domain)
    if schema is None:
        return next((graph.dtype(n) for n in operands if n is not None), None)
    kind, last = schema.outputs[0].type_str, len(schema.inputs) - 1
    same = (n for k, n in enumerate(operands) if n is not None and schema.inputs[min(k, last)].type_str == kind)
    name = next(same, None)
    if name is not None:
        return graph.dtype(name)
    only = set(schema.outputs[0].types)
    return next((dtype for name, dtype in _FIXED.items() if only == {name}), None)
