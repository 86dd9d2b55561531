"""Questions that coarse transformations ask the graph: who made this, what constant is it, who reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daceopt.ir import types
from daceopt.ir.graph import Graph
from daceopt.transform import sweep

RANDOM = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
}


def is_op(node: Any, *op_types: str) -> bool:
    """Is ``node`` an operator of the default domain with one of these names?"""
    return getattr(node, "op_type", None) in op_types and node.domain == ""


def made_by(graph: Graph, name: str | None, *op_types: str) -> Any | None:
    """The operator that writes ``name``, if it is one of ``op_types``."""
    if name is None or graph.is_view(name):
        return None
    node = graph.producer(name)
    return node if is_op(node, *op_types) else None


def reads_only(graph: Graph, name: str, reader: Any) -> bool:
    """Is ``reader`` the only user of ``name``, which is no output and has no views?"""
    return name not in graph.outputs and not graph.views_of(name) and graph.consumers(name) == [reader]


def constant(graph: Graph, name: str | None) -> np.ndarray | None:
    """The value of an array if it is known at compile time."""
    return None if name is None else graph.constants.get(name)


def scalar(graph: Graph, name: str | None) -> float | None:
    """The value of a constant of one element."""
    value = constant(graph, name)
    return float(value.reshape(())) if value is not None and value.size == 1 and value.dtype.kind in "fiu" else None


def is_scalar(graph: Graph, name: str | None, expected: float, tolerance: float = 1e-6) -> bool:
    """Is ``name`` a one-element constant equal to ``expected`` within a relative ``tolerance``?"""
    value = scalar(graph, name)
    return value is not None and abs(value - expected) <= tolerance * abs(expected)


def with_scalar(graph: Graph, node: Any) -> tuple[str, float] | None:
    """``(x, c)`` of an operator over an array and a one-element constant in either order, with the array's shape."""
    a, b = graph.inputs_of(node)
    output = graph.outputs_of(node)[0]
    for array, other in ((a, b), (b, a)):
        value = scalar(graph, other)
        if value is None or array is None or output is None or constant(graph, array) is not None:
            continue
        if graph.shape(array) == graph.shape(output):
            return array, value
    return None


def scaled(graph: Graph, name: str | None) -> tuple[str, float] | None:
    """``(x, c)`` when ``name`` is ``x * c`` or ``x / c`` with a constant of one element."""
    node = made_by(graph, name, "Mul", "Div")
    if node is None:
        return None
    found = with_scalar(graph, node)
    if found is None or is_op(node, "Mul"):
        return found
    divides = scalar(graph, graph.inputs_of(node)[1]) is not None and found[1] != 0
    return (found[0], 1.0 / found[1]) if divides else None


def int_list(graph: Graph, node: Any, attribute: str, position: int) -> list[int] | None:
    """Integers given as an attribute (older opsets) or a constant input; None when absent or not constant."""
    found = node.attribute(attribute)
    if found is not None:
        return [int(v) for v in found]
    inputs = graph.inputs_of(node)
    value = constant(graph, inputs[position]) if len(inputs) > position else None
    return None if value is None else [int(v) for v in value.reshape(-1)]


def _rank(graph: Graph, node: Any) -> int:
    reduced = graph.inputs_of(node)[0]
    assert reduced is not None, "a reduction has an input"
    return len(graph.shape(reduced))


def axes_of(graph: Graph, node: Any) -> list[int] | None:
    """Normalized axes of a reduction; None when they are not constant. No axes means all of them."""
    rank = _rank(graph, node)
    inputs = graph.inputs_of(node)
    absent = node.attribute("axes") is None and (len(inputs) < 2 or inputs[1] is None)
    if absent:
        return list(range(rank))
    axes = int_list(graph, node, "axes", 1)
    return None if axes is None else sorted(a % rank for a in axes)


