"""What rules of operators that work element by element share: operands in their computation type, and kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import sympy

from daceopt.capture.torch.calls import ArrayOrNumber, Number, Operand
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.types import DType
from daceopt.torch_internals.decompositions import promoted_type

Function = Callable[..., sympy.Expr]


def operand(t: Translation, value: ArrayOrNumber, dtype: DType | None = None) -> str:
    """``value`` as an operand of an operator that computes in ``dtype`` (default: that of the result).

    Half types compute in float32: tensors of that very type stay as they are, numbers are not rounded to it, as in
    ATen's arithmetic.
    """
    dtype = t.dtype if dtype is None else dtype
    if isinstance(value, str) and t.dtype_of(value) == dtype:
        return value
    return t.array(value, types.compute_type(dtype))


def elements(
    t: Translation, fn: Function, *operands: ArrayOrNumber, compute: DType | None = None, opaque: bool = False
) -> str:
    """``fn`` of the operands' elements as one kernel, computed in ``compute`` (default: the result's type).

    An array given twice is two symbols, since SymPy makes ``x - x`` zero, for infinities too. ``opaque``: constants are
    symbols as well, where algebra with their values, or a derivative that takes them for constants, would be wrong.
    """
    dtype = types.compute_type(t.dtype if compute is None else compute)
    names: list[str] = []
    for value in operands:
        name = value if isinstance(value, str) else t.array(value, dtype)
        is_constant = opaque and name in t.graph.constants
        names.append(t.b.reshape(name, t.shape_of(name)) if name in names or is_constant else name)
    return t.kernel(fn, *names, compute=dtype)


def common_dtype(t: Translation, *names: str) -> DType:
    """The type in which ATen compares the arguments called ``names``: numbers and tensors without axes give way."""
    assert t.call is not None
    traced = [t.call.traced[n] for n in names]
    values = [t.call.operands[v] if isinstance(v, Operand) else v for v in traced]
    return types.from_torch(promoted_type(values))


def literal(value: Number, dtype: DType) -> sympy.Expr:
    """A number as it is in ``dtype``, for scalar code: where it is only compared or chosen."""
    stored = np.asarray(value).astype(types.to_numpy(dtype))
    if not types.is_float(dtype):
        return sympy.Integer(int(stored))
    if stored == 0 and np.signbit(stored):  # which a number of SymPy cannot say
        return scalar.copysign(0, -1)
    return scalar.number(float(stored))


def pointwise(
    *names: str, by: str = "self", derivative: str = "own", opaque: bool = False
) -> Callable[[Function], Function]:
    """Register a scalar function as the rule of ATen operators, computed in the result's type.

    ``by``: the arguments that become its elements, in order; the others follow by name, as they are. An optional one
    that is absent is None.
    """
    order = by.split()

    def register(fn: Function) -> Function:
        @translates(*names, derivative=derivative)
        def rule(t: Translation, **arguments: object) -> str:
            operands = {n: arguments.pop(n) for n in order}
            there = [n for n in order if operands[n] is not None]

            def code(*values: sympy.Expr) -> sympy.Expr:
                present = dict(zip(there, values))
                return fn(*(present.get(n) for n in order), **arguments)

            return elements(t, code, *(operands[n] for n in there), opaque=opaque)

        return fn

    return register


def operators(table: dict[str, str], derivative: str = "own") -> None:
    """Register ATen's unary operators as operators that are exactly equal, over floats."""

    def add(name: str, op_type: str) -> None:
        @translates(name, derivative=derivative)
        def rule(t: Translation, self: str) -> str:
            return t.operator(op_type, operand(t, self))

    for name, op_type in table.items():
        add(name, op_type)
