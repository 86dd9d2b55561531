"""The memory of one execution of a graph: NumPy buffers, and windows on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dace
import numpy as np
import sympy

from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.disturbance import Disturbance
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import DType


class Memory:
    """The buffers of one execution; views are windows into their root's buffer."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, np.ndarray],
        reference: bool,
        sizes: Mapping[str, int] | None = None,
        disturbance: Disturbance | None = None,
    ):
        self.graph = graph
        self.reference = reference
        self.disturbance = disturbance
        self.sizes: dict[str, int] = dict(sizes or {})
        self._buffers: dict[str, np.ndarray] = {}
        arrays = {n: np.asarray(inputs[n]) for n in graph.inputs if n in inputs}
        if missing := [n for n in graph.inputs if n not in arrays]:
            raise ValueError(f"missing inputs {missing}; given are {sorted(inputs)}")
        for symbol, (name, axis) in graph.symbols.items():
            self.sizes[symbol] = np.shape(inputs[name])[axis] if name in inputs else _size_of(graph, arrays, symbol)
        for name, value in (arrays | graph.constants).items():
            self._fill(name, value)
        if graph.uses_seed:
            self.array(SEED)[...] = inputs.get(SEED, 0)

    def _fill(self, name: str, value: np.ndarray) -> None:
        target = self.array(name)
        if target.shape != value.shape:
            raise ValueError(f"array {name}: expected shape {target.shape}, found {value.shape}")
        target[...] = value

    def number(self, extent: Dim) -> int:
        """A symbolic extent under this execution's sizes."""
        if isinstance(extent, int):
            return extent
        return int(extent.xreplace({s: sympy.Integer(self.sizes[s.name]) for s in extent.free_symbols}))

    def numpy_dtype(self, dtype: DType) -> np.dtype[Any]:
        return types.to_numpy(dace.float64 if self.reference and types.is_float(dtype) else dtype)

    def compute(self, assignments: Sequence[Assignment], values: dict[str, np.ndarray]) -> None:
        """Scalar code over arrays of operands, by name; ``values`` takes the results as well."""
        for name, size in self.sizes.items():
            values.setdefault(name, np.asarray(size))
        reference = dace.float64 if self.reference else None
        for a in assignments:
            bound = {s: values[s.name] for s in a.expr.free_symbols}
            result = scalar.evaluate(a.expr, bound, reference, a.dtype)
            with np.errstate(all="ignore"):
                value = np.asarray(result).astype(self.numpy_dtype(a.dtype))
            values[a.symbol.name] = value if self.disturbance is None else self.disturbance.scalar(a.expr, value)

    def buffer(self, root: str) -> np.ndarray:
        if root not in self._buffers:
            shape = [self.number(e) for e in self.graph.shape(root)]
            strides = [self.number(e) for e in self.graph.strides(root)]
            span = 1 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides))
            self._buffers[root] = poison((span,), self.numpy_dtype(self.graph.dtype(root)))
        return self._buffers[root]

    def array(self, name: str) -> np.ndarray:
        """A writable window on ``name``."""
        root, offset = self.graph.root(name)
        shape = [self.number(e) for e in self.graph.shape(name)]
        strides = [self.number(e) for e in self.graph.strides(name)]
        return window(self.buffer(root), shape, strides, self.number(offset), name)

    def store(self, name: str, value: np.ndarray | np.generic) -> None:
        """Write a whole array."""
        self.array(name)[...] = value

    def store_sums(self, name: str, value: np.ndarray) -> None:
        """Write a whole array of sums of products, rounded once."""
        with np.errstate(all="ignore"):  # what float16 cannot hold is infinite
            value = value.astype(self.array(name).dtype)
        self.store(name, value if self.disturbance is None else self.disturbance.sums(value))


def poison(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory in which what nothing writes is seen where it is read: NaN, numbers far from zero."""
    if dtype.kind in "fV":
        return np.full(shape, np.nan).astype(dtype)
    return np.full(shape, 1 if dtype.kind == "b" else np.iinfo(dtype).max if dtype.kind in "iu" else 0, dtype)


def _size_of(graph: Graph, arrays: Mapping[str, np.ndarray], symbol: str) -> int:
    """A size that is declared by an array which is not given, read from one that is."""
    for name, value in arrays.items():
        for extent, size in zip(graph.shape(name), value.shape):
            if str(extent) == symbol:
                return size
    raise ValueError(f"size {symbol}: no input has this extent; it is axis {graph.symbols[symbol]}")


def window(buffer: np.ndarray, shape: Sequence[int], strides: Sequence[int], offset: int, what: str) -> np.ndarray:
    """Elements ``offset + sum(strides * i)`` of a flat buffer. Raises ValueError where that leaves the buffer."""
    if 0 in shape:
        return np.empty(shape, buffer.dtype)
    steps = [(n - 1) * s for n, s in zip(shape, strides)]
    first, last = offset + sum(min(s, 0) for s in steps), offset + sum(max(s, 0) for s in steps)
    if first < 0 or last >= buffer.size:
        layout = f"shape {list(shape)}, strides {list(strides)}"
        raise ValueError(f"{what}: elements {first} to {last} of a buffer of {buffer.size} ({layout})")
    return as_strided(buffer[offset:], shape, strides)


def as_strided(flat: np.ndarray, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """A view of ``flat`` with these strides (elements); of any type, while NumPy's own refuses some of ml_dtypes."""
    plain = flat.view(f"u{flat.itemsize}")
    steps = [s * flat.itemsize for s in strides]
    return np.lib.stride_tricks.as_strided(plain, shape, steps).view(flat.dtype)
