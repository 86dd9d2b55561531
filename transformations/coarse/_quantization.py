"""What constants say about quantised arrays: which integers, which steps, which zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operators import constant, operator_writing
from daceopt.ops.core import values

_BYTES = ("int8", "uint8")


class NotPlain(Exception):
    """Why something quantised is not of the plain form that the units for integers take."""


@dataclass(frozen=True)
class Steps:
    """``(q - zero) * scale``: of a whole array, or for each place of ``axis``; float64 numbers, exact."""

    scale: np.ndarray
    zero: np.ndarray
    axis: int

    @staticmethod
    def of(graph: Graph, node: Node, first: int = 1, rank: int = 0) -> Steps:
        """Those of a QuantizeLinear or DequantizeLinear: operands ``first`` and the next. Raises NotPlain."""
        inputs = graph.inputs_of(node)
        scale, zero = values.at(inputs, first), values.at(inputs, first + 1)
        factors = constant(graph, scale)
        if factors is None:
            raise NotPlain(f"the scale {scale} is not known when compiling")
        if node.attribute("block_size", 0):
            raise NotPlain("a scale for each block")
        if not np.all(np.isfinite(factors)) or not np.all(factors > 0):
            raise NotPlain("a scale that is not positive and finite")
        zeros = np.zeros(factors.shape, np.int64) if zero is None else constant(graph, zero)
        if zeros is None:
            raise NotPlain(f"the zero point {zero} is not known when compiling")
        axis = int(node.attribute("axis", 1)) % max(rank, 1)
        return Steps(factors.astype(np.float64), zeros.astype(np.int64), axis)

    def whole(self, what: str) -> tuple[float, int]:
        """(scale, zero point) of the whole array. Raises NotPlain where there are several."""
        if self.scale.size != 1 or self.zero.size != 1:
            raise NotPlain(f"{what} has a scale for each channel")
        return float(self.scale.reshape(())), int(self.zero.reshape(()))

    def along(self, axis: int, size: int) -> np.ndarray:
        """The scale of each place of ``axis``. Raises NotPlain where they belong to another axis."""
        if self.scale.size != 1 and (self.axis != axis or self.scale.shape != (size,)):
            raise NotPlain(f"scales of shape {self.scale.shape} along axis {self.axis}; expected one for each channel")
        return np.broadcast_to(self.scale.reshape(-1), (size,))


def dequantization(graph: Graph, name: str | None) -> tuple[str, Steps] | None:
    """The integers of which ``name`` is made, and their steps; None where it is not. Raises NotPlain."""
    node = operator_writing(graph, name, "DequantizeLinear")
    if node is None:
        return None
    source = graph.operand(node, 0)
    return source, Steps.of(graph, node, rank=len(graph.shape(source)))


def constant_of(graph: Graph, name: str | None) -> np.ndarray | None:
    """A constant, as it is or dequantised, in float64. Raises NotPlain."""
    value = constant(graph, name)
    if value is not None:
        return value.astype(np.float64) if value.dtype == np.float32 else None
    pair = dequantization(graph, name)
    integers = None if pair is None else constant(graph, pair[0])
    if pair is None or integers is None:
        return None
    scale, zero = (_reshape(v, integers.ndim, pair[1].axis) for v in (pair[1].scale, pair[1].zero))
    return (integers.astype(np.float64) - zero) * scale


def weights_of(graph: Graph, name: str, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Dequantised constant weights as int8 around 0, and the scale of each place of ``axis``. Raises NotPlain."""
    pair = dequantization(graph, name)
    integers = None if pair is None else constant(graph, pair[0])
    if pair is None or integers is None:
        raise NotPlain(f"the weights {name} are no quantised constant")
    return to_signed(integers, pair[1]), pair[1].along(axis, integers.shape[axis])


def to_signed(integers: np.ndarray, steps: Steps) -> np.ndarray:
    """8-bit integers less their zero point, which int8 has to hold. Raises NotPlain."""
    if integers.dtype.name not in _BYTES:
        raise NotPlain(f"weights of {integers.dtype}; expected int8 or uint8")
    moved = integers.astype(np.int64) - _reshape(steps.zero, integers.ndim, steps.axis)
    if moved.size == 0 or moved.min() < -128 or moved.max() > 127:
        raise NotPlain("weights whose distances from their zero point int8 does not hold")
    return moved.astype(np.int8)


def _reshape(value: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """One for all, or one for each place of ``axis``."""
    if value.size == 1:
        return value.reshape(())
    return value.reshape([-1 if d == axis else 1 for d in range(rank)])
