"""Products of matrices and vectors: MatMul, with Mul and Add around it."""

from __future__ import annotations

from collections.abc import Sequence

import dace
import sympy

from daceopt.capture.torch.calls import Number, Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Shape, dim
from daceopt.ir.scalar.types import DType


def _product(t: Translation, left: str, right: str, shape: Shape | None = None, dtype: DType | None = None) -> str:
    """``left @ right``, declared as ``shape`` and ``dtype`` (default: the promised ones)."""
    if t.dtype_of(left) != t.dtype_of(right):  # ATen has the error for it
        kinds = " and ".join(types.name_of(t.dtype_of(x)) for x in (left, right))
        raise Unsupported(f"a product of {kinds}; expected the same type twice")
    promise = Promise(t.shape if shape is None else shape, t.dtype if dtype is None else dtype)
    return t.operator("MatMul", left, right, results=[promise])


def _check_numbers(t: Translation) -> None:
    if not (types.is_float(t.dtype) or types.is_integer(t.dtype)):
        raise Unsupported(f"a product over {types.name_of(t.dtype)}; supported are floats and integers")


def _scale(t: Translation, x: str, factor: object) -> str:
    """``factor * x``; the factor is a number."""
    if factor == 1:
        return x
    promise = Promise(t.shape_of(x), t.dtype_of(x))
    return t.operator("Mul", x, t.array(factor, t.dtype), results=[promise])


def _sum(t: Translation, added: str, left: str, right: str, beta: Number, alpha: Number) -> str:
    """``beta * added + alpha * left @ right``, rounded once; what a beta of 0 hides may be NaN."""
    if t.dtype not in t.graph.options.factors:
        product = _scale(t, _product(t, left, right), alpha)
        return product if beta == 0 else t.operator("Add", product, _scale(t, added, beta))
    product = _product(t, left, right, dtype=types.compute_type(t.dtype))

    def combine(y: sympy.Expr, *c: sympy.Expr) -> sympy.Expr:
        return sympy.Add(y * sympy.Float(alpha), *(x * sympy.Float(beta) for x in c))

    out = t.graph.add_array(t.label, t.shape, t.dtype)
    return t.b.elementwise(combine, product, *([] if beta == 0 else [added]), out=out, label="sum")


@translates("linear")
def linear(t: Translation, input: str, weight: str, bias: str | None) -> str:
    _check_numbers(t)
    columns = weight if len(t.shape_of(weight)) == 1 else t.transpose(weight, [1, 0])
    if bias is None or t.dtype not in t.graph.options.factors or columns == weight:
        product = _product(t, input, columns)
        return product if bias is None else t.operator("Add", product, bias)
    *lead, inner = t.shape_of(input)
    rows = dim(sympy.Mul(*lead))
    promise = Promise((rows, t.shape[-1]), t.dtype)
    whole = t.operator("Gemm", t.reshape(input, (rows, inner)), columns, bias, results=[promise])  # is rounded once
    return t.reshape(str(whole), t.shape)


@translates("matmul", "mm", "bmm", "mv", "dot", "vdot")
def matmul(t: Translation, self: str, **factor: str) -> str:
    """The name of the right factor is another one in each schema."""
    _check_numbers(t)
    (right,) = factor.values()
    return _product(t, self, right)


@translates("addmm")
def addmm(t: Translation, self: str, mat1: str, mat2: str, beta: Number, alpha: Number) -> str:
    _check_numbers(t)
    if alpha == 1 and beta == 1 and types.is_float(t.dtype) and len(t.shape_of(self)) == 1:
        return t.operator("Gemm", mat1, mat2, self)
    return _sum(t, self, mat1, mat2, beta, alpha)


@translates("addmv", "baddbmm")
def add_product(t: Translation, self: str, beta: Number, alpha: Number, **factors: str) -> str:
    _check_numbers(t)
    left, right = factors.values()
    return _sum(t, self, left, right, beta, alpha)


