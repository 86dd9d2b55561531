"""Tensors made from nothing but numbers."""

from __future__ import annotations

import numpy as np
import sympy
import torch

from daceopt.capture.torch.calls import Number, to_numpy
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types

_LARGEST_CONSTANT = 1 << 16  # elements; more are computed in each call


def expand_element(t: Translation, value: Number) -> str:
    """A view of one element, of the promised shape."""
    return t.expand(t.array(value, t.dtype), t.shape)


@translates("full", "full_like", "new_full")
def full(t: Translation, fill_value: Number, **options: object) -> str:
    return expand_element(t, fill_value)


@translates("fill.Scalar", "fill.Tensor")
def fill(t: Translation, self: str, value: Number) -> str:
    return expand_element(t, value)


@translates("scalar_tensor")
def scalar_tensor(t: Translation, s: Number, **options: object) -> str:
    return expand_element(t, s)


@translates("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty")
@translates("empty_strided", "new_empty_strided", "empty_permuted")
def zeros(t: Translation, **options: object) -> str:
    """What is left empty holds zeros, too."""
    return expand_element(t, 0)


@translates("ones", "ones_like", "new_ones")
def ones(t: Translation, **options: object) -> str:
    return expand_element(t, 1)


@translates("arange.start_step", "arange.start", "arange")
def arange(t: Translation, end: Number, start: Number = 0, step: object = 1, **options: object) -> str:
    """A constant if it is small and of known length, which others can be folded with."""
    wide = types.from_name("float64" if types.is_float(t.dtype) else "int64")
    (count,) = t.shape
    if isinstance(count, int) and count <= _LARGEST_CONSTANT and _is_number(start) and _is_number(step):
        first, stride = (np.asarray(v).astype(types.to_numpy(wide)) for v in (start, step))
        values = first + np.arange(count).astype(types.to_numpy(wide)) * stride
        return t.b.constant(values.astype(types.to_numpy(t.dtype)))
    reads = {"start": (t.array(start, wide), lambda i: ()), "step": (t.array(step, wide), lambda i: ())}
    out = t.graph.add_array(t.label, t.shape, t.dtype)

    def value(i: tuple[sympy.Symbol, ...], start: sympy.Expr, step: sympy.Expr) -> sympy.Expr:
        return scalar.cast(start + scalar.cast(i[0], wide) * step, types.compute_type(t.dtype))

    t.b.map(t.shape, reads, {"out": (out, lambda i: (i,))}, value)
    return out


def _is_number(value: object) -> bool:
    return isinstance(value, (bool, int, float))


@translates("linspace", "logspace")
def linspace(t: Translation, start: Number, end: Number, steps: object, base: float = 10.0, **options: object) -> str:
    """PyTorch's own numbers: its form of them in Python computes integers in float32."""
    (count,) = t.shape
    if not (isinstance(count, int) and count <= _LARGEST_CONSTANT and _is_number(start) and _is_number(end)):
        raise Unsupported("numbers that are not known before running, or too many of them to keep")
    assert t.call is not None
    arguments = {"steps": count, "dtype": types.to_torch(t.dtype)}
    is_logarithmic = t.call.target._schema.name == "aten::logspace"
    values = (
        torch.logspace(start, end, base=base, **arguments)
        if is_logarithmic
        else torch.linspace(start, end, **arguments)
    )
    return t.b.constant(to_numpy(values))


@translates("eye", "eye.m")
def eye(t: Translation, **options: object) -> str:
    out = t.graph.add_array(t.label, t.shape, t.dtype)
    t.b.map(t.shape, {}, {"out": (out, lambda i, j: (i, j))}, lambda i: scalar.select(scalar.eq(i[0], i[1]), 1, 0))
    return out


@translates("tril_indices", "triu_indices")
def triangle(t: Translation, row: int, col: int, offset: int, **options: object) -> str:
    """Rows and columns of the elements on one side of a diagonal."""
    assert t.call is not None
    lower = t.call.target._schema.name == "aten::tril_indices"
    inside = np.tri(row, col, offset, dtype=bool) if lower else ~np.tri(row, col, offset - 1, dtype=bool)
    return t.b.constant(np.stack(np.nonzero(inside)).astype(types.to_numpy(t.dtype)))
