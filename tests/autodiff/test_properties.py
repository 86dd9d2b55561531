"""Random element-wise graphs with broadcasting and reductions: both policies agree with PyTorch."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from tests.autodiff.checking import check

UNARY: list[tuple[Any, Any]] = [
    (sympy.tanh, torch.tanh),
    (sympy.sin, torch.sin),
    (scalar.sigmoid, torch.sigmoid),
    (lambda v: 0.5 * v, lambda v: 0.5 * v),
    (lambda v: scalar.maximum(v, 0), torch.relu),
]
BINARY: list[tuple[Any, Any]] = [
    (lambda u, v: u + v, lambda u, v: u + v),
    (lambda u, v: u * v, lambda u, v: u * v),
    (lambda u, v: u - sympy.tanh(v), lambda u, v: u - torch.tanh(v)),
]
SHAPES = [(2, 3), (3,), (2, 1), (1, 3), ()]
STEP = st.tuples(st.integers(0, 3), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))


class _Steps:
    """A list of steps, applied alike by a Builder and by torch."""

    def __init__(self, steps: list[tuple[int, int, int, int]]):
        self._steps = steps

    def build(self, b: Builder, *arrays: str) -> str:
        def unary(f: Any, x: str) -> Any:
            return b.elementwise(f[0], x)

        def binary(f: Any, x: str, y: str) -> Any:
            return b.elementwise(f[0], x, y)

        def reduce(x: str) -> str:
            return b.reduce("sum", None, x, axes=[len(b.graph.shape(x)) - 1], keepdims=True) if b.graph.shape(x) else x

        return str(self._run(list(arrays), unary, binary, reduce))

    def reference(self, *tensors: torch.Tensor) -> Any:
        return self._run(
            list(tensors),
            lambda f, x: f[1](x),
            lambda f, x, y: f[1](x, y),
            lambda x: x.sum(-1, keepdim=True) if x.dim() else x,
        )

    def _run(self, values: list[Any], unary: Any, binary: Any, reduce: Any) -> Any:
        for kind, function, left, right in self._steps:
            x, y = values[left % len(values)], values[right % len(values)]
            if kind == 0:
                values.append(unary(UNARY[function % len(UNARY)], x))
            elif kind == 3:
                values.append(reduce(x))
            else:
                values.append(binary(BINARY[function % len(BINARY)], x, y))
        return binary(BINARY[0], values[-1], unary(UNARY[0], values[0]))


@settings(max_examples=12)
@given(steps=st.lists(STEP, min_size=1, max_size=7), shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
def test_random_graph(steps: list[tuple[int, int, int, int]], shapes: list[tuple[int, ...]]) -> None:
    graph = _Steps(steps)
    check(graph.build, graph.reference, *shapes)