@translates("addbmm")
def addbmm(t: Translation, self: str, batch1: str, batch2: str, beta: Number, alpha: Number) -> str:
    """The sum over a batch of products is one product of matrices that lie side by side."""
    _check_numbers(t)
    batch, rows, inner = t.shape_of(batch1)
    left = t.reshape(t.transpose(batch1, [1, 0, 2]), (rows, dim(batch * inner)))
    right = t.reshape(batch2, (dim(batch * inner), t.shape_of(batch2)[2]))
    return _sum(t, self, left, right, beta, alpha)


# -------------------------------------------------------------------- products of three

_BILINEAR = ([1, 3], [0], [1, 2], [2, 3])


@translates("_trilinear")
def trilinear(
    t: Translation,
    i1: str,
    i2: str,
    i3: str,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int,
) -> str:
    """The sum over ``sumdim`` of the product of three operands, after extents of 1 were inserted into each."""
    _check_numbers(t)
    if (list(expand1), list(expand2), list(expand3), list(sumdim)) == _BILINEAR:
        return _bilinear(t, i1, i2, i3)
    wide = [t.b.unsqueeze(x, list(axes)) for x, axes in ((i1, expand1), (i2, expand2), (i3, expand3))]
    out = t.graph.add_array(t.label, t.shape, t.dtype)
    return t.b.reduce("sum", lambda x, y, z: x * y * z, *wide, axes=list(sumdim), dtype=t.dtype, out=out)


def _bilinear(t: Translation, x: str, weight: str, y: str) -> str:
    """out[b, o] = sum over i and j of x[b, i] weight[o, i, j] y[b, j], as two products of matrices."""
    count, (outputs, rows, columns) = t.shape_of(x)[0], t.shape_of(weight)
    flat = t.reshape(t.transpose(weight, [1, 0, 2]), (rows, dim(outputs * columns)))
    inner = t.reshape(_product(t, x, flat, (count, dim(outputs * columns))), (count, outputs, columns))
    product = _product(t, inner, t.reshape(y, (count, columns, 1)), (count, outputs, 1))
    return t.reshape(product, (count, outputs))


@translates("transformers::grouped_mm_fallback")
def grouped_mm_fallback(t: Translation, input: str, weight: str, offs: str) -> str:
    """Rows of each group times a matrix of its own: how transformers compiles experts that are not in bfloat16."""
    _check_groups(t, input, weight)
    return t.b.grouped_product(input, weight, t.b.contiguous(offs))


@translates("transformers::grouped_mm_fallback_backward")
def grouped_mm_fallback_backward(
    t: Translation, input: str, weight: str, offs: str, grad_output: str
) -> tuple[str, str]:
    """What second derivatives have of it."""
    _check_groups(t, input, weight, grad_output)
    ends = t.b.contiguous(offs)
    by_rows = t.b.grouped_product(grad_output, t.transpose(weight, [0, 2, 1]), ends)
    return by_rows, t.b.grouped_product(input, grad_output, ends, inner=True)


def _check_groups(t: Translation, *factors: str) -> None:
    kinds, target = {t.dtype_of(x) for x in factors}, t.graph.options.target
    if kinds not in ({dace.float32}, {dace.float64}) or target != "cpu":
        text = " and ".join(sorted(map(types.name_of, kinds)))
        raise Unsupported(f"a grouped product of {text} on {target}; expected float32 or float64 on the CPU")


@translates("_euclidean_dist", derivative="aten")
def euclidean_dist(t: Translation, x1: str, x2: str) -> str:
    """Distances of the rows of both, by a product; PyTorch's formula has a gradient of zero where one is zero."""
    rank = len(t.shape_of(x2))
    columns = [*range(rank - 2), rank - 1, rank - 2]
    product = _product(t, x1, t.transpose(x2, columns))
    return t.kernel(_distance, product, _squares(t, x1), t.transpose(_squares(t, x2), columns))


def _squares(t: Translation, x: str) -> str:
    """The sum of the squares of each row, as a column."""
    return str(t.b.reduce("sum", lambda v: v * v, x, axes=[len(t.shape_of(x)) - 1], keepdims=True, dtype=t.dtype))


def _distance(product: sympy.Expr, left: sympy.Expr, right: sympy.Expr) -> sympy.Expr:
    return sympy.sqrt(scalar.maximum(left + right - 2 * product, 0))
