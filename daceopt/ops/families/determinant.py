"""Determinants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import sympy

from daceopt.ir.builder import Builder
from daceopt.ir.operands import required
from daceopt.ops.core import algorithm
from daceopt.ops.core.registry import FLOATS, Names, Operator, lowering, without_gradient


@lowering("Det", types=FLOATS)
def determinant(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Of each matrix of the last two dimensions."""
    *batch, _, rows = b.graph.shape(required(inputs, 0))
    algorithm.call(b, "determinant", [inputs[0]], [outputs[0]], [sympy.Mul(*batch), rows])


@algorithm.reference("determinant")
def _reference(inputs: Sequence[Any], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    outputs[0][...] = np.linalg.det(inputs[0].astype(np.float64))


without_gradient("Det")
