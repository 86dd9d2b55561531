"""Pieces of iteration spaces: what is cut where, what stays, and that the numbers do."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from daceopt import optimized_module
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import scalar
from daceopt.ir.schedule.schedule import schedule_of
from daceopt.ir.schedule.schedule_text import text
from daceopt.ir.text.render import render
from daceopt.transformations.hardware.index_set_splitting import IndexSetSplitting
from daceopt.transformations.hardware.threading import Threading
from daceopt.transformations.hardware.vectorization import Vectorization
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import apply, compiled, finish, misses, size_symbol, start, values

Code = Callable[..., Any]


def looked_up(code: Code, shape: tuple[Any, ...], *sources: tuple[Any, ...]) -> Graph:
    """``y[i] = code(i, x0, x1, ...)`` over ``shape``, of arrays that the code loads."""
    graph, b, names = start(*sources)
    out = graph.add_array("y", shape, graph.dtype(names[0]))
    whole = {f"x{k}": (n, lambda *i, s=s: tuple(None for _ in s)) for k, (n, s) in enumerate(zip(names, sources))}
    b.map(shape, whole, {"out": (out, lambda *i: i)}, lambda i, *x, **named: code(i, *x, *named.values()))
    return finish(graph, out)


def joined(rows: Any = 5) -> Graph:
    def code(i: Any, a: Any, b: Any) -> Any:
        left = scalar.load(a, i[0], scalar.clamp(i[1], 3))
        return scalar.select(scalar.lt(i[1], 3), left, scalar.load(b, i[0], scalar.clamp(i[1] - 3, 9)))

    return looked_up(code, (rows, 12), (rows, 3), (rows, 9))


def mirrored() -> Graph:
    return looked_up(lambda i, x: scalar.load(x, scalar.minimum(scalar.absolute(i[0] - 4), 6)), (14,), (7,))


def doubled() -> Graph:
    return looked_up(lambda i, x: scalar.load(x, scalar.idiv(i[0], 2)), (60,), (30,))


def shown(graph: Graph) -> str:
    kernel = graph.kernels()[0].kernel
    reads = [f"{a.array}[{', '.join(map(str, a.index))}]" for s in kernel.stages for a in s.reads.values()]
    return f"{text(schedule_of(kernel))}{' '.join(reads)}"


def test_a_concatenation() -> None:
    graph = joined()
    assert len(apply(IndexSetSplitting(), graph, special=True).sites) == 1
    assert shown(graph) == (
        "for i0 < 5:\n  for i1_0 < 3:\n    s0(i0, i1_0)\n"
        "for i0 < 5:\n  for i1_1 < 9:\n    s1(i0, i1_1)\n"
        "x_1[i0, i1_0] x_2[i0, i1_1]"
    )


def test_shared_loops_stand_around_the_pieces() -> None:
    graph = joined(64)
    apply(IndexSetSplitting(), graph)
    assert shown(graph).startswith("for i0 < 64:\n  for i1_0 < 3:\n    s0(i0, i1_0)\n  for i1_1 < 9:\n")


def test_channels_that_come_last_are_the_innermost_loop() -> None:
    """They were a shared loop around the pieces, whose own loops then stepped from pixel to pixel."""

    def code(i: Any, x: Any) -> Any:
        inside = scalar.load(x, i[0], i[1], scalar.clamp(i[2], 10), scalar.clamp(i[3], 12))
        return scalar.select(scalar.logical_and(scalar.lt(i[2], 10), scalar.lt(i[3], 12)), inside, 0)

    graph, b, (x,) = start((16, 24, 10, 12))
    out = graph.add_array("y", (16, 24, 11, 13), graph.dtype(x), (24 * 11 * 13, 1, 24 * 13, 24))
    reads = {"x0": (x, lambda *i: (None,) * 4)}
    b.map((16, 24, 11, 13), reads, {"out": (out, lambda *i: i)}, lambda i, x0: code(i, x0))
    finish(graph, out)
    kernels = list(apply(IndexSetSplitting(), graph).sites)
    assert len(kernels) == 1
    apply(Vectorization(), graph)
    shown = text(schedule_of(graph.kernels()[0].kernel))
    assert shown.count("vector for i1 < 24") == shown.count("vector") == 3


def joined_in_blocks(first: int, backwards: bool = False) -> Graph:
    """64 channels of two arrays, in four blocks of 16."""

    def code(i: Any, a: Any, b: Any) -> Any:
        t = 63 - 16 * i[0] - i[1] if backwards else 16 * i[0] + i[1]
        left = scalar.load(a, scalar.clamp(t, first))
        return scalar.select(scalar.lt(t, first), left, scalar.load(b, scalar.clamp(t - first, 64 - first)))

    return looked_up(code, (4, 16), (first,), (64 - first,))


def test_blocks_are_cut_between_two() -> None:
    graph = joined_in_blocks(32)
    assert len(apply(IndexSetSplitting(), graph, special=True).sites) == 1
    assert shown(graph) == (
        "for i0_0 < 2:\n  for i1 < 16:\n    s0(i0_0, i1)\n"
        "for i0_1 < 2:\n  for i1 < 16:\n    s1(i0_1, i1)\n"
        "x_1[16*i0_0 + i1] x_2[16*i0_1 + i1]"
    )


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("first", [1, 16, 20, 47, 63])
def test_a_block_in_which_arrays_meet_is_cut_out(first: int, backwards: bool) -> None:
    graph = joined_in_blocks(first, backwards)
    assert len(apply(IndexSetSplitting(), graph, special=True).sites) == 1
    kernel = graph.kernels()[0].kernel
    assert len(kernel.stages) <= 4
    assert not any(a.expr.has(scalar.load) for s in kernel.stages for a in s.assignments)


def test_open_sizes_stay_open() -> None:
    graph = joined(size_symbol())
    assert len(apply(IndexSetSplitting(), graph).sites) == 1
    assert "None" not in shown(graph) and "for i0 < n" in shown(graph)


def in_turns(rows: int = 64) -> Graph:
    """Even rows from one array, odd ones but the first from the other, whose rows are one behind: what interleaves."""

    def code(i: Any, a: Any, b: Any) -> Any:
        even = scalar.load(a, scalar.clamp(scalar.idiv(i[0], 2), rows // 2), i[1])
        odd = scalar.load(b, scalar.clamp(scalar.idiv(i[0] - 3, 2), rows // 2 - 1), i[1])
        later = scalar.logical_and(scalar.ge(i[0] - 3, 0), scalar.eq(scalar.pymod(i[0] - 3, 2), 0))
        return scalar.select(scalar.eq(scalar.pymod(i[0], 2), 0), even, scalar.select(later, odd, 0))

    return looked_up(code, (rows, 40), (rows // 2, 40), (rows // 2 - 1, 40))


def test_rows_in_turns_are_pieces_that_step_over_others() -> None:
    graph = in_turns()
    assert len(apply(IndexSetSplitting(), graph, special=True).sites) == 1
    loops = shown(graph)
    assert loops.count("  s") == 3 and "x_1[i_f0, i1]" in loops and "x_2[i_f0_2, i1]" in loops


@pytest.mark.parametrize("period", [2, 3, 5])
@pytest.mark.parametrize("rows", [30, 31])
def test_turns_of_any_period_keep_their_numbers(period: int, rows: int) -> None:
    """Each array from another row on, read backwards or forwards; 31 rows do not end with a period."""

    def code(i: Any, *arrays: Any) -> Any:
        value: Any = 0
        for k, array in enumerate(arrays):
            t = rows - 1 - i[0] if k == 1 else i[0] - 2 * k
            turn = scalar.logical_and(scalar.ge(t, 0), scalar.eq(scalar.pymod(t, period), k))
            value = scalar.select(turn, scalar.load(array, scalar.clamp(scalar.idiv(t, period), rows), i[1]), value)
        return value

    graph = looked_up(code, (rows, 4), *[(rows, 4)] * period)
    exact = values(graph, special=True)
    IndexSetSplitting().run(graph)
    pieces = graph.kernels()[0].kernel.stages
    assert rows % period or (
        len(pieces) > 1 and not any(a.expr.has(scalar.load) for s in pieces for a in s.assignments)
    )
    np.testing.assert_array_equal(values(graph, special=True), exact)


def test_a_loop_of_periods_that_reduces_stays_one_piece() -> None:
    """Several pieces would add to the same elements; what is loaded becomes an access."""
    graph, b, (x, y) = start((32, 4), (16, 4))
    out = graph.add_array("y", (4,), graph.dtype(x))

    def code(i: Any, a: Any, c: Any) -> Any:
        other = scalar.load(c, scalar.clamp(scalar.idiv(i[1], 2), 16), i[0])
        return scalar.select(scalar.eq(scalar.pymod(i[1], 2), 0), a, other)

    places = {"a": (x, lambda i, j: (j, i)), "c": (y, lambda i, j: (None, None))}
    b.map((4, 32), places, {"out": (out, lambda i, j: (i,), "sum")}, code)
    assert len(apply(IndexSetSplitting(), finish(graph, out)).sites) == 1
    (piece,) = graph.kernels()[0].kernel.stages
    assert not any(a.expr.has(scalar.load) for a in piece.assignments)


def test_distances() -> None:
    """A mirrored place goes down and up, and stays where it is clamped."""
    graph = mirrored()
    assert len(apply(IndexSetSplitting(), graph).sites) == 1
    assert "x_1[4 - i0_0] x_1[i0_1] x_1[6]" in shown(graph)


def test_what_is_not_cut() -> None:
    assert apply(IndexSetSplitting(), doubled()).sites == []  # as many pieces as places
    near = lambda i: scalar.minimum(scalar.absolute(i - 4), 6)  # noqa: E731
    both = looked_up(lambda i, x: scalar.load(x, near(i[0]), near(i[1])), (14, 14), (7, 7))
    assert "s0 has more than 4 pieces" in misses(apply(IndexSetSplitting(most=4), both))
    assert len(apply(IndexSetSplitting(), both).sites) == 1
    halves = looked_up(lambda i, x: scalar.load(x, scalar.maximum(i[0] - i[1], 0)), (5, 5), (5,))
    assert apply(IndexSetSplitting(), halves).sites == []  # a place that two parameters choose
    outside = looked_up(lambda i, x: scalar.load(x, i[0] - 1), (5,), (5,))
    assert IndexSetSplitting().run(outside).sites == []  # -1 counts from the end, and is checked


def reduced(rows: Any, *kinds: str) -> Graph:
    """Reductions over the rows of a selection by position."""
    graph, b, (x, y) = start((rows, 8), (rows, 8))
    outs = {f"out{k}": graph.add_array("y", (rows,), graph.dtype(x)) for k in range(len(kinds))}
    place = {"a": (x, lambda i, j: (i, j)), "c": (y, lambda i, j: (None, None))}

    def code(i: Any, a: Any, c: Any) -> Any:
        chosen = scalar.select(scalar.lt(i[1], 4), a, scalar.load(c, i[0], scalar.clamp(i[1] - 4, 8)))
        return dict.fromkeys(outs, chosen)

    b.map((rows, 8), place, {c: (n, lambda i, j: (i,), kind) for (c, n), kind in zip(outs.items(), kinds)}, code)
    return finish(graph, *outs.values())


def test_reduced_loops_are_cut_into_locals() -> None:
    graph = reduced(16, "sum")
    assert len(apply(IndexSetSplitting(), graph).sites) == 1
    assert (
        render(graph)
        == """graph test(x_1: float32[16, 8], x_2: float32[16, 8]) -> y_3
  y_3: float32[16] = kernel k outer i0
    local y_3_0_4: float64[1]
    local y_3_1_5: float64[1]
    s0(i0 < 16, i1_0 < 4):
      a <- x_1[i0, i1_0]
      out0: float32 = a
      out0 -> y_3_0_4[0] (sum)
    s1(i0 < 16, i1_1 < 4):
      c_at <- x_2[i0, i1_1]
      out0: float32 = c_at
      out0 -> y_3_1_5[0] (sum)
    s2(i0 < 16):
      y_3_0 <- y_3_0_4[0]
      y_3_1 <- y_3_1_5[0]
      out0: float64 = y_3_0 + y_3_1
      out0 -> y_3[i0]
    schedule:
      for i0 < 16:
        local y_3_1_5 in thread:
          local y_3_0_4 in thread:
            accumulate s0.out0:
              for i1_0 < 4:
                s0(i0, i1_0)
            accumulate s1.out0:
              for i1_1 < 4:
                s1(i0, i1_1)
            s2(i0)
