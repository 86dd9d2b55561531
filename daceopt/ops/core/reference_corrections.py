"""Operators that ONNX's reference evaluator computes otherwise than the standard says, in some versions or shapes.

Each was found by comparison with ONNX Runtime and our own lowerings (``tests/onnx_suite/versions.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from daceopt.errors import Unsupported
from daceopt.ir.graph.operator import Operator

Arrays: TypeAlias = Sequence["np.ndarray | None"]
Compute: TypeAlias = Callable[[Operator, Any], list[np.ndarray]]

_NEWEST = 1 << 30


@dataclass(frozen=True)
class _Correction:
    """What computes an operator of a version below ``before``, where it ``applies``."""

    compute: Compute
    before: int = _NEWEST
    applies: Callable[[Operator], bool] = lambda node: True


_CORRECTIONS: dict[str, _Correction] = {}


def correction(node: Operator) -> Compute | None:
    """What computes ``node`` in the place of ONNX's evaluator; None where that is right."""
    entry = _CORRECTIONS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    return entry.compute if entry and node.since_version < entry.before and entry.applies(node) else None


def _corrects(*op_types: str, **when: Any) -> Callable[[Compute], Compute]:
    def register(compute: Compute) -> Compute:
        _CORRECTIONS.update(dict.fromkeys(op_types, _Correction(compute, **when)))
        return compute

    return register


def _has_one_output(node: Operator) -> bool:
    return len(node.out_connectors) == 1


@_corrects("BatchNormalization", before=14, applies=_has_one_output)
def _normalize(node: Operator, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """With one output it is inference, whatever attributes say: the evaluator takes the statistics of the batch."""
    x, *parameters = inputs
    scale, bias, mean, variance = (p.reshape(-1, *[1] * (x.ndim - 2)) for p in parameters)
    epsilon = node.attribute("epsilon", 1e-5)
    return [(scale * (x - mean) / np.sqrt(variance + epsilon) + bias).astype(x.dtype)]


@_corrects("LogSoftmax", "Softmax", "Hardmax")
def _over_rows(node: Operator, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Before opset 13 all dimensions from ``axis`` on are one: the evaluator looks along a single one; and its
    logarithms of small results are infinite."""
    (x,) = inputs
    if not x.size:
        return [x]
    if node.since_version >= 13:
        moved = np.moveaxis(x, node.attribute("axis", -1), -1)
        rows = _ROWS[node.op_type](moved.reshape(-1, moved.shape[-1])).reshape(moved.shape)
        return [np.moveaxis(rows, -1, node.attribute("axis", -1)).astype(x.dtype)]
    axis = node.attribute("axis", 1)
    lead = int(np.prod(x.shape[: axis + x.ndim if axis < 0 else axis]))
    return [_ROWS[node.op_type](x.reshape(lead, -1)).reshape(x.shape).astype(x.dtype)]


def _softmax(rows: np.ndarray) -> np.ndarray:
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _log_softmax(rows: np.ndarray) -> np.ndarray:
    shifted = rows - rows.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _hardmax(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.arange(rows.shape[1]) == rows.argmax(axis=1)[:, None])


_ROWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "Hardmax": _hardmax,
}


@_corrects("GlobalMaxPool")
def _largest(node: Operator, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Over all behind the channels: the evaluator takes two dimensions, of an image of rank 4 the right ones."""
    (x,) = inputs
    return [x.max(axis=tuple(range(2, x.ndim)), keepdims=True)]


@_corrects("AveragePool", "Conv", "ConvTranspose", "GRU", "LpPool", "LSTM", "MaxPool", "RNN")
def _windows_and_steps(node: Operator, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Wrong for padding that ``auto_pad`` computes, ceilings, places of maxima and ``clip``, and minutes and gigabytes
    for images of ordinary size: their lowerings are executed instead."""
    raise Unsupported(f"ONNX's evaluator does not compute {node.op_type} as the standard says")


def _reads_the_border(node: Operator) -> bool:
    cubic = node.attribute("mode", "linear") in ("cubic", "bicubic")
    return cubic and node.attribute("padding_mode", "zeros") == "border"


@_corrects("GridSample", applies=_reads_the_border)
def _samples(node: Operator, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The evaluator brings the point inside, where each of the places that are read has to be."""
    raise Unsupported("ONNX's evaluator reads elsewhere at the border")
