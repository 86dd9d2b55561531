"""Comparisons, logic, and questions about single numbers."""

from __future__ import annotations

from typing import Any

from daceopt.capture.torch.calls import ArrayOrNumber
from daceopt.capture.torch.elements import common_dtype, elements
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.ir.scalar import scalar, types

_BOOL = types.from_name("bool")


def _comparison(name: str, op_type: str) -> None:
    @translates(f"{name}.Tensor", f"{name}.Scalar")
    def rule(t: Translation, self: str, other: object) -> str:
        """In the type in which both meet, to which numbers are rounded."""
        dtype = common_dtype(t, "self", "other")
        dtype = types.from_name("uint8") if types.is_bool(dtype) else dtype
        return t.operator(op_type, t.array(self, dtype), t.array(other, dtype))


for _name, _op_type in {
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}.items():
    _comparison(_name, _op_type)


@translates("ne.Tensor", "ne.Scalar")
def ne(t: Translation, self: str, other: ArrayOrNumber) -> str:
    dtype = common_dtype(t, "self", "other")
    return elements(t, scalar.ne, t.array(self, dtype), t.array(other, dtype), compute=dtype)


def _logical(name: str, op_type: str) -> None:
    @translates(f"logical_{name}")
    def rule(t: Translation, self: str, other: str) -> str:
        return t.operator(op_type, t.cast(self, _BOOL), t.cast(other, _BOOL))


for _name, _op_type in {"and": "And", "or": "Or", "xor": "Xor"}.items():
    _logical(_name, _op_type)


@translates("logical_not")
def logical_not(t: Translation, self: str) -> str:
    return t.operator("Not", t.cast(self, _BOOL))


def _question(name: str, fn: Any) -> None:
    @translates(name)
    def rule(t: Translation, self: str) -> str:
        """Answered in the type of the operand; integers are what they are."""
        return elements(t, fn, self, compute=t.dtype_of(self))


for _name, _fn in {
    "isnan": scalar.isnan,
    "isinf": scalar.isinf,
    "isfinite": lambda x: scalar.logical_not(scalar.logical_or(scalar.isnan(x), scalar.isinf(x))),
    "isposinf": lambda x: scalar.logical_and(scalar.isinf(x), scalar.gt(x, 0)),
    "isneginf": lambda x: scalar.logical_and(scalar.isinf(x), scalar.lt(x, 0)),
}.items():
    _question(_name, _fn)


@translates("signbit")
def signbit(t: Translation, self: str) -> str:
    """Also of zeros."""
    if not types.is_float(t.dtype_of(self)):
        return elements(t, lambda x: scalar.lt(x, 0), self, compute=t.dtype_of(self))
    return elements(t, lambda x: scalar.lt(scalar.copysign(1, x), 0), self, compute=t.dtype_of(self))
