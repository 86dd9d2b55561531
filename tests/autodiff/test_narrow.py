"""Gradients of arrays of narrow types: collected in float32, rounded once, by every kind of node, compiled or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import sympy
import torch
import torch.nn.functional as F

from daceopt import ops
from daceopt.autodiff import differentiate
from daceopt.ir.control.region_builder import ChoiceBuilder, LoopBuilder
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Convolution, Pool
from daceopt.ir.scalar import scalar, types
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import compiled

HALVES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Case:
    """``build(b, *names)`` and ``reference(*tensors)`` of inputs of ``shapes``; ``rounds``: values on the way that the
    forward keeps in the narrow type."""

    build: Callable[..., str]
    reference: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    rounds: int = 0


def _new(b: Builder, shape: Sequence[int], like: str) -> str:
    return b.graph.add_array("y", shape, b.graph.dtype(like))


def _reduce(kind: str) -> Callable[[Builder, str], str]:
    return lambda b, x: b.reduce(kind, None, x, axes=[1], dtype=b.graph.dtype(x))


def _point(fn: Callable[..., Any]) -> Callable[..., str]:
    return lambda b, *names: str(b.elementwise(fn, *names, dtype=b.graph.dtype(names[0])))


def _convolution(b: Builder, x: str, w: str, bias: str) -> str:
    y = _new(b, (2, 4, 5, 5), x)
    b.library(Convolution, {"X": x, "W": w, "B": bias}, {"Y": y}, pads=[1, 1, 1, 1])
    return y


def _pool(kind: str) -> Callable[[Builder, str], str]:
    def build(b: Builder, x: str) -> str:
        y = _new(b, (2, 3, 4, 4), x)
        b.library(Pool, {"X": x}, {"Y": y}, kind=kind, kernel=[3, 3], strides=[1, 1])
        return y

    return build


def _gather(b: Builder, w: str) -> str:
    index = b.constant(np.arange(300) % 3)
    y = _new(b, (300, 4), w)
    b.map(
        (300, 4),
        {"w": (w, lambda i, j: (None, None)), "k": (index, lambda i, j: (i,))},
        {"out": (y, lambda i, j: (i, j))},
        lambda p, w, k: scalar.load(w, k, p[1]),
    )
    return y


def _windows(b: Builder, x: str) -> str:
    """Overlapping affine reads: each element is read three times."""
    y = _new(b, (30, 3), x)
    b.map((30, 3), {"v": (x, lambda i, j: (i + j,))}, {"out": (y, lambda i, j: (i, j))}, lambda p, v: v * (p[1] + 1))
    return y


def _operator(op_type: str, *constants: Any, **attributes: Any) -> Callable[[Builder, str], str]:
    def build(b: Builder, x: str) -> str:
        wide = b.cast(x, types.from_name("float32"))
        y = b.graph.add_array("wide", b.graph.shape(x), types.from_name("float32"))
        names = [wide, *(b.constant(np.asarray(c)) for c in constants)]
        b.graph.add_operator(op_type, names, [y], attributes)
        return str(b.cast(y, b.graph.dtype(x)))

    return build


def _many_readers(b: Builder, x: str) -> str:
    total = x
    for k in range(40):
        total = b.elementwise(lambda t, v, k=k: t + v * (1 + k % 3), total, x, dtype=types.from_name("float32"))
    return str(b.cast(total, b.graph.dtype(x)))


def _loop(b: Builder, x: str, w: str) -> str:
    loop = LoopBuilder(b.graph, "sum")
    start = b.full((4,), 0, b.graph.dtype(x))
    state, row = loop.carry(start), loop.slice_of(x, 0, loop.counter)
    own = loop.b.elementwise(lambda s, v, u: s * 0.5 + v * u, state, row, loop.capture(w), dtype=b.graph.dtype(x))
    last = _new(b, (4,), x)
    loop.finish([own], [last], trips=20)
    return last


def _torch_loop(x: Any, w: Any) -> Any:
    state = torch.zeros(4, dtype=x.dtype)
    for row in x:
        state = state * 0.5 + row * w
    return state


def _choice(b: Builder, x: str, w: str) -> str:
    choice = ChoiceBuilder(b.graph, "choice", b.constant(np.asarray(True)))
    for k, branch in enumerate(choice.bodies):
        own, other = branch.capture(x), branch.capture(w)
        fn = (lambda v, u: v * u) if k == 0 else (lambda v, u: v + u)
        branch.declare_outputs([branch.b.elementwise(fn, own, other, dtype=b.graph.dtype(x))])
    y = _new(b, (5, 4), x)
    choice.finish([y])
    return y


CASES = {
    "product of elements": Case(_point(lambda x, y: x * y * x), lambda x, y: x * y * x, ((40, 3), (40, 3))),
    "broadcast": Case(_point(lambda x, y: sympy.exp(x * y)), lambda x, y: torch.exp(x * y), ((700, 3), (3,))),
    "many readers": Case(_many_readers, lambda x: x + x * sum(1 + k % 3 for k in range(40)), ((64,),)),
    "sum": Case(_reduce("sum"), lambda x: x.sum(1), ((3, 500),)),
    "prod": Case(_reduce("prod"), lambda x: x.prod(1), ((3, 6),), 1),
    "max": Case(_reduce("max"), lambda x: x.amax(1), ((3, 500),)),
    "min": Case(_reduce("min"), lambda x: x.amin(1), ((3, 500),)),
    "max of computed values": Case(
        lambda b, x: b.reduce("max", lambda v: v * 1.37, x, axes=[1], dtype=b.graph.dtype(x)),
        lambda x: (x * 1.37).amax(1),
        ((3, 50),),
    ),
    "expand": Case(lambda b, x: b.copy(b.expand(x, (600, 4))), lambda x: x.expand(600, 4), ((1, 4),)),
    "slices": Case(lambda b, x: b.copy(b.slice(x, [1], [9], [2], [0])), lambda x: x[1:9:2], ((10, 3),)),
    "windows": Case(_windows, lambda x: x.unfold(0, 3, 1) * torch.arange(1, 4, dtype=x.dtype), ((32,),)),
    "matmul": Case(lambda b, x, w: b.matmul(x, w), lambda x, w: x @ w, ((64, 70), (70, 5))),
    "matmul of transposed": Case(
        lambda b, x, w: b.matmul(x, b.transpose(w, [1, 0])), lambda x, w: x @ w.T, ((3, 64, 7), (5, 7))
    ),
    "matmul of batches": Case(lambda b, x, w: b.matmul(x, w), lambda x, w: x @ w, ((300, 4, 7), (7, 5))),
    "convolution": Case(_convolution, lambda x, w, c: F.conv2d(x, w, c, padding=1), ((2, 3, 5, 5), (4, 3, 3, 3), (4,))),
    "max pool": Case(_pool("max"), lambda x: F.max_pool2d(x, 3, 1), ((2, 3, 6, 6),)),
    "average pool": Case(_pool("average"), lambda x: F.avg_pool2d(x, 3, 1), ((2, 3, 6, 6),)),
    "gather": Case(_gather, lambda w: w[torch.arange(300) % 3], ((3, 4),)),
    "cumulative sum": Case(_operator("CumSum", 0), lambda x: x.cumsum(0), ((300, 2),)),
    "softmax": Case(_operator("Softmax", axis=1), lambda x: x.softmax(1), ((3, 200),)),
    "loop": Case(_loop, _torch_loop, ((20, 4), (4,)), 20),
    "choice": Case(_choice, lambda x, w: x * w, ((5, 4), (4,))),
}


def _derivative(case: Case, dtype: Any) -> tuple[Any, list[str]]:
    graph = Graph("narrow")
    names = [graph.add_input("x", s, dtype) for s in case.shapes]
    y = case.build(Builder(graph, "forward"), *names)
    assert graph.dtype(y) == dtype
    graph.add_output(y)
    derivative = differentiate(graph, [y], names)
    for part in (derivative.forward, derivative.backward):
        ops.lower_all(part)
        part.validate()
    return derivative, names


def _values(shape: tuple[int, ...], rng: np.random.Generator, kind: Any) -> np.ndarray:
    return (rng.standard_normal(shape) * 0.5 + 0.7).astype(kind)


def _torch_gradients(case: Case, values: Sequence[np.ndarray], seed: np.ndarray, dtype: Any) -> list[Any]:
    leaves = [torch.tensor(v.astype(np.float64)).to(dtype).requires_grad_() for v in values]
    y = case.reference(*leaves)
    return [g.double() for g in torch.autograd.grad(y, leaves, torch.tensor(seed.astype(np.float64)).to(y.dtype))]


@pytest.mark.share(4)
@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients(case: Case, name: str) -> None:
    dtype = types.from_name(name)
    derivative, names = _derivative(case, dtype)
    rng = np.random.default_rng(3)
    kind = types.to_numpy(dtype)
    values = [_values(s, rng, kind) for s in case.shapes]
    feeds = dict(zip(names, values, strict=True))
    done = interpret(derivative.forward, feeds) | feeds
    ((output, incoming),) = derivative.grad_outputs.items()
    seed = _values(done[output].shape, rng, kind)
    backward = derivative.backward
    given = {n: seed if n == incoming else done[n] for n in backward.inputs}
    interpreted = interpret(backward, given)
    backward.saved = []  # here they are plain inputs
    (built,) = compiled(f"narrow gradient {case!r} {name}", [backward], given=[given])
    exact = _torch_gradients(case, values, seed, torch.float64)
    theirs = _torch_gradients(case, values, seed, types.to_torch(dtype))
    for wanted, reference, peer in zip(names, exact, theirs, strict=True):
        gradient = derivative.grad_inputs[wanted]
        assert gradient is not None and backward.dtype(gradient) == dtype
        for found in (interpreted[gradient], built[backward.outputs.index(gradient)]):
            assert found.dtype == kind
            _compare(found, reference, peer, case.rounds)


def _compare(found: np.ndarray, reference: Any, peer: Any, rounds: int) -> None:
    """Rounded once: half a unit in the last place of the largest, and what the forward lost on the way."""
    ulps = 0.5 * (1.01 + rounds)
    assert_within_rounding(found, reference, peer, factor=0.0, ulps=ulps)


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn"])
def test_gradients_of_eight_bits(name: str) -> None:
    """A sum of 200 products: 8 bits would stand still after a few of them."""
    dtype = types.from_name(name)
    case = Case(_point(lambda x, w: x * w), lambda x, w: x * w, ((200, 2), (2,)))
    derivative, names = _derivative(case, dtype)
    backward, kind = derivative.backward, types.to_numpy(dtype)
    given = {n: np.ones(backward.shape(n), kind) for n in backward.inputs}
    (built,) = compiled(f"eight bits {name}", [backward], given=[given])
    gradient = derivative.grad_inputs[names[1]]
    assert gradient is not None
    found = built[backward.outputs.index(gradient)]
    assert found.dtype == kind
    wanted = np.full(2, 200).astype(kind)
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))
