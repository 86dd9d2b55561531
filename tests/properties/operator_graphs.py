"""Random graphs of operators as exporters write them: what coarse rewrites look for, near misses of it, and neither."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import dace
import numpy as np

from daceopt.ir.graph.graph import Graph

F, FAR = dace.float32, 2**63 - 1
_UNARY = ("Neg", "Abs", "Relu", "Tanh", "Sigmoid", "Softplus", "Floor", "Identity")
_BINARY = ("Add", "Sub", "Mul", "Max", "Min")
_NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 0.25, 3.0, 2.0)
_TYPES = {"float64": 11, "int32": 6, "float32": 1}
_EINSUMS = ("bij,kj->bik", "bij,jk->bki", "bij,bkj->bik", "bij->bji", "bij->bj")
LIMIT = 2000  # elements of one array


class OperatorMaker:
    """Grows one graph, operator by operator, from a seed."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.graph = Graph(f"operators_{seed}")
        self.graph.source.opset[""] = 24
        self.pool = [self.graph.add_input("x", shape, F) for shape in ((2, 3, 4), (2, 4, 4, 6))]
        self.steps = [name for name in vars(OperatorMaker) if not name.startswith("_") and name != "build"]

    def build(self) -> Graph:
        """Some steps; all that nothing reads is an output."""
        for _ in range(int(self.rng.integers(4, 12))):
            made = getattr(self, self._choose(self.steps))(self._pick())
            self.pool += [] if made is None or prod(self._shape(made)) > LIMIT else [made]
        unread = [n for n in self.pool if not self.graph.all_consumers(n) and n not in self.graph.inputs]
        for name in unread or [self._op("Tanh", self.pool[0])]:
            self.graph.add_output(name)
        self.graph.prune()
        return self.graph

    # ---------------------------------------------------------------- steps: array in, array (or None) out

    def unary(self, x: str) -> str:
        return self._op(self._choose(_UNARY), x)

    def twice(self, x: str) -> str:
        kind = self._choose(_UNARY)
        return self._op(kind, self._op(kind, x))

    def by_number(self, x: str) -> str:
        kind = self._choose(("Add", "Sub", "Mul", "Div"))
        number = self._choose([n for n in _NUMBERS if n or kind != "Div"])
        return self._op(kind, x, self._constant(number))

    def power(self, x: str) -> str:
        return self._op("Pow", x, self._constant(self._choose((1.0, 2.0, 3.0))))

    def binary(self, x: str) -> str:
        other = self._choose([n for n in self.pool if self._shape(n) == self._shape(x)])
        return self._op(self._choose(_BINARY), x, self._op("Neg", other) if self._flip() else other)

    def chosen(self, x: str) -> str:
        other = self._choose([n for n in self.pool if self._shape(n) == self._shape(x)])
        less = self._op("Less", x, self._constant(0.25), dtype=dace.bool_)
        for _ in range(int(self.rng.integers(0, 3))):
            less = self._op("Not", less, dtype=dace.bool_)
        return self._op("Where", less, x, other, dtype=F)

    def converted(self, x: str) -> str:
        wide = self._choose(tuple(_TYPES))
        y = self._op("Cast", x, dtype=getattr(dace, wide), to=_TYPES[wide])
        return self._op("Cast", y, dtype=F, to=1)

    def gated(self, x: str) -> str:
        gate = self._choose((("Sigmoid",), ("Softplus", "Tanh"), ("Tanh",)))
        y = x
        for kind in gate:
            y = self._op(kind, y)
        return self._op("Mul", *((x, y) if self._flip() else (y, x)))

    def transposed(self, x: str) -> str:
        perm = [int(k) for k in self.rng.permutation(len(self._shape(x)))]
        return self._op("Transpose", x, shape=[self._shape(x)[p] for p in perm], perm=perm)

    def reshaped(self, x: str) -> str:
        size, shape = prod(self._shape(x)), []
        for _ in range(int(self.rng.integers(0, 4))):
            shape.append(self._choose([n for n in range(1, size + 1) if size % n == 0]))
            size //= shape[-1]
        return self._op("Reshape", x, self._integers(*shape, size), shape=[*shape, size])

    def rotated(self, x: str) -> str | None:
        """Halves of the last axis exchanged, one of them negated, and angles."""
        shape = self._shape(x)
        if not shape or shape[-1] % 2:
            return None
        cut = shape[-1] // 2 if self.rng.random() < 0.8 else 1
        ends = [self._sliced(x, cut, FAR), self._sliced(x, 0, cut)]
        both = self.rng.random() < 0.2 and 2 * cut == shape[-1]  # the same half twice, which is no rotation
        ends[int(both)] = self._op("Neg", ends[0])
        turned = self._op("Concat", *ends, shape=shape, axis=len(shape) - 1)
        cos, sin = (self._values(shape[-1:] if self._flip() else shape) for _ in range(2))
        return self._op("Add", self._op("Mul", x, cos), self._op("Mul", turned, sin))

    def stacked(self, x: str) -> str | None:
        """A sum over arrays that are stacked for it, or over one of their own axes."""
        shape, others = self._shape(x), [n for n in self.pool if self._shape(n) == self._shape(x)]
        axis = int(self.rng.integers(0, len(shape) + 1))
        single, wide = ([*shape[:axis], count, *shape[axis:]] for count in (1, 3))
        terms = [x, self._choose(others), self._op("Neg", self._choose(others))]
        parts = [self._op("Unsqueeze", n, self._integers(axis), shape=single) for n in terms]
        stack = self._op("Concat", *parts, shape=wide, axis=axis)
        summed = axis if self.rng.random() < 0.8 else 0
        result = [n for a, n in enumerate(wide) if a != summed]
        return self._op("ReduceSum", stack, self._integers(summed), shape=result, keepdims=0)

    def projected(self, x: str) -> str | None:
        """Products with several weights, some of them turned, some with a bias."""
        shape = self._shape(x)
        if len(shape) < 2:
            return None
        turned, biased = self._flip(), self._flip()
        for columns in (3, 4)[: 1 + self._flip()]:
            w = self._values((columns, shape[-1]) if turned else (shape[-1], columns))
            w = self._op("Transpose", w, shape=(shape[-1], columns), perm=[1, 0]) if turned else w
            y = self._op("MatMul", x, w, shape=(*shape[:-1], columns))
            self.pool.append(self._op("Add", y, self._values((columns,))) if biased else y)
        return None

    def contracted(self, x: str) -> str | None:
        """An Einsum, perhaps of a transposition."""
        shape = self._shape(x)
        if len(shape) != 3:
            return None
        equation = self._choose(_EINSUMS)
        terms, result = equation.split("->")
        sizes = dict(zip("bij", shape, strict=True)) | {"k": 3}
        operands = [x, *(self._values([sizes[c] for c in t]) for t in terms.split(",")[1:])]
        return self._op("Einsum", *operands, shape=[sizes[c] for c in result], equation=equation)

    def attention(self, x: str) -> str | None:
        """Products around a softmax, heads perhaps shared."""
        shape = self._shape(x)
        if len(shape) != 4:
            return None
        batch, heads, rows, size = shape
        groups = self._choose([g for g in (1, 2) if heads % g == 0])
        k, v = (self._repeated(self._values((batch, heads // groups, 5, size)), groups) for _ in range(2))
        kt = self._op("Transpose", k, shape=(batch, heads, size, 5), perm=[0, 1, 3, 2])
        scores = self._op("MatMul", x, kt, shape=(batch, heads, rows, 5))
        scores = self._op("Mul", scores, self._constant(0.5)) if self._flip() else scores
        scores = self._op("Add", scores, self._values((rows, 5))) if self._flip() else scores
        weights = self._op("Softmax", scores, axis=-1)
        return self._op("MatMul", weights, v, shape=shape)

    def pooled(self, x: str) -> str | None:
        shape = self._shape(x)
        if len(shape) != 4:
            return None
        kernel = self._choose((shape[2:], (1, 1), (2, 2)))
        if any(k > n for k, n in zip(kernel, shape[2:], strict=True)):
            return None
        out = [n - k + 1 for n, k in zip(shape[2:], kernel, strict=True)]
        return self._op("AveragePool", x, shape=(*shape[:2], *out), kernel_shape=list(kernel))

    # ---------------------------------------------------------------- choices

    def _repeated(self, x: str, times: int) -> str:
        batch, heads, rows, size = self._shape(x)
        if times == 1:
            return x
        column = self._op("Unsqueeze", x, self._integers(2), shape=(batch, heads, 1, rows, size))
        wide = (batch, heads, times, rows, size)
        copies = self._op("Expand", column, self._integers(*wide), shape=wide)
        whole = (batch, heads * times, rows, size)
        return self._op("Reshape", copies, self._integers(*whole), shape=whole)

    def _sliced(self, x: str, start: int, end: int) -> str:
        shape = self._shape(x)
        bounds = (self._integers(v) for v in (start, end, len(shape) - 1))
        return self._op("Slice", x, *bounds, shape=(*shape[:-1], len(range(shape[-1])[start:end])))

    def _op(self, op_type: str, *inputs: str, shape: Any = None, dtype: Any = None, **attributes: Any) -> str:
        shape = np.broadcast_shapes(*map(self._shape, inputs)) if shape is None else shape
        out = self.graph.add_array(op_type.lower(), tuple(shape), dtype or self.graph.dtype(inputs[0]))
        self.graph.add_operator(op_type, list(inputs), [out], attributes)
        return out

    def _constant(self, value: float) -> str:
        return self.graph.add_constant("c", np.asarray(value, np.float32))

    def _integers(self, *value: int) -> str:
        return self.graph.add_constant("c", np.asarray(value, np.int64))

    def _values(self, shape: Sequence[int]) -> str:
        """A constant, or another input."""
        if self._flip():
            return self.graph.add_input("w", tuple(shape), F)
        return self.graph.add_constant("w", self.rng.standard_normal(shape).astype(np.float32))

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(n) for n in self.graph.shape(name))

    def _pick(self) -> str:
        """Recent arrays more often than old ones."""
        back = min(int(self.rng.exponential(1.2)), len(self.pool) - 1)
        return self.pool[-1 - back]

    def _choose(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def _flip(self) -> bool:
        return bool(self.rng.random() < 0.5)
