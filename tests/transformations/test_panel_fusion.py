"""Panels of a product with the point-wise kernel behind it: what it becomes, what it leaves, and that it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional

from daceopt import optimized_module, recipes
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.schedule import schedule_text
from daceopt.ir.text.render import render
from daceopt.transformations.hardware.threading import Threading
from daceopt.transformations.local.panel_fusion import PanelFusion
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import apply, assert_same, finish, misses, schedule_tiles, size_symbol, start

STEP = PanelFusion(rows=16, columns=8)
N = size_symbol()


def product(left: Any = (37, 6), right: Any = (6, 20), turned: bool = False) -> tuple[Graph, Builder, str, str]:
    """A product, and a vector along its columns; ``turned``: the right operand is a view of its transpose."""
    shape = (*right[:-2], right[-1], right[-2]) if turned else right
    graph, b, (a, w, c) = start(left, shape, (right[-1],))
    order = [*range(len(right) - 2), len(right) - 1, len(right) - 2]
    return graph, b, b.matmul(a, b.transpose(w, order) if turned else w), c


def tanh(b: Builder, y: str, c: str) -> str:
    return str(b.elementwise(lambda v, u: sympy.tanh(v + u), y, c))


def test_before_and_after() -> None:
    graph, b, y, c = product((2, 37, 6), turned=True)
    before = finish(graph, tanh(b, y, c)).copy()
    outcome = apply(STEP, graph)
    assert len(outcome.sites) == 1
    assert [type(n).__name__ for n in graph.nodes()] == ["KernelNode"]
    (entry,) = graph.kernels()
    assert "outer i1\n    serial i0, i2\n" in render(graph)
    assert schedule_tiles(graph) != []
    Threading().run(graph)
    assert_same(before, graph)
    names = sorted(entry.kernel.locals)
    shown = schedule_text.text(entry.tree)
    for name in names:
        shown = shown.replace(name, name.rsplit("_", 1)[0])
    assert (
        shown
        == """\
parallel for i1 < 3:
  local panel in thread:
    call transposition:
      for i4 < 8, 20 - 8*i1:
        for i5 < 6:
          s0(i1, i4, i5)
    for i0 < 2:
      for i2 < 3:
        local tile in thread:
          call product:
            for i3 < 16, 37 - 16*i2:
              for i4 < 8, 20 - 8*i1:
                for i5 < 6:
                  s1(i1, i0, i2, i3, i4, i5)
          for i3 < 16, 37 - 16*i2:
            vector for i4 < 8, 20 - 8*i1:
              s2(i1, i0, i2, i3, i4)
