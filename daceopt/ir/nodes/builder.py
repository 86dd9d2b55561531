"""The language in which native lowerings and gradient rules are written: array names in, array names out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sympy
from dace.sdfg.nodes import LibraryNode

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.library import Contraction, GroupedProduct, multiplies
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.affine import same
from daceopt.ir.scalar.dims import Dim, Shape, dim, row_major
from daceopt.ir.scalar.extents import in_scalar_code
from daceopt.ir.scalar.symbols import param
from daceopt.ir.scalar.types import DType

IndexFunction = Callable[..., "tuple[Dim | None, ...]"]


def broadcast_shapes(*shapes: Shape) -> Shape:
    """NumPy broadcasting over ints and symbolic extents; symbolic extents must be equal or 1. Raises ValueError."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for axis in range(-rank, 0):
        extents = list(dict.fromkeys(s[axis] for s in shapes if len(s) >= -axis and s[axis] != 1)) or [1]
        if not all(same(extents[0], n) for n in extents[1:]):  # one size may be written in several ways
            raise ValueError(f"shapes {shapes} do not broadcast at axis {axis}: {sorted(map(str, extents))}")
        result.append(extents[0])
    return tuple(result)


class Builder:
    """Adds kernels, views and library nodes to ``graph``."""

    def __init__(self, graph: Graph, label: str = "kernel"):
        self.graph = graph
        self.label = graph.maker.label or label

    # ---------------------------------------------------------------- maps

    def elementwise(
        self,
        fn: Callable[..., sympy.Expr | tuple[sympy.Expr, ...]],
        *arrays: str,
        dtype: object = None,
        out: Any = None,
        label: str | None = None,
    ) -> Any:
        """``fn(*symbols)`` at every element of the broadcast shape.

        ``fn`` returns one expression or a tuple; the result is one name or a tuple of names. ``dtype`` (one, or one per
        result) defaults to the expression's own type. ``out`` names existing arrays of the broadcast shape.
        """
        shape = broadcast_shapes(*(self.graph.shape(a) for a in arrays))
        if out is not None:
            shape = broadcast_shapes(shape, self.graph.shape(out[0] if isinstance(out, (tuple, list)) else out))
        stage_in, symbols = self._operands(arrays, shape)
        values, many = _as_tuple(fn(*symbols))
        dtypes = self._dtypes(values, dtype, stage_in, arrays)
        outs = self._results(out, many, shape, dtypes)
        params = tuple(param(k) for k in range(len(shape)))
        writes = {f"out{k}": Access(name, params) for k, name in enumerate(outs)}
        self._emit(label, shape, stage_in, writes, values, [self.graph.dtype(o) for o in outs])
        return tuple(outs) if many else outs[0]

    def reduce(
        self,
        kind: str,
        fn: Callable[..., sympy.Expr] | None,
        *arrays: str,
        axes: Sequence[int],
        keepdims: bool = False,
        dtype: object = None,
        out: str | None = None,
        label: str | None = None,
    ) -> str:
        """Reduce ``fn(*symbols)`` (None: the array itself) over ``axes`` of the broadcast shape with ``kind`` sum,
        prod, max or min."""
        shape = broadcast_shapes(*(self.graph.shape(a) for a in arrays))
        axes = tuple(a % len(shape) for a in axes) if shape else ()
        stage_in, symbols = self._operands(arrays, shape)
        value = fn(*symbols) if fn is not None else symbols[0]
        result_dtype = self._dtypes((value,), dtype, stage_in, arrays)[0]
        ones = tuple(1 if k in axes else s for k, s in enumerate(shape))
        final = ones if keepdims else tuple(s for k, s in enumerate(shape) if k not in axes)
        if out is not None:
            _check_fit(label or self.label, final, self.graph.shape(out))
        name = out or self.graph.add_array(label or self.label, final, result_dtype)
        index = [0 if k in axes else param(k) for k in range(len(shape))]
        index = index if keepdims else [e for k, e in enumerate(index) if k not in axes]
        write = Access(name, tuple(index), kind if axes else None)
        self._emit(label, shape, stage_in, {"out0": write}, (value,), [self.graph.dtype(name)])
        return name

    def map(
        self,
        extents: Sequence[Dim],
        reads: Mapping[str, tuple[str, IndexFunction]],
        writes: Mapping[str, tuple[Any, ...]],
        fn: Callable[..., sympy.Expr | tuple[sympy.Expr, ...]],
        label: str | None = None,
    ) -> None:
        """The general form: ``fn(params, **symbols)`` gives a mapping from write connectors to expressions (or one
        expression).

        ``reads``: connector -> (array, index function of the parameters); ``writes``: connector -> (array, index
        function[, wcr]). An index of None reads a whole dimension for :func:`scalar.load`.
        """
        params = tuple(param(k) for k in range(len(extents)))
        stage_reads = {c: Access(a, _index(f(*params))) for c, (a, f) in reads.items()}
        stage_writes = {c: Access(w[0], _index(w[1](*params)), w[2] if len(w) > 2 else None) for c, w in writes.items()}
        symbols = {c: scalar.symbol(c, self.graph.dtype(a.array)) for c, a in stage_reads.items()}
        result = fn(params, **symbols)
        values = result if isinstance(result, Mapping) else {next(iter(writes)): result}
        dtypes = [self.graph.dtype(a.array) for a in stage_writes.values()]
        self._emit(
            label, tuple(dim(e) for e in extents), stage_reads, stage_writes, [values[c] for c in stage_writes], dtypes
        )

    def _emit(
        self,
        label: str | None,
        shape: Shape,
        reads: dict[str, Access],
        writes: dict[str, Access],
        values: Sequence[object],
        dtypes: Sequence[object],
    ) -> None:
        assignments = tuple(
            Assignment(scalar.symbol(c, t), in_scalar_code(v), t) for c, v, t in zip(writes, values, dtypes)
        )
        params = tuple(param(k) for k in range(len(shape)))
        stage = Stage(params, reads, writes, assignments)
        name = self.graph.maker.label or label or self.label
        self.graph.add_kernel(Kernel(name, dict(zip(params, shape)), [stage]))

    def _operands(self, arrays: Sequence[str], shape: Shape) -> tuple[dict[str, Access], list[Any]]:
        """Accesses and symbols of ``arrays`` broadcast to ``shape``; one-element constants become literals."""
        reads: dict[str, Access] = {}
        symbols: list[sympy.Expr] = []
        names: dict[str, str] = {}
        for array in arrays:
            literal = self._literal(array, arrays)
            if literal is not None:
                symbols.append(literal)
                continue
            conn = names.setdefault(array, f"in{len(names)}")
            reads[conn] = Access(array, self._broadcast_index(array, len(shape)))
            symbols.append(scalar.symbol(conn, self.graph.dtype(array)))
        return reads, symbols

    def _broadcast_index(self, array: str, rank: int) -> tuple[Dim, ...]:
        own = self.graph.shape(array)
        return tuple(0 if s == 1 else param(rank - len(own) + k) for k, s in enumerate(own))

    def _literal(self, array: str, arrays: Sequence[str]) -> Any:
        """The value of a one-element constant, unless SymPy would simplify with it unsafely (zero, infinities, NaN,
        bool), or its type would be lost: a bare number takes that of the arrays which it meets."""
        value = self.graph.constants.get(array)
        if value is None or value.size != 1 or value.dtype.kind not in "fi":
            return None
        number = value.reshape(()).item()
        if number == 0 or not np.isfinite(number) or not self._meets_own_type(array, arrays):
            return None
        return scalar.number(number)

    def _meets_own_type(self, array: str, arrays: Sequence[str]) -> bool:
        """Whether what varies among ``arrays`` is of the type in which ``array`` is computed, but for conditions."""
        varying = {types.compute_type(self.graph.dtype(a)) for a in arrays if a not in self.graph.constants}
        kinds = {t for t in varying if not types.is_bool(t)}
        return kinds == {types.compute_type(self.graph.dtype(array))}

    def _dtypes(
        self, values: Sequence[object], dtypes: object, reads: dict[str, Access], arrays: Sequence[str]
    ) -> list[Any]:
        if dtypes is not None:
            return list(dtypes) if isinstance(dtypes, (tuple, list)) else [dtypes] * len(values)
        env = {scalar.symbol(c, self.graph.dtype(a.array)): self.graph.dtype(a.array) for c, a in reads.items()}
        fallback = types.compute_type(self.graph.dtype(arrays[0])) if arrays else None
        return [
            scalar.dtype_of(sympy.sympify(v), env) if getattr(v, "free_symbols", None) else fallback for v in values
        ]

    def _results(self, out: Any, many: bool, shape: Shape, dtypes: Sequence[Any]) -> list[str]:
        if out is not None:
            return list(out) if many else [out]
        return [self.graph.add_array(self.label, shape, t) for t in dtypes]

    # ---------------------------------------------------------------- views

    def transpose(self, x: str, perm: Sequence[int], out: str | None = None) -> str:
        """Axis k of the result is axis ``perm[k]`` of ``x``: always a view."""
        shape, strides = self.graph.shape(x), self.graph.strides(x)
        view = self.graph.add_view(x, self.label, [shape[p] for p in perm], [strides[p] for p in perm])
        return self._deliver(view, out)

    def reshape(self, x: str, shape: Sequence[Dim], out: str | None = None) -> str:
        """Same elements in row-major order; a view when the strides of ``x`` allow, else of a contiguous copy."""
        new = tuple(dim(s) for s in shape)
        strides = reshaped_strides(self.graph.shape(x), self.graph.strides(x), new)
        if strides is None:
            x = self.copy(x)
            strides = row_major(new)
        return self._deliver(self.graph.add_view(x, self.label, new, strides), out)

    def expand(self, x: str, shape: Sequence[Dim], out: str | None = None) -> str:
        """Broadcast to ``shape`` by strides of zero: always a view."""
        own, strides = self.graph.shape(x), self.graph.strides(x)
        new = broadcast_shapes(own, tuple(dim(s) for s in shape))
        lead = len(new) - len(own)
        steps = [0] * lead + [0 if own[k] == 1 and new[lead + k] != 1 else strides[k] for k in range(len(own))]
        return self._deliver(self.graph.add_view(x, self.label, new, steps), out)

    def slice(
        self,
        x: str,
        starts: Sequence[Dim],
        ends: Sequence[Dim],
        steps: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        out: str | None = None,
    ) -> str:
        """Elements ``start, start + step, ...`` before (or, for negative steps, after) ``end``; bounds are already
        clamped and non-negative (``end`` -1 for a negative step down to 0)."""
        shape, strides = list(self.graph.shape(x)), list(self.graph.strides(x))
        axes = list(axes) if axes is not None else list(range(len(starts)))
        offset: Dim = 0
        for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts)):
            span = end - start if step > 0 else start - end
            count = -(-span // abs(step)) if isinstance(span, int) else sympy.ceiling(span / abs(step))
            shape[axis] = max(count, 0) if isinstance(count, int) else dim(count)
            offset = dim(offset + start * strides[axis])
            strides[axis] = dim(strides[axis] * step)
        return self._deliver(self.graph.add_view(x, self.label, shape, strides, offset), out)

    def unsqueeze(self, x: str, axes: Sequence[int], out: str | None = None) -> str:
        """Insert extents of 1 so that they are at ``axes`` of the result."""
        rank = len(self.graph.shape(x)) + len(axes)
        at = {a % rank for a in axes}
        rest = iter(zip(self.graph.shape(x), self.graph.strides(x)))
        pairs = [(1, 0) if k in at else next(rest) for k in range(rank)]
        shape = tuple(p[0] for p in pairs)
        strides = _tidy_unit_strides(shape, [p[1] for p in pairs])
        return self._deliver(self.graph.add_view(x, self.label, shape, strides), out)

    def squeeze(self, x: str, axes: Sequence[int] | None = None, out: str | None = None) -> str:
        """Drop extents of 1 at ``axes`` (default: all of them)."""
        shape, strides = self.graph.shape(x), self.graph.strides(x)
        unit_axes = {k for k, s in enumerate(shape) if s == 1} if axes is None else {a % len(shape) for a in axes}
        keep = [k for k in range(len(shape)) if k not in unit_axes]
        view = self.graph.add_view(x, self.label, [shape[k] for k in keep], [strides[k] for k in keep])
        return self._deliver(view, out)

    def _deliver(self, view: str, out: str | None) -> str:
        """Let ``view`` stand for ``out``: uses read the view; a graph output, or views that cannot follow, get a
        copy."""
        if out is None:
            return view
        if out in self.graph.outputs:
            return self.copy(view, out=out)
        try:
            self.graph.replace_uses(out, view)
        except ValueError:
            return self.copy(view, out=out)
        return view

    # ---------------------------------------------------------------- whole arrays

    def copy(self, x: str, out: str | None = None) -> str:
        """A contiguous copy (or into ``out``, of the same shape)."""
        with self.graph.label_nodes(origins=self.graph.origins.get(x, ())):
            return str(self.elementwise(lambda v: v, x, out=out, dtype=self.graph.dtype(x), label="copy"))

    def contiguous(self, x: str) -> str:
        """``x`` itself if it is row-major without gaps, else a copy that is."""
        return x if self.graph.is_contiguous(x) else self.copy(x)

    def cast(self, x: str, dtype: DType, out: str | None = None) -> str:
        """Convert element by element as C does (floats to integers truncate; anything nonzero is true)."""
        return self.elementwise(lambda v: scalar.cast(v, dtype), x, dtype=dtype, out=out, label="cast")

    def constant(self, value: np.ndarray) -> str:
        return self.graph.add_constant("constant", np.asarray(value))

    def full(self, shape: Sequence[Dim], value: float | sympy.Expr, dtype: DType, out: str | None = None) -> str:
        """An array of one repeated value: a view of one element unless ``out`` is given."""
        one = self.constant(np.asarray(value, dtype=types.to_numpy(dtype)))
        if out is not None:
            return self.elementwise(lambda v: v, one, dtype=dtype, out=out)
        return self.expand(one, shape)

    # ---------------------------------------------------------------- library nodes

    def matmul(self, a: str, b: str, alpha: float = 1.0, out: str | None = None) -> str:
        """``alpha * numpy.matmul(a, b)`` as one Contraction; vectors are promoted and squeezed as NumPy does."""
        g = self.graph
        rank_a, rank_b = len(g.shape(a)), len(g.shape(b))
        a2 = self.unsqueeze(a, [0]) if rank_a == 1 else a
        b2 = self.unsqueeze(b, [1]) if rank_b == 1 else b
        batch = broadcast_shapes(g.shape(a2)[:-2], g.shape(b2)[:-2])
        full = (*batch, g.shape(a2)[-2], g.shape(b2)[-1])
        direct = out is not None and rank_a > 1 and rank_b > 1
        y = out if direct else g.add_array(self.label, full, g.dtype(a))
        assert y is not None
        self.library(Contraction, {"A": a2, "B": b2}, {"Y": y}, alpha=alpha)
        if direct or (rank_a > 1 and rank_b > 1):
            return y
        unit_axes = [len(full) - 2] * (rank_a == 1) + [len(full) - 1] * (rank_b == 1)
        return self.squeeze(y, unit_axes, out=out)

    def grouped_product(self, a: str, b: str, ends: str, *, inner: bool = False) -> str:
        """What a :class:`~daceopt.ir.nodes.library.GroupedProduct` of these operands writes."""
        (rows, size), columns, graph = self.graph.shape(a), self.graph.shape(b)[-1], self.graph
        shape = (*graph.shape(ends), size, columns) if inner else (rows, columns)
        y = graph.add_array(self.label, shape, graph.dtype(a))
        self.library(GroupedProduct, {"A": a, "B": b, "Ends": ends}, {"Y": y}, inner=inner)
        return y

    def library(self, cls: type, inputs: Mapping[str, str], outputs: Mapping[str, str], **attributes: object) -> Node:
        """Add a library node of class ``cls`` over whole arrays; see :meth:`attach`."""
        node = cls(self.label, **attributes)
        self.attach(node, inputs, outputs)
        return node

    def attach(self, node: LibraryNode, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        """Add a library node; narrow operands are widened before it, narrow results rounded behind it, unless it takes
        narrow factors as they are."""
        dtypes = {c: self.graph.dtype(n) for c, n in {**inputs, **outputs}.items()}
        if not node.computes or multiplies(type(node), dtypes, self.graph):
            self.graph.add_node(node, dict(inputs), dict(outputs))
            return
        results = {c: self._add_unrounded(n) for c, n in outputs.items()}
        self.graph.add_node(node, {c: self._widen(n) for c, n in inputs.items()}, results)
        for connector, name in outputs.items():
            if results[connector] != name:
                self.cast(results[connector], self.graph.dtype(name), out=name)

    def _add_unrounded(self, name: str) -> str:
        """An array like ``name`` in the type in which it is computed; itself where that is its own."""
        graph, dtype = self.graph, self.graph.dtype(name)
        if not types.is_narrow(dtype):
            return name
        return graph.add_array("wide", graph.shape(name), types.compute_type(dtype), graph.strides(name))

    def _widen(self, name: str) -> str:
        """``name`` in the type in which it is computed; a view that is no smaller than its root stays a view of it."""
        graph, dtype = self.graph, self.graph.dtype(name)
        if not types.is_narrow(dtype):
            return name
        root, offset = self.whole(name)
        wide = self.cast(root, types.compute_type(dtype))
        return (
            wide if root == name else graph.add_view(wide, self.label, graph.shape(name), graph.strides(name), offset)
        )

    def whole(self, name: str) -> tuple[str, Dim]:
        """The contiguous array that the view ``name`` shows all of, and its offset there; else ``name`` itself."""
        graph = self.graph
        root, offset = graph.root(name)
        larger = dim(graph.size(name) - graph.size(root))
        if not graph.is_view(name) or not graph.is_contiguous(root) or not isinstance(larger, int) or larger < 0:
            return name, 0
        return root, offset


def reshaped_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides that view (shape, strides) as ``new`` in row-major order, or None when that needs a copy."""
    if any(s == 0 for s in (*shape, *new)):
        return row_major(new)
    runs: list[tuple[Dim, Dim]] = []  # neighbours that are contiguous: elements, and the stride of the innermost
    for extent, stride in zip(shape, strides):
        if runs and same(runs[-1][1], extent * stride):
            runs[-1] = dim(runs[-1][0] * extent), stride
        elif extent != 1:
            runs.append((extent, stride))
    result: list[Dim] = []
    size: Dim = 1  # elements of the last run that the dimensions so far go over
    for extent in reversed(new):
        if extent == 1 or not runs:
            result.append(0)
            size = dim(size * extent)
            continue
        total, inner = runs[-1]
        result.append(dim(size * inner))
        size = dim(size * extent)
        if same(total, size):
            runs.pop()
            size = 1
    return None if runs or size != 1 else _tidy_unit_strides(new, result[::-1])


def _tidy_unit_strides(shape: Shape, strides: Sequence[Dim]) -> Shape:
    """Give extents of 1 the stride that a contiguous array would have, so that contiguity is seen."""
    result = list(strides)
    for k in range(len(shape) - 1, -1, -1):
        if shape[k] == 1:
            result[k] = dim(result[k + 1] * shape[k + 1]) if k + 1 < len(shape) else 1
    return tuple(result)


def _index(index: object) -> tuple[Dim | None, ...]:
    entries = index if isinstance(index, tuple) else (index,)
    return tuple(None if e is None else dim(e) for e in entries)


def _as_tuple(value: object) -> tuple[tuple[Any, ...], bool]:
    return (tuple(value), True) if isinstance(value, tuple) else ((value,), False)


def _check_fit(what: str, shape: Shape, declared: Shape) -> None:
    """Raise ValueError where a result surely has another shape than the array that it is written to."""
    apart = any(isinstance(n, int) and isinstance(m, int) and n != m for n, m in zip(shape, declared))
    if apart or len(shape) != len(declared):
        raise ValueError(f"{what}: a result of shape {shape} does not go into an array of shape {declared}")
