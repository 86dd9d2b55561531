"""One-operator models compiled as a user's are: what the C++ code computes, not the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper, shape_inference

import daceopt


def compiled(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    outputs: int = 1,
    constants: Sequence[int] = (),
    opset: int = 23,
    like: Sequence[np.ndarray] | None = None,
    recipe: str = "none",
    **attributes: Any,
) -> list[np.ndarray]:
    """The outputs of one operator without fallback; the inputs at positions ``constants`` are initializers.

    ``like`` declares the outputs' shapes and types where they cannot be inferred.
    """
    names = ["" if v is None else f"x{k}" for k, v in enumerate(inputs)]
    results = [f"y{k}" for k in range(outputs)]
    tensors = {k: numpy_helper.from_array(v, names[k]) for k, v in enumerate(inputs) if v is not None}
    free = [k for k in tensors if k not in constants]
    values = [helper.make_tensor_value_info(names[k], tensors[k].data_type, tensors[k].dims) for k in free]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, results, **attributes)],
        "compiled",
        values,
        [_info(r, like[k] if like else None) for k, r in enumerate(results)],
        [tensors[k] for k in constants if k in tensors],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model = shape_inference.infer_shapes(model, data_prop=True)
    done = daceopt.from_onnx(model, recipe=recipe, fallback=False)(*(inputs[k] for k in free))
    return list(done) if isinstance(done, (list, tuple)) else [done]


def _info(name: str, like: np.ndarray | None) -> Any:
    if like is None:
        return helper.make_empty_tensor_value_info(name)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(like.dtype), like.shape)