"""
    )


SHAPES: dict[str, dict[str, Any]] = {
    "partial panels": {},
    "whole panels": {"left": (32, 6), "right": (6, 16)},
    "one panel": {"left": (3, 6), "right": (6, 5)},
    "depth of one": {"left": (20, 1), "right": (1, 20)},
    "a batch": {"left": (2, 3, 17, 6)},
    "batches of both": {"left": (3, 17, 6), "right": (3, 6, 10)},
    "a batch of the right": {"left": (17, 6), "right": (2, 6, 10)},
    "a size": {"left": (N, 6)},
    "a size and a batch": {"left": (N, 5, 6)},
    "turned": {"turned": True},
    "turned batch": {"left": (2, 17, 6), "right": (2, 6, 10), "turned": True},
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_the_same(name: str) -> None:
    graph, b, y, c = product(**SHAPES[name])
    before = finish(graph, tanh(b, y, c)).copy()
    assert apply(STEP, graph).sites != []
    schedule_tiles(graph)
    Threading().run(graph)
    assert_same(before, graph)


def scaled(b: Builder, y: str, c: str) -> list[str]:
    del y
    a, w = b.graph.inputs[:2]
    return [tanh(b, b.matmul(a, w, alpha=0.25), c)]


def kept(b: Builder, y: str, c: str) -> list[str]:
    return [tanh(b, y, c), y]


def read_again(b: Builder, y: str, c: str) -> list[str]:
    return [tanh(b, y, c), str(b.reduce("sum", None, y, axes=(0,)))]


def turned_result(b: Builder, y: str, c: str) -> list[str]:
    return [str(b.copy(b.transpose(tanh(b, y, c), [1, 0])))]


def two_results(b: Builder, y: str, c: str) -> list[str]:
    return list(b.elementwise(lambda v, u: (v + u, sympy.exp(v)), y, c))


def squared(b: Builder, y: str, c: str) -> list[str]:
    del c
    return [str(b.elementwise(lambda u, v: u * v, y, y))]


@pytest.mark.parametrize("build", [scaled, kept, read_again, turned_result, two_results, squared])
def test_other_readers(build: Callable[[Builder, str, str], list[str]]) -> None:
    graph, b, y, c = product()
    finish(graph, *build(b, y, c))
    graph.prune()
    before = graph.copy()
    assert apply(STEP, graph).sites != []
    schedule_tiles(graph)
    Threading().run(graph)
    assert_same(before, graph)


# ---------------------------------------------------------------- what it leaves


def _reduced(b: Builder, y: str, c: str) -> str:
    del c
    return str(b.reduce("sum", None, y, axes=(1,)))


def _diagonal(b: Builder, y: str, c: str) -> str:
    out = b.graph.add_array("z", (20,), b.graph.dtype(c))
    reads = {"v": (y, lambda i: (i, i)), "u": (c, lambda i: (i,))}
    b.map((20,), reads, {"o": (out, lambda i: (i,))}, lambda i, v, u: v + u)
    return out


def _after_another(b: Builder, y: str, c: str) -> str:
    total = b.reduce("sum", None, y, axes=(1,), keepdims=True)
    return str(b.elementwise(lambda v, u, t: v + u + t, y, c, total))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (_reduced, "the reader reduces"),
        (_diagonal, "the reader does not visit each element of the product once"),
    ],
)
def test_readers_that_do_more(build: Callable[[Builder, str, str], str], reason: str) -> None:
    graph, b, y, c = product()
    assert reason in misses(STEP.run(finish(graph, build(b, y, c))))


def test_a_reader_that_waits_for_another_one() -> None:
    graph, b, y, c = product()
    before = finish(graph, _after_another(b, y, c)).copy()
    assert "what another reader of" in misses(STEP.run(graph))
    assert_same(before, graph)


def test_products_with_an_epilogue_of_their_own() -> None:
    graph, b, (a, w, c) = start((37, 6), (6, 20), (20,))
    y = graph.add_array("y", (37, 20), graph.dtype(a))
    b.library(Contraction, {"A": a, "B": w, "Bias": c}, {"Y": y}, activation="relu")
    finish(graph, b.elementwise(sympy.tanh, y))
    assert "a bias, a residual or an activation" in misses(STEP.run(graph))


def test_a_left_operand_that_is_turned() -> None:
    graph, b, (a, w) = start((6, 37), (6, 20))
    finish(graph, b.elementwise(sympy.tanh, b.matmul(b.transpose(a, [1, 0]), w)))
    assert "the rows of the left operand are not contiguous" in misses(STEP.run(graph))


# ---------------------------------------------------------------- compiled, in both directions


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.back = nn.Linear(24, 40), nn.Linear(40, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(functional.gelu(self.wide(x)))


@pytest.mark.parametrize("training", [False, True])
def test_compiled(training: bool) -> None:
    torch.manual_seed(0)
    net = FeedForward()
    x = torch.randn(2, 37, 24)
    exact, eager = FeedForward().double(), FeedForward()
    for copy in (exact, eager):
        copy.load_state_dict(net.state_dict())
    recipe = recipes.get("cpu").after("epilogue-fusion", PanelFusion(rows=16, columns=16))
    ours = optimized_module(net, recipe=recipe, verify="numerics", fallback="raise")
    found = _run(ours, x, training)
    for mine, right, theirs in zip(found, _run(exact, x.double(), training), _run(eager, x, training), strict=True):
        assert_within_rounding(mine, right, theirs)
    steps = [(s["name"].partition("{")[0], s["graph"]) for s in ours.daceopt.history if s["sites"]]
    assert ("panel-fusion", "program") in steps
    assert "daceopt_product_float(" in ours.daceopt.source()


def _run(net: nn.Module, x: torch.Tensor, training: bool) -> list[torch.Tensor]:
    with torch.set_grad_enabled(training):
        x = x.detach().requires_grad_(training)
        y = net(x)
        if not training:
            return [y]
        (y * y).sum().backward()
    return [y, x.grad, *(p.grad for p in net.parameters())]  # type: ignore[list-item]
