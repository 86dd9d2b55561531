"""Complex tensors: arrays of real and imaginary parts along one more axis, the last.

Moving elements is what it is for real ones, one axis further in. A gradient as PyTorch defines it for complex numbers
is the gradient by both parts, so sums and products are differentiated as the real arithmetic that they are. All else
is left to ATen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from daceopt.capture.torch.aten import shape as real
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir import scalar, types
from daceopt.ir.graph import Dim


def _rank(t: Translation, name: str) -> int:
    """Axes of the complex tensor."""
    return len(t.shape_of(name)) - 1


def _operand_is_complex(t: Translation, name: str) -> bool:
    """Whether an operand of the call is; its array tells by the axis that it has more."""
    assert t.call is not None
    found = [x for x in t.call.operands if len(x.shape) + x.is_complex() == len(t.shape_of(name))]
    if any(x.is_complex() != found[0].is_complex() for x in found):
        raise Unsupported("operands of which one is complex, and another looks like it")
    return bool(found and found[0].is_complex())


def _check_precision(t: Translation) -> None:
    if types.is_narrow(t.dtype):
        raise Unsupported("complex numbers of half precision")


# -------------------------------------------------------------------- views of both parts


@translates("view_as_real", "view_as_complex", complexes=True)
def parts(t: Translation, self: str) -> str:
    return self


@translates("alias", "lift", "lift_fresh", "resolve_conj", "resolve_neg", complexes=True)
def same(t: Translation, self: str) -> str:
    return self


@translates("detach", complexes=True)
def detach(t: Translation, self: str) -> str:
    return str(t.operator("StopGradient", self, domain="daceopt"))


@translates("clone", complexes=True)
def clone(t: Translation, self: str, memory_format: Any) -> str:
    return self


@translates("daceopt::with_gradient", derivative="aten", complexes=True)
def with_gradient(t: Translation, results: list[str], operands: list[str], saved: list[str], number: int) -> Any:
    """The results as they are; ``derivative.py`` has the rule."""
    return results


@translates("_to_copy", complexes=True)
def to_copy(t: Translation, self: str, **options: Any) -> str:
    """Between complex types, and of real numbers."""
    _check_precision(t)
    if len(t.shape_of(self)) == len(t.shape):
        if not _operand_is_complex(t, self):
            raise Unsupported("a real tensor of one axis more")
        return t.cast(self, t.dtype)
    if len(t.shape_of(self)) + 1 != len(t.shape) or _operand_is_complex(t, self):
        raise Unsupported("complex numbers as real ones")
    part = t.cast(self, t.dtype)
    both = [t.reshape(n, (*t.shape[:-1], 1)) for n in (part, t.b.full(t.shape[:-1], 0, t.dtype))]
    return str(t.operator("Concat", *both, axis=len(t.shape) - 1))


@translates("complex", complexes=True)
def complex_(t: Translation, real: str, imag: str) -> str:
    _check_precision(t)
    both = [t.reshape(t.expand(n, t.shape[:-1]), (*t.shape[:-1], 1)) for n in (real, imag)]
    return str(t.operator("Concat", *both, axis=len(t.shape) - 1))


# -------------------------------------------------------------------- views of elements


@translates("view", "_unsafe_view", "_reshape_alias", complexes=True)
def view(t: Translation, self: str, size: list[Dim], stride: Any = None) -> str:
    return t.reshape(self, t.shape)


@translates("expand", complexes=True)
def expand(t: Translation, self: str, size: list[Dim], implicit: bool) -> str:
    return t.expand(self, t.shape)


@translates("permute", complexes=True)
def permute(t: Translation, self: str, dims: list[int]) -> str:
    rank = _rank(t, self)
    return t.transpose(self, [*(real.axis_in(d, rank) for d in dims), rank])


@translates("transpose.int", complexes=True)
def transpose(t: Translation, self: str, dim0: int, dim1: int) -> str:
    rank = _rank(t, self)
    return real.transpose(t, self, dim0 % rank, dim1 % rank) if rank else self


@translates("t", complexes=True)
def t_(t: Translation, self: str) -> str:
    rank = _rank(t, self)
    return t.transpose(self, [*reversed(range(rank)), rank])


@translates("unsqueeze", complexes=True)
def unsqueeze(t: Translation, self: str, dim: int) -> str:
    return real.insert_axis(t, self, dim % (_rank(t, self) + 1))


@translates("squeeze.dim", complexes=True)
def squeeze(t: Translation, self: str, dim: int) -> str:
    return t.reshape(self, t.shape)


@translates("squeeze", complexes=True)
def squeeze_all(t: Translation, self: str) -> str:
    return t.reshape(self, t.shape)


@translates("squeeze.dims", complexes=True)
def squeeze_dims(t: Translation, self: str, dim: list[int]) -> str:
    return t.reshape(self, t.shape)


@translates("slice.Tensor", complexes=True)
def slice_(t: Translation, self: str, dim: int, start: Any, end: Any, step: int) -> str:
    return real.slice_(t, self, dim % _rank(t, self), start, end, step)


@translates("select.int", complexes=True)
def select(t: Translation, self: str, dim: int, index: Any) -> str:
    return real.picked(t, self, dim % _rank(t, self), index)


@translates("cat", complexes=True)
def cat(t: Translation, tensors: list[str], dim: int) -> str:
    if any(not _operand_is_complex(t, n) or len(t.shape_of(n)) != len(t.shape) for n in tensors):
        raise Unsupported("real and complex tensors joined")
    parts = [t.cast(n, t.dtype) for n in tensors]
    return parts[0] if len(parts) == 1 else str(t.operator("Concat", *parts, axis=dim % (len(t.shape) - 1)))


@translates("stack", complexes=True)
def stack(t: Translation, tensors: list[str], dim: int) -> str:
    if not all(_operand_is_complex(t, n) for n in tensors):
        raise Unsupported("real and complex tensors joined")
    axis = dim % (len(t.shape) - 1)
    parts = [real.insert_axis(t, t.cast(n, t.dtype), axis) for n in tensors]
    return parts[0] if len(parts) == 1 else str(t.operator("Concat", *parts, axis=axis))


@translates("flip", complexes=True)
def flip(t: Translation, self: str, dims: list[int]) -> str:
    rank = _rank(t, self)
    return real.flip(t, self, [d % rank for d in dims]) if rank else self


@translates("roll", complexes=True)
def roll(t: Translation, self: str, shifts: list[Any], dims: list[int]) -> str:
    rank = _rank(t, self)
    if not dims or not rank:
        raise Unsupported("complex elements moved along a flattened tensor")
    return real.roll(t, self, shifts, [d % rank for d in dims])


# -------------------------------------------------------------------- arithmetic


@translates("_conj", "_conj_physical", "conj_physical", complexes=True)
def conjugate(t: Translation, self: Any) -> str:
    _check_precision(t)
    signs = t.b.constant(np.asarray([1, -1], types.to_numpy(t.dtype)))
    return str(t.operator("Mul", _array(t, self), signs))


@translates("neg", "_neg_view", complexes=True)
def negative(t: Translation, self: Any) -> str:
    _check_precision(t)
    return str(t.operator("Neg", _array(t, self)))


def _array(t: Translation, value: Any) -> str:
    """A constant of the model is a number here."""
    if isinstance(value, str):
        return value
    return t.b.constant(np.asarray([value.real, value.imag], types.to_numpy(t.dtype)))


@translates("add.Tensor", complexes=True)
def add(t: Translation, self: str, other: Any, alpha: Any) -> str:
    return _sum(t, self, other, alpha, "Add")


@translates("sub.Tensor", complexes=True)
def sub(t: Translation, self: str, other: Any, alpha: Any) -> str:
    return _sum(t, self, other, alpha, "Sub")


def _sum(t: Translation, x: str, y: Any, alpha: Any, operator: str) -> str:
    _check_precision(t)
    if alpha != 1 or not isinstance(y, str) or not all(_operand_is_complex(t, n) for n in (x, y)):
        raise Unsupported("a sum of complex numbers and others")
    return str(t.operator(operator, t.cast(x, t.dtype), t.cast(y, t.dtype)))


@translates("mul.Tensor", "mul.Scalar", complexes=True)
def mul(t: Translation, self: str, other: Any) -> str:
    """With a real factor both parts are multiplied; else one map makes both from those of the factors."""
    _check_precision(t)
    if isinstance(other, complex):
        if not _operand_is_complex(t, self):
            self = _without_imaginary_part(t, self)
        return _product(t, self, _array(t, other))
    if not isinstance(other, str):
        return str(t.operator("Mul", self, t.array(float(other), t.dtype)))
    kinds = [_operand_is_complex(t, n) for n in (self, other)]
    factors = [t.cast(n, t.dtype) for n in (self, other)]
    if all(kinds):
        return _product(t, *factors)
    both = [n if kind else t.reshape(n, (*t.shape_of(n), 1)) for n, kind in zip(factors, kinds)]
    return str(t.operator("Mul", *both))


def _without_imaginary_part(t: Translation, name: str) -> str:
    """A real tensor as a complex one: PyTorch multiplies that zero, too, which makes NaN of infinities."""
    real = t.reshape(t.cast(name, t.dtype), (*t.shape_of(name), 1))
    zero = t.b.full((*t.shape_of(name), 1), 0.0, t.dtype)
    return str(t.operator("Concat", real, zero, axis=len(t.shape) - 1))


def _product(t: Translation, x: str, y: str) -> str:
    out = t.graph.add_array(t.label, t.shape, t.dtype)
    reads = {f"{n}{k}": (array, _part(t, array, k)) for n, array in (("x", x), ("y", y)) for k in range(2)}

    def element(i: Any, x0: Any, x1: Any, y0: Any, y1: Any) -> Any:
        return scalar.select(scalar.eq(i[-1], 0), x0 * y0 - x1 * y1, x0 * y1 + x1 * y0)

    t.b.map(t.shape, reads, {"out": (out, lambda *i: i)}, element)
    return out


def _part(t: Translation, name: str, part: int) -> Callable[..., tuple[Any, ...]]:
    """Where the part of an element stands in an array that is broadcast to the result."""
    own = t.shape_of(name)[:-1]

    def index(*i: Any) -> tuple[Any, ...]:
        places = i[:-1][len(i) - 1 - len(own) :]
        return (*(0 if n == 1 else p for n, p in zip(own, places)), part)

    return index
