"""Complex tensors: arrays of real and imaginary parts along one more axis, the last.

Moving elements is what it is for real ones, one axis further in. A gradient as PyTorch defines it for complex numbers
is the gradient by both parts. Arithmetic is in ``complex_functions.py``.
"""

from __future__ import annotations

import numpy as np

from daceopt.capture.torch.aten import scatter
from daceopt.capture.torch.aten import shape as real
from daceopt.capture.torch.calls import Number, Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim


def _rank(t: Translation, name: str) -> int:
    """Axes of the complex tensor."""
    return len(t.shape_of(name)) - 1


def operand_is_complex(t: Translation, name: str) -> bool:
    """Whether an operand of the call is; its array tells by the axis that it has more."""
    assert t.call is not None
    alike = [x for x in t.call.operands if len(x.shape) + x.is_complex() == len(t.shape_of(name))]
    if any(x.is_complex() != alike[0].is_complex() for x in alike):
        raise Unsupported("operands of which one is complex, and another looks like it")
    return bool(alike and alike[0].is_complex())


def check_precision(t: Translation) -> None:
    if types.is_narrow(t.dtype):
        raise Unsupported("complex numbers of half precision")


# -------------------------------------------------------------------- views of both parts


@translates("view_as_real", "view_as_complex", "alias", "clone", complexes=True)
@translates("lift", "lift_fresh", "resolve_conj", "resolve_neg", complexes=True)
def same(t: Translation, self: str, **options: object) -> str:
    return self


@translates("detach", complexes=True)
def detach(t: Translation, self: str) -> str:
    return t.operator("StopGradient", self, domain="daceopt")


@translates("daceopt::with_gradient", derivative="aten", complexes=True)
def with_gradient(t: Translation, results: list[str], operands: list[str], saved: list[str], number: int) -> list[str]:
    """The results as they are; ``derivative.py`` has the rule."""
    return results


@translates("_to_copy", complexes=True)
def to_copy(t: Translation, self: str, **options: object) -> str:
    """Between complex types, and of real numbers."""
    check_precision(t)
    return as_complex(t, self)


@translates("copy", complexes=True)
def copy(t: Translation, self: str, src: str, non_blocking: bool) -> str:
    check_precision(t)
    return t.expand(as_complex(t, src), t.shape)


def as_complex(t: Translation, name: str) -> str:
    """An operand as complex numbers of the promised type; Unsupported where the promise is real."""
    if operand_is_complex(t, name):
        if not t.promises_complex:
            raise Unsupported("complex numbers as real ones")
        return t.cast(name, t.dtype)
    shape = (*t.shape_of(name), 1)
    part = t.reshape(t.cast(name, t.dtype), shape)
    zero = t.b.full(shape, 0, t.dtype)
    both = [Promise((*shape[:-1], 2), t.dtype)]
    return t.operator("Concat", part, zero, results=both, axis=len(shape) - 1)


@translates("complex", complexes=True)
def complex_(t: Translation, real: str, imag: str) -> str:
    check_precision(t)
    both = [t.reshape(t.expand(n, t.shape[:-1]), (*t.shape[:-1], 1)) for n in (real, imag)]
    return t.operator("Concat", *both, axis=len(t.shape) - 1)


@translates("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty", complexes=True)
def zeros(t: Translation, **options: object) -> str:
    """What is left empty holds zeros, too."""
    return t.expand(t.array(0, t.dtype), t.shape)


@translates("full", "full_like", "new_full", complexes=True)
def full(t: Translation, fill_value: Number, **options: object) -> str:
    return expand_number(t, fill_value)


@translates("scalar_tensor", complexes=True)
def scalar_tensor(t: Translation, s: Number, **options: object) -> str:
    return expand_number(t, s)


@translates("ones", "ones_like", "new_ones", complexes=True)
def ones(t: Translation, **options: object) -> str:
    return expand_number(t, 1)


def expand_number(t: Translation, value: Number) -> str:
    """A view of one number, of the promised shape."""
    return t.expand(number(t, value), t.shape)


def number(t: Translation, value: Number) -> str:
    """Both parts of a number, or the array that stands for it."""
    check_precision(t)
    if isinstance(value, str):
        return value
    if not isinstance(value, (bool, int, float, complex)):
        raise Unsupported(f"a complex number of {value}")
    both = complex(value)
    return t.b.constant(np.asarray([both.real, both.imag], types.to_numpy(t.dtype)))


# -------------------------------------------------------------------- views of elements


@translates("view", "_unsafe_view", "_reshape_alias", "squeeze", "squeeze.dim", "squeeze.dims", complexes=True)
def view(t: Translation, self: str, **options: object) -> str:
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


@translates("slice.Tensor", complexes=True)
def slice_(t: Translation, self: str, dim: int, start: Dim | None, end: Dim | None, step: int) -> str:
    return real.slice_(t, self, dim % _rank(t, self), start, end, step)


@translates("select.int", complexes=True)
def select(t: Translation, self: str, dim: int, index: Dim) -> str:
    return real.pick(t, self, dim % _rank(t, self), index)


@translates("cat", complexes=True)
def cat(t: Translation, tensors: list[str], dim: int) -> str:
    if any(not operand_is_complex(t, n) or len(t.shape_of(n)) != len(t.shape) for n in tensors):
        raise Unsupported("real and complex tensors joined")
    parts = [t.cast(n, t.dtype) for n in tensors]
    return parts[0] if len(parts) == 1 else t.operator("Concat", *parts, axis=dim % (len(t.shape) - 1))


@translates("stack", complexes=True)
def stack(t: Translation, tensors: list[str], dim: int) -> str:
    if not all(operand_is_complex(t, n) for n in tensors):
        raise Unsupported("real and complex tensors joined")
    axis = dim % (len(t.shape) - 1)
    parts = [real.insert_axis(t, t.cast(n, t.dtype), axis) for n in tensors]
    return parts[0] if len(parts) == 1 else t.operator("Concat", *parts, axis=axis)


@translates("flip", complexes=True)
def flip(t: Translation, self: str, dims: list[int]) -> str:
    rank = _rank(t, self)
    return real.flip(t, self, [d % rank for d in dims]) if rank else self


@translates("roll", complexes=True)
def roll(t: Translation, self: str, shifts: list[Dim], dims: list[int]) -> str:
    rank = _rank(t, self)
    if not dims or not rank:
        raise Unsupported("complex elements moved along a flattened tensor")
    return real.roll(t, self, shifts, [d % rank for d in dims])


@translates("slice_scatter", derivative="aten", complexes=True)
def slice_scatter(t: Translation, self: str, src: str, dim: int, start: Dim | None, end: Dim | None, step: int) -> str:
    if not (operand_is_complex(t, self) and operand_is_complex(t, src)):
        raise Unsupported("real and complex tensors joined")
    return scatter.slice_scatter(t, self, src, dim % _rank(t, self), start, end, step)


@translates("where.self", complexes=True)
def where(t: Translation, condition: str, self: str, other: str) -> str:
    check_precision(t)
    chosen = t.reshape(t.cast(condition, types.from_name("bool")), (*t.shape_of(condition), 1))
    return t.operator("Where", chosen, as_complex(t, self), as_complex(t, other))
