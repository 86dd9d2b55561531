"""Arrays of NumPy as tensors of PyTorch and back, without copies on the host; types of ``ml_dtypes`` included."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daceopt.errors import DaceoptError, Unsupported
from daceopt.runtime.invocation import torch_dtype


def dtype_of(value: Any) -> np.dtype[Any] | None:
    """The element type of a model's input or output; None for what is no tensor of numbers.

    Raises Unsupported for a tensor of unknown type.
    """
    from onnx import TensorProto, helper

    kind = value.type.tensor_type.elem_type
    if not value.type.HasField("tensor_type") or kind == TensorProto.STRING:
        return None
    if kind == TensorProto.UNDEFINED:
        raise Unsupported(f"the type of {value.name!r} is not known before running")
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind))


def as_tensor(value: object, dtype: np.dtype[Any], stored: torch.dtype) -> torch.Tensor | None:
    """A strided tensor of the value's numbers, or None where there is none."""
    if isinstance(value, torch.Tensor):
        return value.detach() if value.layout is torch.strided else None
    try:
        array = np.asarray(value)
        dense = np.ascontiguousarray(array).reshape(array.shape)
        dense = dense if dense.flags.writeable else dense.copy()
        if array.dtype == dtype and _is_foreign(dtype):
            return torch.from_numpy(dense.view(_bits(dtype))).view(stored)
        return torch.from_numpy(dense)
    except (TypeError, ValueError):  # text, objects, ragged lists
        return None


def to_numpy(tensor: torch.Tensor, dtype: np.dtype[Any]) -> np.ndarray:
    """The tensor's memory as an array of its own type, which may be one that PyTorch lacks; of a tensor of another
    device a copy."""
    host = tensor.cpu()
    return host.view(torch_dtype(_bits(dtype).name)).numpy().view(dtype) if _is_foreign(dtype) else host.numpy()


def to_torch(value: object) -> torch.Tensor:
    """What ONNX Runtime returned as a tensor, or as it is (lists, text)."""
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OU":
        return value
    tensor = as_tensor(value, value.dtype, torch_dtype(value.dtype.name))
    return value if tensor is None else tensor


def _is_foreign(dtype: np.dtype[Any]) -> bool:
    """Is it a type of ``ml_dtypes``, which PyTorch does not take from NumPy?"""
    return dtype.type.__module__.startswith("ml_dtypes")


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.uint16 if dtype.itemsize == 2 else np.uint8)


def from_file(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """The arrays with these names, and no others, of an ``.npz`` file. DaceoptError says what else is in it."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (ValueError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DaceoptError(f"{path}: expected arrays that numpy.savez wrote: {error}") from error
    if set(arrays) != set(names):
        raise DaceoptError(f"{path}: expected one array for each of the inputs {list(names)}, found {sorted(arrays)}")
    return [arrays[name] for name in names]
