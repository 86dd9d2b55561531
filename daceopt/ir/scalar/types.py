"""The element types of daceopt and their names in DaCe, NumPy, PyTorch, ONNX and C++.

``DTYPES`` are the types in which scalar code computes. ``NARROW`` types (half, 8 bits and less) are for storage only: a
kernel widens what it loads to ``compute_type(dtype)`` and rounds what it stores. Arrays of types below 8 bits have one
element per byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import dace
import ml_dtypes
import numpy as np
from dace import dtypes

from daceopt.errors import Unsupported

if TYPE_CHECKING:
    import torch

DType: TypeAlias = dtypes.typeclass


class _Row(NamedTuple):
    dtype: DType
    name: str  # the name in NumPy and in PyTorch
    onnx: int  # onnx.TensorProto.DataType
    cpp: str


class NarrowType(dtypes.typeclass):
    """A storage type that DaCe does not have; C++ sees its bits as ``uint8_t`` or ``uint16_t``."""

    def __init__(self, name: str):
        self.type = getattr(np if name == "float16" else ml_dtypes, name)
        self.ctype = self.ctype_unaligned = f"dop::{name}"
        self.dtype = self
        self.bytes = np.dtype(self.type).itemsize
        self.typename = name

    def __deepcopy__(self, memo: dict[int, Any]) -> NarrowType:
        return self

    @staticmethod
    def from_json(json_obj: Any, context: object = None) -> DType:
        """The type by its name."""
        return from_name(json_obj)


def _narrow(name: str, onnx: int, cpp: str = "uint8_t") -> _Row:
    return _Row(NarrowType(name), name, onnx, cpp)


_ROWS = (
    _Row(dace.float32, "float32", 1, "float"),
    _Row(dace.float64, "float64", 11, "double"),
    _Row(dace.int8, "int8", 3, "int8_t"),
    _Row(dace.int16, "int16", 5, "int16_t"),
    _Row(dace.int32, "int32", 6, "int32_t"),
    _Row(dace.int64, "int64", 7, "int64_t"),
    _Row(dace.uint8, "uint8", 2, "uint8_t"),
    _Row(dace.uint16, "uint16", 4, "uint16_t"),
    _Row(dace.uint32, "uint32", 12, "uint32_t"),
    _Row(dace.uint64, "uint64", 13, "uint64_t"),
    _Row(dace.bool_, "bool", 9, "bool"),
)
_NARROW_ROWS = (
    _narrow("float16", 10, "uint16_t"),
    _narrow("bfloat16", 16, "uint16_t"),
    _narrow("float8_e4m3fn", 17),
    _narrow("float8_e4m3fnuz", 18),
    _narrow("float8_e5m2", 19),
    _narrow("float8_e5m2fnuz", 20),
    _narrow("float8_e8m0fnu", 24),
    _narrow("float6_e2m3fn", 27),
    _narrow("float6_e3m2fn", 28),
    _narrow("float4_e2m1fn", 23),
    _narrow("int4", 22),
    _narrow("uint4", 21),
    _narrow("int2", 26),
    _narrow("uint2", 25),
)
DTYPES: tuple[DType, ...] = tuple(row.dtype for row in _ROWS)
NARROW: tuple[DType, ...] = tuple(row.dtype for row in _NARROW_ROWS)
ALL = DTYPES + NARROW
HALVES = NARROW[:2]
BFLOAT16 = NARROW[1]
_EVERY = (*_ROWS, *_NARROW_ROWS)
_BY_NAME = {row.name: row for row in _EVERY} | {"bool_": next(row for row in _ROWS if row.name == "bool")}
_BY_ONNX = {row.onnx: row for row in _EVERY}


def name_of(dtype: DType) -> str:
    """``"float32"``, ..., ``"bool"``: the name used in manifests and reports."""
    return _row(dtype).name


def from_name(name: str) -> DType:
    """The dtype called ``name`` in NumPy or PyTorch; raises ``Unsupported`` for any other."""
    return _row(name).dtype


def from_numpy(dtype: np.dtype[Any] | type) -> DType:
    """The dtype of a NumPy dtype or scalar type; raises ``Unsupported`` for any other (complex, strings)."""
    return _row(np.dtype(dtype).name).dtype


def to_numpy(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype; of ``ml_dtypes`` for what NumPy itself lacks."""
    name = _row(dtype).name
    return np.dtype(getattr(ml_dtypes, name, name))