"""
    )


def test_a_single_piece_reduces_as_before() -> None:
    """A place that turns out to be plain everywhere."""
    graph, b, (x,) = start((16, 8))
    out = graph.add_array("y", (16,), graph.dtype(x))
    whole = {"a": (x, lambda i, j: (None, None))}
    code = lambda i, a: scalar.load(a, i[0], scalar.clamp(i[1], 8))  # noqa: E731
    b.map((16, 8), whole, {"out": (out, lambda i, j: (i,), "sum")}, code)
    assert len(apply(IndexSetSplitting(), finish(graph, out)).sites) == 1
    kernel = graph.kernels()[0].kernel
    assert len(kernel.stages) == 1 and not kernel.locals


@pytest.mark.parametrize("kinds", [("sum", "max"), ("min", "prod")])
def test_reductions_in_pieces(kinds: tuple[str, ...]) -> None:
    graph = reduced(16, *kinds)
    exact = values(graph, special=True)
    assert len(apply(IndexSetSplitting(), graph, special=True).sites) == 1
    for ours, theirs in zip(compiled(f"reduced_{kinds[0]}", [graph], special=True)[0], exact, strict=True):
        assert_within_rounding(ours, theirs, ulps=16)


def test_reduced_loops_that_are_not_cut() -> None:
    for few in (reduced(6, "sum"), reduced(size_symbol(), "sum")):
        assert apply(IndexSetSplitting(), few).sites == []


def test_numbers_are_no_expressions() -> None:
    """What a choice leaves is a number of the machine: its product with NaN is NaN, its logarithm is not refused."""
    graph, b, (x,) = start((4, 8))
    out = graph.add_array("y", (4, 8), graph.dtype(x))

    def code(i: Any, a: Any) -> Any:
        kept = scalar.select(scalar.lt(i[1], 4), a, 0)
        return a * kept + 1 / scalar.select(scalar.ge(i[1], 6), 0, 2 + kept)

    b.map((4, 8), {"a": (x, lambda i, j: (i, j))}, {"out": (out, lambda i, j: (i, j))}, code)
    finish(graph, out)
    before = values(graph, special=True)
    IndexSetSplitting(most=12).run(graph)
    for ours, theirs in zip(values(graph, special=True), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_pieces_are_shared_by_threads_one_after_the_other() -> None:
    graph = joined(12)
    apply(IndexSetSplitting(), graph)
    apply(Threading(work=1), graph)
    assert shown(graph).count("parallel for i0 < 12") == 2


def test_built() -> None:
    graphs = [joined(), joined(70), joined(size_symbol()), mirrored()]
    expected, single = [values(g) for g in graphs], [values(g, dtype=None) for g in graphs]
    for graph in graphs:
        IndexSetSplitting().run(graph)
    for ours, exact, narrow in zip(compiled("pieces", graphs), expected, single, strict=True):
        assert_within_rounding(ours[0], exact[0], narrow[0])


# ---------------------------------------------------------------- modules


MOVES: dict[str, Any] = {
    "cat": lambda x, part, axis, k: torch.cat([x, part], axis),
    "three": lambda x, part, axis, k: torch.cat([part.exp(), x, -part], axis),
    "pad": lambda x, part, axis, k: F.pad(x, [0, 0] * (x.dim() - 1 - axis) + [k % 3, 2 * k % 3], value=1.5 * (k % 2)),
    "roll": lambda x, part, axis, k: torch.roll(x, k, axis),
    "flip": lambda x, part, axis, k: x.flip(axis),
    "stack": lambda x, part, axis, k: torch.stack([x, x + 1], axis).flatten(axis, axis + 1),
    "pairs": lambda x, part, axis, k: torch.cat([x, x.sin()], axis).unflatten(axis, (-1, 2)).amax(axis + 1),
    "reflect": lambda x, part, axis, k: F.pad(x, (min(k, x.shape[-1] - 1), 0), mode="reflect"),
    "put": lambda x, part, axis, k: torch.slice_scatter(x, part * 2, axis, x.shape[axis] - part.shape[axis]),
    "where": lambda x, part, axis, k: torch.where(torch.arange(x.shape[-1]) < k, x, x.sin()),
}


class _Moves(nn.Module):
    """A few of them, with something between; results that are reduced, and not."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.plan = [
            (draw.choice(list(MOVES)), draw.randrange(3), draw.randrange(1, 4), draw.random() < 0.5) for _ in range(3)
        ]
        self.summed = draw.randrange(3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for name, axis, k, squashed in self.plan:
            part = x.narrow(axis, 0, min(k, x.shape[axis]))
            x = MOVES[name](x, part, axis, k) * 0.5
            x = x.tanh() if squashed else x
        return x, x.softmax(-1), x.sum(self.summed)


@pytest.mark.parametrize("seed", [pytest.param(k, marks=() if k < 2 else pytest.mark.breadth) for k in range(12)])
def test_random_moves_of_elements(seed: int) -> None:
    """Forward and backward, beside float64 and PyTorch's own float32."""
    torch.manual_seed(seed)
    net, draw = _Moves(seed), random.Random(seed)
    shape = tuple(draw.choice([2, 5, 17, 33]) for _ in range(3))
    x = torch.randn(shape)
    found = []
    for module, dtype in (
        (optimized_module(net, fallback="raise"), torch.float32),
        (net, torch.float64),
        (net, torch.float32),
    ):
        given = x.clone().to(dtype).detach().requires_grad_()
        results = module(given)
        sum((r * torch.linspace(-1, 1, r.numel(), dtype=dtype).view_as(r)).sum() for r in results).backward()
        assert given.grad is not None
        found.append([*results, given.grad])
    for ours, exact, eager in zip(*found, strict=True):
        assert_within_rounding(ours.detach().numpy(), exact.detach().numpy(), eager.detach().numpy())
