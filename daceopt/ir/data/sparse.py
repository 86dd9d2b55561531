"""Sparse tensors of ONNX as dense arrays."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper


def dense(sparse: onnx.SparseTensorProto) -> np.ndarray:
    """The array that ``sparse`` stands for; its indices are flat, or one row of coordinates per value."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    result = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        result.reshape(-1)[indices] = values
    else:
        result[tuple(indices.T)] = values
    return result
