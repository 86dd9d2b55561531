"""A whole ONNX model run by ONNX Runtime: what remains for models that cannot be compiled."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daceopt.errors import DaceoptError, RunError, Unsupported

if TYPE_CHECKING:
    import onnx

# ONNX Runtime's names of the element types that it neither takes from NumPy nor gives to it.
_FOREIGN = {
    "bfloat16": "bfloat16",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "int4": "int4",
    "uint4": "uint4",
}


class RuntimeModel:
    """An ONNX Runtime session: ``run`` takes and gives NumPy arrays, lists of them (sequences), strings, None.

    Raises Unsupported with ONNX Runtime's reason when it does not take the model either.
    """

    def __init__(self, model: onnx.ModelProto):
        try:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            # Its idle threads must not spin on the cores that the rest of the program computes on.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's own kinds, or ImportError where it is not installed
            raise Unsupported(f"ONNX Runtime cannot run the model: {_text(error)}") from error
        self._inputs = [(v.name, _element(v.type)) for v in self._session.get_inputs()]
        self._outputs = [(v.name, _element(v.type)) for v in self._session.get_outputs()]

    def run(self, values: Sequence[object]) -> list[Any]:
        """The outputs for inputs in the model's order. DaceoptError for inputs that do not fit, RunError where the
        model fails."""
        try:
            if any(element in _FOREIGN for _, element in (*self._inputs, *self._outputs)):
                return self._run_foreign(values)
            feeds = {name: _feed(value) for (name, _), value in zip(self._inputs, values, strict=True)}
            return list(self._session.run(None, feeds))
        except Exception as error:  # ONNX Runtime's own kinds
            kind = DaceoptError if type(error).__name__ in ("InvalidArgument", "ValueError", "TypeError") else RunError
            raise kind(f"ONNX Runtime: {_text(error)}") from error

    def _run_foreign(self, values: Sequence[object]) -> list[Any]:
        feeds = {
            name: _to_value(np.asarray(value), element)
            for (name, element), value in zip(self._inputs, values, strict=True)
        }
        results = self._session.run_with_ort_values(None, feeds)
        return [_from_value(value, element) for value, (_, element) in zip(results, self._outputs, strict=True)]


def _feed(value: object) -> Any:
    """ONNX Runtime takes arrays and lists of them; scalars of NumPy are no arrays."""
    if value is None or isinstance(value, list | tuple):
        return None if value is None else [_feed(v) for v in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else np.ascontiguousarray(array).reshape(array.shape)


def _element(kind: str) -> str:
    """``float`` of ``tensor(float)``; empty for sequences and the like."""
    matched = re.fullmatch(r"tensor\((\w+)\)", kind)
    return matched.group(1) if matched else ""


def _to_value(array: np.ndarray, element: str) -> Any:
    import onnx
    import onnxruntime

    if element not in _FOREIGN:
        return onnxruntime.OrtValue.ortvalue_from_numpy(_feed(array))
    expected = _dtype(element)
    if array.dtype != expected:
        raise TypeError(f"expected an array of {expected}, got {array.dtype}")
    number = onnx.helper.np_dtype_to_tensor_dtype(expected)
    dense = np.ascontiguousarray(array).reshape(array.shape)
    if element.endswith("int4"):
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), number)
        packed = _pack(dense)
        ctypes.memmove(value.data_ptr(), packed.ctypes.data, packed.nbytes)
        return value
    bits = dense.view(np.uint16 if dense.itemsize == 2 else np.uint8)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)


def _from_value(value: Any, element: str) -> np.ndarray:
    if element not in _FOREIGN:
        return value.numpy()
    shape, dtype = tuple(value.shape()), _dtype(element)
    count = value.tensor_size_in_bytes()
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), count), np.uint8) if count else np.empty(0, np.uint8)
    if element.endswith("int4"):
        nibbles = np.stack([raw & 15, raw >> 4], -1).reshape(-1)[: int(np.prod(shape))]
        signed = (nibbles.astype(np.int8) ^ 8) - 8 if element == "int4" else nibbles
        return signed.astype(dtype).reshape(shape)
    return raw.view(dtype).reshape(shape).copy()


def _pack(array: np.ndarray) -> np.ndarray:
    """Two elements in a byte, the first in its lower half."""
    nibbles = array.astype(np.int8).reshape(-1).view(np.uint8) & 15
    padded = np.append(nibbles, np.zeros(nibbles.size % 2, np.uint8))
    return padded[::2] | (padded[1::2] << 4)


def _dtype(element: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, _FOREIGN[element]))


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
