"""Running sums and products along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ops.core import algorithm, values
from daceopt.ops.core.registry import NUMBERS, Names, Operator, gradient, lowering, supports

_PRODUCT = {"CumSum": 0, "CumProd": 1}


def _axis(graph: Graph, node: Operator, inputs: Names) -> int:
    (axis,) = values.known_elements(graph, inputs[1]) or (0,)
    return int(axis) % len(graph.shape(require(inputs, 0)))


def _cumulate(b: Builder, x: str, out: str, axis: int, *switches: int) -> None:
    algorithm.call(b, "cumulate", [x], [out], [*algorithm.extents_around(b.graph.shape(x), axis), *switches])


@lowering("CumSum", "CumProd", types=NUMBERS)
def cumulate(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """y[k] = x[0] + ... + x[k]; ``exclusive`` leaves x[k] out, ``reverse`` counts from the end."""
    switches = (node.attribute("exclusive", 0), node.attribute("reverse", 0), _PRODUCT[node.op_type])
    _cumulate(b, require(inputs, 0), require(outputs, 0), _axis(b.graph, node, inputs), *switches)


@supports("CumSum", "CumProd")
def why_not_cumulate(graph: Graph, node: Operator) -> str | None:
    if not graph.shape(graph.operand(node, 0)):
        return "an input of rank 0; expected at least one dimension"
    return values.unknown(graph, node, 1)


@gradient("CumSum")
def cumulative_sum_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """The running sum of dy, counted from the other end."""
    dy = require(grads_out, 0)
    dx = b.graph.add_array("cumsum_grad", b.graph.shape(dy), b.graph.dtype(dy))
    switches = (node.attribute("exclusive", 0), 1 - node.attribute("reverse", 0), 0)
    _cumulate(b, dy, dx, _axis(b.graph, node, inputs), *switches)
    return [dx, None]


@algorithm.reference("cumulate")
def _reference(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    x, y = algorithm.around(inputs[0], parameters), algorithm.around(outputs[0], parameters)
    exclusive, reverse, product = parameters[3:]
    x, y = (a[:, ::-1] if reverse else a for a in (x, y))
    running = (np.cumprod if product else np.cumsum)(x, axis=1, dtype=x.dtype)
    y[...] = running
    if exclusive:
        y[:, 1:] = running[:, :-1]
        y[:, :1] = product


@gradient("CumProd")
def cumulative_product_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """Products of all factors but one, summed: exact where factors are zero."""
    x, dy = require(inputs, 0), require(grads_out, 0)
    dx = b.graph.add_array("cumprod_grad", b.graph.shape(dy), b.graph.dtype(dy))
    around = algorithm.extents_around(b.graph.shape(x), _axis(b.graph, node, inputs))
    switches = (node.attribute("exclusive", 0), node.attribute("reverse", 0))
    algorithm.call(b, "product_gradient", [x, dy], [dx], [*around, *switches])
    return [dx, None]


@algorithm.reference("product_gradient")
def _product_gradient(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    x, dy, dx = (algorithm.around(a, parameters) for a in (*inputs, outputs[0]))
    exclusive, reverse = parameters[3:]
    x, dy, dx = (a[:, ::-1] if reverse else a for a in (x, dy, dx))
    later = np.zeros_like(x[:, 0]) if x.shape[1] else None
    for k in reversed(range(x.shape[1])):
        with_own = dy[:, k] + later
        rest = np.where(x[:, k] == 0, 0, x[:, k] * (later if exclusive else with_own))
        dx[:, k] = later if exclusive else np.where(np.isfinite(x[:, k]), with_own, np.nan)
        later = dy[:, k] + rest if exclusive else rest
    earlier = np.ones_like(dx[:, :1])
    for k in range(x.shape[1]):
        dx[:, k : k + 1] = _times(earlier, dx[:, k : k + 1])
        earlier = _times(x[:, k : k + 1], earlier)


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A factor of 0 makes the product 0, also with what is infinite or NaN."""
    return np.where((a == 0) | (b == 0), 0, a * b)