def trailing(graph: Graph, node: Any) -> list[int] | None:
    """The axes of a reduction if they are the last ones and the reduced dimensions are kept."""
    axes, rank = axes_of(graph, node), _rank(graph, node)
    kept = node.attribute("keepdims", 1) == 1
    return axes if axes and kept and axes == list(range(axes[0], rank)) else None


def squares(graph: Graph, node: Any) -> str | None:
    """``x`` when ``node`` computes ``x * x`` or ``x ** 2``."""
    if not is_op(node, "Mul", "Pow"):
        return None
    a, b = graph.inputs_of(node)
    if is_op(node, "Mul"):
        return a if a == b else None
    return a if is_scalar(graph, b, 2.0) else None


def shared(graph: Graph, names: Sequence[str | None], inner: Sequence[Any]) -> str | None:
    """The first of ``names`` that somebody outside ``inner`` uses, or None."""
    for name in names:
        users = set(graph.all_consumers(name)) if name is not None else set()
        if name is not None and (name in graph.outputs or not users <= set(inner)):
            return name
    return None


def ratio(graph: Graph, node: Any) -> tuple[str, str] | None:
    """``(n, s)`` when ``node`` computes ``n / sqrt(s)``, however it is spelled."""
    if not is_op(node, "Mul", "Div"):
        return None
    a, b = graph.inputs_of(node)
    orders = [(a, b)] if is_op(node, "Div") else [(a, b), (b, a)]
    for numerator, other in orders:
        root = other
        if is_op(node, "Mul"):
            reciprocal = made_by(graph, other, "Reciprocal")
            root = graph.inputs_of(reciprocal)[0] if reciprocal is not None else None
            power = made_by(graph, other, "Pow")
            if power is not None and is_scalar(graph, graph.inputs_of(power)[1], -0.5):
                return str(numerator), str(graph.inputs_of(power)[0])
        sqrt = made_by(graph, root, "Sqrt")
        if sqrt is not None:
            return str(numerator), str(graph.inputs_of(sqrt)[0])
    return None


def between(graph: Graph, end: Any, starts: Sequence[str]) -> list[Any]:
    """``end`` and the operators above it down from the arrays ``starts``."""
    found: dict[Any, None] = {end: None}
    for node in found.copy():
        _collect(graph, node, set(starts), found)
    return list(found)


def _collect(graph: Graph, node: Any, starts: set[str], found: dict[Any, None]) -> None:
    for name in graph.inputs_of(node):
        source = graph.producer(name) if name is not None and name not in starts else None
        if source is not None and source not in found:
            found[source] = None
            _collect(graph, source, starts, found)


def scaled_by_vector(graph: Graph, name: str, op_type: str, shape: Sequence[Any]) -> tuple[Any, str] | None:
    """``(node, v)`` when the only reader of ``name`` is ``op_type`` of it and ``v`` of ``shape``, in either order."""
    readers = graph.consumers(name)
    if len(readers) != 1 or not is_op(readers[0], op_type) or not reads_only(graph, name, readers[0]):
        return None
    a, b = graph.inputs_of(readers[0])
    other = b if a == name else a
    return (readers[0], other) if other != name and other is not None and graph.shape(other) == tuple(shape) else None


def add_like(graph: Graph, hint: str, like: str) -> str:
    """A new array of the shape and type of ``like``."""
    return graph.add_array(hint, graph.shape(like), graph.dtype(like))


def add_scalar(graph: Graph, value: float, like: str) -> str:
    """A constant of rank 0 with the type of ``like``."""
    return graph.add_constant("scale", np.asarray(value, types.to_numpy(graph.dtype(like))))


def substitute(graph: Graph, node: Any, op_type: str, inputs: Sequence[str | None], **attributes: Any) -> Any:
    """Let a new operator write what ``node`` wrote (its first output), and remove ``node`` and what only it needed."""
    output = graph.outputs_of(node)[0]
    sources = [graph.producer(n) for n in graph.inputs_of(node) if n is not None]
    graph.remove(node)
    made = graph.add_operator(op_type, inputs, [output], attributes)
    sweep(graph, sources)
    return made
