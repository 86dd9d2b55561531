"""Constants of the ONNX graph that the exporter records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  numpy learns bfloat16
import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset20 as op

Value = Any  # an onnx_ir.Value while the exporter records


def constant(value: np.ndarray | torch.Tensor) -> Value:
    """``value`` with its shape and type."""
    made = op.Constant(value=ir.tensor(value))
    made.dtype = made.producer().attributes["value"].value.dtype  # the recorder does not infer it
    made.shape = ir.Shape(list(value.shape))
    return made


def scalar(value: float, like: Value) -> Value:
    """A rank-0 constant of the type of ``like``."""
    return constant(np.array(value, like.dtype.numpy()))


def integer(value: int) -> Value:
    """A rank-0 int64."""
    return constant(np.array(value, np.int64))


def integers(values: Sequence[int]) -> Value:
    """A vector of int64."""
    return constant(np.array(values, np.int64))


def filled(value: float, count: int, dtype: ir.DataType) -> Value:
    """A vector of ``count`` equal elements."""
    return constant(np.full(count, value, dtype.numpy()))
