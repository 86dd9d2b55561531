"""ONNX Runtime, and the standard's inference, in a process of its own: some models that they should refuse end the
process instead."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: F401  loaded once, before processes fork

from daceopt.errors import DaceoptError
from daceopt.libs.onnxruntime_model import RuntimeModel

SECONDS = 20


def results(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any] | None:
    """What ONNX Runtime computes, or None where it refuses, crashes or takes too long."""
    found = _apart(lambda: _results(model, inputs))
    return list(found or ()) or None


def inferred(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with the shapes that the standard's inference finds, or None where it refuses or crashes."""
    found = _apart(lambda: _inferred(model))
    return None if found is None else onnx.ModelProto.FromString(found)


def _apart(run: Callable[[], Any]) -> Any:
    """What ``run`` returns in a child of this process; None where that does not end well."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(SECONDS)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.close(reading)
            with os.fdopen(writing, "wb") as stream:
                pickle.dump(run(), stream)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        data = stream.read()
    died = os.waitpid(child, 0)[1]
    return None if died or not data else pickle.loads(data)


def _inferred(model: onnx.ModelProto) -> bytes | None:
    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).SerializeToString()
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return None


def _results(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any] | None:
    try:
        found = RuntimeModel(model).run(inputs)
    except DaceoptError:
        return None
    return found if all(map(_is_declared, found, model.graph.output)) else None


def _is_declared(value: Any, declared: onnx.ValueInfoProto) -> bool:
    """ONNX Runtime's Python side gives the bits of some types as integers."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(declared.type.tensor_type.elem_type)
    return bool(np.asarray(value).dtype == dtype)


def largest(results: Sequence[Any] | None) -> float:
    """The largest finite magnitude, at least 1: sums cancel, and ONNX Runtime's round as well."""
    wide = [np.asarray(r).astype(np.float64) for r in results or ()]
    return max((float(np.abs(w[np.isfinite(w)]).max(initial=1)) for w in wide), default=1.0)
