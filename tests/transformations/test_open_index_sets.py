"""Index sets that are split where sizes are open: random places and conditions, beside the code as it was, for sizes
of which some leave pieces empty and others change the order of cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from daceopt import optimized_module
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import scalar
from daceopt.transformations.hardware.index_set_splitting import IndexSetSplitting
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import finish, start

N, M = (dace.symbolic.symbol(name, dace.int64) for name in "nm")
SIZES = [(0, 0), (1, 3), (2, 0), (5, 3), (0, 9), (3, 3), (20, 2), (2, 30)]
Code = Callable[..., Any]


def over(extent: Any, code: Code, assumed: list[Any]) -> Graph:
    """``y[i] = code(i[0], x0, x1)`` over ``extent``, of arrays of n and of m elements."""
    graph, b, names = start((N,), (M,), dtype=dace.float64)
    graph.assumptions += assumed
    out = graph.add_array("y", (extent,), dace.float64)
    reads = {f"x{k}": (name, lambda *i: (None,)) for k, name in enumerate(names)}
    b.map((extent,), reads, {"out": (out, lambda *i: i)}, lambda i, x0, x1: code(i[0], x0, x1))
    return finish(graph, out)


def outputs(graph: Graph, n: int, m: int) -> np.ndarray:
    one, other = graph.inputs
    given = {one: np.arange(1.0, n + 1), other: -np.arange(1.0, m + 1)}
    return interpret(graph, given, dtype=None)[graph.outputs[0]]


def check(extent: Any, code: Code, assumed: list[Any] | None = None) -> Graph:
    """Split; the same numbers for all sizes that there can be, and none less than 0 times. Returns the graph."""
    before, after = (over(extent, code, assumed or []) for _ in range(2))
    IndexSetSplitting(most=24).run(after)
    after.validate()
    for n, m in SIZES:
        sizes = {N: n, M: m}
        if extent.subs(sizes) < 0 or any(a.subs(sizes) < 0 for a in assumed or []):
            continue
        np.testing.assert_array_equal(outputs(after, n, m), outputs(before, n, m), err_msg=f"n={n}, m={m}")
        (kernel,) = (k.kernel for k in after.kernels())
        assert all(dace.symbolic.evaluate(e, sizes) >= 0 for e in kernel.extents.values())
    return after


def statements(graph: Graph) -> list[Any]:
    return graph.kernels()[0].kernel.stages


def looked_up(graph: Graph) -> int:
    """Statements that read at run-time indices."""
    return sum(any(None in a.index for a in s.reads.values()) for s in statements(graph))


# ---------------------------------------------------------------- what is to become plain


def first(i: Any, a: Any, place: Any) -> Any:
    return scalar.load(a, scalar.clamp(place, N))


PLAIN: dict[str, tuple[Any, Code, list[Any], int]] = {
    "concatenation": (
        N + M,
        lambda i, a, c: scalar.select(scalar.lt(i, N), first(i, a, i), scalar.load(c, scalar.clamp(i - N, M))),
        [],
        2,
    ),
    "padding": (
        N + 3,
        lambda i, a, c: scalar.select(
            scalar.logical_and(scalar.ge(i - 1, 0), scalar.lt(i - 1, N)), first(i, a, i - 1), 7
        ),
        [],
        3,
    ),
    "insertion": (
        N,
        lambda i, a, c: scalar.select(
            scalar.logical_and(scalar.ge(i - 2, 0), scalar.lt(i - 2, M)),
            scalar.load(c, scalar.clamp(i - 2, M)),
            first(i, a, i),
        ),
        [],
        3,
    ),
    "roll": (N, lambda i, a, c: scalar.load(a, scalar.pymod(i - 2, N)), [N - 2], 2),
    "mirror": (
        N + 4,
        lambda i, a, c: scalar.load(a, scalar.minimum(scalar.absolute(i - 2), 2 * (N - 1) - scalar.absolute(i - 2))),
        [N - 3],
        3,
    ),
    "half": (
        N,
        lambda i, a, c: scalar.select(scalar.lt(2 * i, N), first(i, a, i), -first(i, a, i)),
        [],
        2,
    ),
    "one place": (N, lambda i, a, c: scalar.select(scalar.eq(i, M), 5, first(i, a, i)), [], 3),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain(name: str) -> None:
    extent, code, assumed, count = PLAIN[name]
    graph = check(extent, code, assumed)
    assert (len(statements(graph)), looked_up(graph)) == (count, 0)


def test_what_only_some_sizes_have_is_looked_up() -> None:
    """Nothing says that the shift is shorter than the axis: there is a piece for where it wraps twice."""
    graph = check(N, lambda i, a, c: scalar.load(a, scalar.pymod(i - 2, N)))
    assert (len(statements(graph)), looked_up(graph)) == (3, 1)


# ---------------------------------------------------------------- whatever there is


@st.composite
def _places(draw: Any, depth: int = 2) -> Code:
    """A function of the loop: an integer."""
    kinds = ["affine", "affine", "minimum", "maximum", "absolute", "pymod", "idiv", "select"]
    kind = draw(st.sampled_from(kinds)) if depth else "affine"
    if kind == "affine":
        factor, size = draw(st.sampled_from([1, 1, -1, 2, -3])), draw(st.sampled_from([0, N, M, -N, N - M, 2 * M]))
        constant = draw(st.integers(-4, 4))
        return lambda i: factor * i + size + constant
    inner = draw(_places(depth - 1))
    if kind == "absolute":
        return lambda i: scalar.absolute(inner(i))
    if kind in ("pymod", "idiv"):
        divisor = draw(st.sampled_from([N, M, 3, 5, 2 * N + 1]))
        return lambda i: getattr(scalar, kind)(inner(i), divisor)
    other = draw(_places(depth - 1))
    if kind == "select":
        condition = draw(_conditions(depth - 1))
        return lambda i: scalar.select(condition(i), inner(i), other(i))
    return lambda i: getattr(scalar, kind)(inner(i), other(i))


@st.composite
def _conditions(draw: Any, depth: int = 1) -> Code:
    """A function of the loop: true or false."""
    if depth and draw(st.booleans()):
        kind = draw(st.sampled_from(["logical_and", "logical_or", "logical_xor"]))
        one, other = draw(_conditions(depth - 1)), draw(_conditions(depth - 1))
        return lambda i: getattr(scalar, kind)(one(i), other(i))
    kind = draw(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]))
    left, right = draw(_places(depth)), draw(_places(0))
    return lambda i: getattr(scalar, kind)(left(i), right(i))


@st.composite
def _values(draw: Any, depth: int = 3) -> Code:
    """A function of the loop and the arrays: a number."""
    if depth and draw(st.booleans()):
        condition, yes, no = draw(_conditions()), draw(_values(depth - 1)), draw(_values(depth - 1))
        return lambda i, a, c: scalar.select(condition(i), yes(i, a, c), no(i, a, c))
    place, which = draw(_places()), draw(st.integers(0, 2))
    if which == 2:
        return lambda i, a, c: scalar.cast(place(i), dace.float64)
    extent = (N, M)[which]
    return lambda i, a, c: scalar.load((a, c)[which], scalar.clamp(place(i), extent))


_ASSUMED = st.sampled_from([[], [N - 2], [N - 1, M - 3], [N - M]])
_EXTENTS = st.sampled_from([N, M, N + M, N + 3, 2 * N])


@settings(max_examples=2)
@given(_EXTENTS, _values(), _ASSUMED)
def test_any_code(extent: Any, code: Code, assumed: list[Any]) -> None:
    check(extent, code, assumed)


@pytest.mark.slow
@pytest.mark.fuzz
@settings(max_examples=100)
@given(_EXTENTS, _values(), _ASSUMED)
def test_much_code(extent: Any, code: Code, assumed: list[Any]) -> None:
    check(extent, code, assumed)


# ---------------------------------------------------------------- built, for one size after the other


def columns(x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Joined, moved, mirrored, and in two halves."""
    x = F.pad(torch.roll(torch.cat([x, part * 2], 1), 3, 1).tanh(), (2, 1), mode="reflect")
    return torch.where(torch.arange(x.shape[1]) * 2 < x.shape[1], x, -x)


