"""Operators on the bits of integers."""

from __future__ import annotations

from daceopt.capture.torch.calls import ArrayOrNumber
from daceopt.capture.torch.elements import elements, operand
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types


def _bitwise(name: str, op_type: str) -> None:
    overloads = [f"{name}.{v}" for v in ("Tensor", "Scalar", "Scalar_Tensor")]

    @translates(*overloads, *(f"__{name.removeprefix('bitwise_')}__.{v}" for v in ("Tensor", "Scalar")))
    def rule(t: Translation, self: object, other: object) -> str:
        prefix = "" if types.is_bool(t.dtype) else "Bitwise"
        return t.operator(prefix + op_type, operand(t, self), operand(t, other))


for _name, _op_type in {"bitwise_and": "And", "bitwise_or": "Or", "bitwise_xor": "Xor"}.items():
    _bitwise(_name, _op_type)


@translates("bitwise_not")
def bitwise_not(t: Translation, self: str) -> str:
    return t.operator("Not" if types.is_bool(t.dtype) else "BitwiseNot", self)


_VARIANTS = ("Tensor", "Tensor_Scalar", "Scalar_Tensor")


@translates(*(f"bitwise_left_shift.{v}" for v in _VARIANTS), "__lshift__.Tensor", "__lshift__.Scalar")
def left_shift(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber) -> str:
    """By the width or more, or by less than 0: nothing is left."""
    _check(t)
    return elements(t, scalar.shift_left, self, other)


@translates(*(f"bitwise_right_shift.{v}" for v in _VARIANTS), "__rshift__.Tensor", "__rshift__.Scalar")
def right_shift(t: Translation, self: ArrayOrNumber, other: ArrayOrNumber) -> str:
    """By the width or more, or by less than 0: copies of the sign."""
    _check(t)
    return elements(t, scalar.shift_right, self, other)


def _check(t: Translation) -> None:
    if types.is_float(t.dtype) or types.is_bool(t.dtype):
        raise Unsupported(f"a shift of {types.name_of(t.dtype)}; expected integers")