def from_torch(dtype: torch.dtype) -> DType:
    """The dtype of a ``torch.dtype``; raises ``Unsupported`` for any other (complex, quantised)."""
    return _row(str(dtype).removeprefix("torch.")).dtype


def to_torch(dtype: DType) -> torch.dtype:
    """The ``torch.dtype`` of a tensor with these bytes: uint8 for types below 8 bits."""
    import torch

    name = _row(dtype).name
    return getattr(torch, "uint8" if is_narrow(dtype) and itemsize(dtype) == 1 and "8" not in name else name)


def from_onnx(elem_type: int) -> DType:
    """The dtype of an ``onnx.TensorProto.DataType``; raises ``Unsupported`` for any other."""
    if elem_type not in _BY_ONNX:
        raise Unsupported(f"ONNX element type {_onnx_name(elem_type)}: expected one of {_expectation()}")
    return _BY_ONNX[elem_type].dtype


def to_onnx(dtype: DType) -> int:
    """The ``onnx.TensorProto.DataType``."""
    return _row(dtype).onnx


def cpp(dtype: DType) -> str:
    """The C++ type of one element in memory."""
    return _row(dtype).cpp


def is_narrow(dtype: DType) -> bool:
    """True for types of storage only."""
    return isinstance(dtype, NarrowType)


def compute_type(dtype: DType) -> DType:
    """The type in which values of ``dtype`` are computed: float32, int8 or uint8 for narrow types, else itself."""
    if not is_narrow(dtype):
        return dtype
    name = _row(dtype).name
    return dace.uint8 if name.startswith("uint") else dace.int8 if name.startswith("int") else dace.float32


def _in_memory(row: _Row) -> DType:
    """The type whose C++ name is ours: DaCe writes char for int8 and dace::uint for uint32, which are other types."""
    unsigned = {1: np.uint8, 2: np.uint16}[row.dtype.bytes] if is_narrow(row.dtype) else row.dtype.type
    dtype = dtypes.typeclass(unsigned)
    dtype.ctype = dtype.ctype_unaligned = row.cpp
    return dtype


def bits(dtype: DType) -> DType:
    """The type of one element in memory, as DaCe's frame declares it: unsigned integers for narrow types."""
    return _IN_MEMORY[_row(dtype).name]


def is_float(dtype: DType) -> bool:
    """True for float32, float64 and the narrow floats."""
    return dtype in (dace.float32, dace.float64) or (is_narrow(dtype) and "float" in _row(dtype).name)


def is_bool(dtype: DType) -> bool:
    """True for bool only."""
    return _row(dtype).name == "bool"


def is_integer(dtype: DType) -> bool:
    """True for the signed and unsigned integers; false for bool."""
    return not is_float(dtype) and not is_bool(dtype)


def has_range(dtype: DType, other: DType) -> bool:
    """Of floats: does ``dtype`` reach as far as ``other``, so that rounding to it makes no number infinite but the very
    last ones?"""
    largest, rounded = (ml_dtypes.finfo(to_numpy(t)).maxexp for t in (other, dtype))
    return bool(largest <= rounded)


def itemsize(dtype: DType) -> int:
    """Bytes of one element."""
    return to_numpy(dtype).itemsize


def promote(*types: DType) -> DType:
    """The type in which values of ``types`` meet: a float absorbs integers (as in PyTorch), bool is the smallest.

    Narrow types meet in the types in which they are computed.
    """
    types = tuple(compute_type(t) for t in types)
    floats = [t for t in types if is_float(t)]
    if floats:
        return dace.float64 if dace.float64 in floats else dace.float32
    result = to_numpy(types[0])
    for other in types[1:]:
        result = np.promote_types(result, to_numpy(other))
    # uint64 with a signed integer: NumPy answers float64, an index or a counter must stay an integer
    return dace.int64 if result.kind == "f" else from_numpy(result)


def _row(key: DType | str) -> _Row:
    name = key if isinstance(key, str) else getattr(key, "type", key).__name__
    if name not in _BY_NAME:
        raise Unsupported(f"element type {key}: expected one of {_expectation()}")
    return _BY_NAME[name]


def _onnx_name(elem_type: int) -> str:
    import onnx

    exists = elem_type in onnx.TensorProto.DataType.values()
    return onnx.TensorProto.DataType.Name(elem_type) if exists else str(elem_type)


def _expectation() -> str:
    return ", ".join(row.name for row in _EVERY)


_IN_MEMORY = {row.name: _in_memory(row) for row in _EVERY}