def rows(x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """They come from several arrays, move by more than there may be, and fall out."""
    x = torch.roll(torch.cat([x[:, :2], part[:, :2], x[:, :2]], 0), (5, 1), (0, 1))
    return F.pad(x.sin(), (1, 0, -1, 2)) + 1


class _Called(nn.Module):
    def __init__(self, function: Code) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, part: torch.Tensor) -> Any:
        return self.function(x, part)


@pytest.mark.parametrize("function", [columns, rows])
def test_built_for_all_sizes(function: Code) -> None:
    """One program, forward and backward, beside float64."""
    net = optimized_module(_Called(function), fallback="raise", dynamic=True)
    for length, width, more in [(7, 9, 4), (2, 3, 2), (3, 30, 2)]:
        x, part = torch.randn(length, width), torch.randn(length, more)
        found = []
        for module, dtype in (
            (net, torch.float32),
            (_Called(function), torch.float64),
            (_Called(function), torch.float32),
        ):
            given_ = [v.to(dtype).detach().requires_grad_() for v in (x, part)]
            y = module(*given_)
            (y * torch.linspace(-1, 1, y.numel(), dtype=dtype).view_as(y)).sum().backward()
            found.append([y.detach().numpy(), *(v.grad.numpy() for v in given_)])
        for ours, exact, eager in zip(*found, strict=True):
            assert_within_rounding(ours, exact, eager)


def test_narrow_positions_wrap() -> None:
    """A variable of 8 bits is not the number that is assigned to it."""

    def narrow(x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(x.shape[1]).to(torch.uint8) < 50, x, -x)

    x = torch.randn(2, 300)
    net = optimized_module(_Called(narrow), fallback="raise")
    np.testing.assert_array_equal(net(x, x).numpy(), narrow(x, x).numpy())
