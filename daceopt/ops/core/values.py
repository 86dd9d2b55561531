"""What is known at compile time about small integer operands: shapes, axes, bounds, counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operator import Operator
from daceopt.ir.interpreter.buffers import as_strided
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ops.core.folding import Folding, is_numeric

Values = tuple[Dim, ...]


def known_elements(graph: Graph, name: str | None) -> Values | None:
    """The elements of an integer array, row-major, as ints or expressions over size symbols; None when unknown."""
    if name is None:
        return None
    if name in graph.constants:
        return tuple(dim(v) for v in graph.constants[name].reshape(-1).tolist())
    value = Folding(graph).value(name)
    return None if value is None else tuple(dim(v) for v in value.reshape(-1).tolist())


def constant(graph: Graph, name: str | None) -> np.ndarray | None:
    """The value of a constant, followed through views, and of small arrays computed from constants (or from extents
    that are numbers); None for anything else."""
    if name is None:
        return None
    if name in graph.constants:
        return graph.constants[name]
    root, offset = graph.root(name)
    if root not in graph.constants:
        return _fold(graph, name)
    if not isinstance(offset, int):
        return None
    shape, strides = graph.shape(name), graph.strides(name)
    if not all(isinstance(e, int) for e in (*shape, *strides)):
        return None
    flat = graph.constants[root].reshape(-1)
    return as_strided(flat[offset:], shape, strides).copy()


def _fold(graph: Graph, name: str) -> np.ndarray | None:
    value = Folding(graph).value(name)
    return value.astype(types.to_numpy(graph.dtype(name))) if value is not None and is_numeric(value) else None


def scalar_value(graph: Graph, name: str | None) -> float | None:
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
    elements = known_elements(graph, at(inputs, position))
    return [int(v) for v in elements or ()] if elements is not None and _all_ints(elements) else None


class UnknownValue(str):
    """A reason for refusal that goes away once the value of one of the operands at ``positions`` is known."""

    positions: tuple[int, ...] = ()

    @classmethod
    def at(cls, reason: str, *positions: int) -> UnknownValue:
        """The reason ``reason`` about these operands."""
        error = cls(reason)
        error.positions = positions
        return error


def unknown(graph: Graph, node: Operator, *positions: int) -> UnknownValue | None:
    """The reason, when one of these inputs is given but its integers are not known at compile time."""
    inputs = graph.inputs_of(node)
    for position in positions:
        name = at(inputs, position)
        if name is not None and not _all_ints(known_elements(graph, name)):
            conn = node.input_connectors[position]
            reason = f"input {conn} of {node.op_type} is computed at run time; expected a constant"
            return UnknownValue.at(reason, position)
    return None


def at(names: Sequence[str | None], position: int) -> str | None:
    """The operand at a position; None when it is absent or beyond the end."""
    return names[position] if position < len(names) else None


def _all_ints(elements: Values | None) -> bool:
    return elements is not None and all(isinstance(v, int) for v in elements)
