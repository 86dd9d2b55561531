"""Determinants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import sympy

from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ops.core import algorithm
from daceopt.ops.core.registry import FLOATS, Names, Operator, gradient, lowering


@lowering("Det", types=FLOATS)
def determinant(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Of each matrix of the last two dimensions."""
    algorithm.call(b, "determinant", [inputs[0]], [outputs[0]], _matrices(b, inputs))


def _matrices(b: Builder, inputs: Names) -> list[Any]:
    """How many there are, and their rows."""
    *batch, _, rows = b.graph.shape(require(inputs, 0))
    return [sympy.Mul(*batch), rows]


@algorithm.reference("determinant")
def _reference(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    outputs[0][...] = np.linalg.det(inputs[0].astype(np.float64))


@gradient("Det")
def determinant_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """dx = dy det(x) inverse(x)^T; as in PyTorch 0 where the determinant is."""
    x, dy = require(inputs, 0), require(grads_out, 0)
    dx = b.graph.add_array("det_grad", b.graph.shape(x), b.graph.dtype(x))
    algorithm.call(b, "determinant_gradient", [x, dy], [dx], _matrices(b, inputs))
    return [dx]


@algorithm.reference("determinant_gradient")
def _gradient_reference(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    count, rows = parameters
    x, dy = inputs[0].reshape(count, rows, rows).astype(np.float64), inputs[1].reshape(count)
    dx = outputs[0].reshape(count, rows, rows)
    for k, matrix in enumerate(x):
        det = np.linalg.det(matrix)
        dx[k] = 0 if det == 0 else dy[k] * det * np.linalg.inv(matrix).T
