"""Panels of rows computed in front of their product: what it becomes, what it leaves, and that it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy

from daceopt import recipes
from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.schedule import schedule_text
from daceopt.transformations.hardware.threading import Threading
from daceopt.transformations.local.prologue_fusion import PrologueFusion
from tests.properties.graph_checking import Case, failures
from tests.transformations.lowered import apply, assert_same, finish, misses, schedule_tiles, size_symbol, start

STEP = PrologueFusion(rows=16, columns=8)
N = size_symbol()
Shapes = tuple[Any, ...]


def product(left: Shapes = (37, 6), right: Shapes = (6, 20), turned: bool = False) -> Graph:
    """The product of a point-wise result; ``turned``: which is read through a transposed view."""
    shape = (*left[:-2], left[-1], left[-2]) if turned else left
    graph, b, (x, w) = start(shape, right)
    a = b.elementwise(sympy.tanh, x)
    order = [*range(len(left) - 2), len(left) - 1, len(left) - 2]
    return finish(graph, b.matmul(b.transpose(a, order) if turned else a, w))


def test_before_and_after() -> None:
    graph = product((2, 37, 6))
    before = graph.copy()
    assert len(apply(STEP, graph).sites) == 1
    assert [type(n).__name__ for n in graph.nodes()] == ["KernelNode"]
    assert schedule_tiles(graph) != []
    Threading().run(graph)
    assert_same(before, graph)
    (entry,) = graph.kernels()
    shown = schedule_text.text(entry.tree)
    for name in sorted(entry.kernel.locals):
        shown = shown.replace(name, name.rsplit("_", 1)[0])
    assert (
        shown
        == """\
for i0 < 2:
  for i1 < 3:
    local rows in thread:
      for i3 < 16, 37 - 16*i1:
        vector for i5 < 6:
          s0(i0, i1, i3, i5)
      for i2 < 3:
        local tile in thread:
          call product:
            for i3 < 16, 37 - 16*i1:
              for i4 < 8, 20 - 8*i2:
                for i5 < 6:
                  s1(i0, i1, i2, i3, i4, i5)
          for i3 < 16, 37 - 16*i1:
            vector for i4 < 8, 20 - 8*i2:
              s2(i0, i1, i2, i3, i4)
"""
    )


SHAPES: dict[str, dict[str, Any]] = {
    "partial panels": {},
    "whole panels": {"left": (32, 6), "right": (6, 16)},
    "one panel": {"left": (3, 6), "right": (6, 5)},
    "a batch": {"left": (2, 3, 17, 6)},
    "batches of both": {"left": (3, 17, 6), "right": (3, 6, 10)},
    "a size": {"left": (N, 6)},
    "a size and a batch": {"left": (N, 5, 6)},
    "turned": {"turned": True},
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_computes_the_same(name: str) -> None:
    graph = product(**SHAPES[name])
    before = graph.copy()
    assert apply(STEP, graph).sites != []
    schedule_tiles(graph)
    Threading().run(graph)
    assert_same(before, graph)


def kept(b: Builder, a: str, w: str) -> list[str]:
    return [b.matmul(a, w), a]


def read_again(b: Builder, a: str, w: str) -> list[str]:
    return [b.matmul(a, w, alpha=0.25), b.reduce("sum", None, a, axes=(0,))]


def a_part(b: Builder, a: str, w: str) -> list[str]:
    return [b.matmul(b.slice(a, [2], [35], [3], [0]), w)]


@pytest.mark.parametrize("build", [kept, read_again, a_part])
def test_other_readers(build: Callable[[Builder, str, str], list[str]]) -> None:
    graph, b, (x, w) = start((37, 6), (6, 20))
    before = finish(graph, *build(b, b.elementwise(sympy.tanh, x), w)).copy()
    assert len(apply(STEP, graph).sites) == 1
    schedule_tiles(graph)
    Threading().run(graph)
    assert_same(before, graph)


def _squared(b: Builder, a: str, w: str) -> list[str]:
    del w
    return [b.matmul(a, b.transpose(a, [1, 0]))]


def _needed_in_part(b: Builder, a: str, w: str) -> list[str]:
    return [b.matmul(b.slice(a, [0], [8], [1], [0]), w), a]


def _turned_right(b: Builder, a: str, w: str) -> list[str]:
    return [b.matmul(a, b.transpose(b.graph.add_input("v", (9, 6), b.graph.dtype(w)), [1, 0]))]


def _reduced(b: Builder, a: str, w: str) -> list[str]:
    total = b.reduce("sum", None, a, axes=(0,), keepdims=True)
    return [b.matmul(total, w)]


def _waiting(b: Builder, a: str, w: str) -> list[str]:
    scale = b.reduce("sum", None, a, axes=(0, 1))
    return [b.matmul(a, b.elementwise(lambda u, s: u * s, w, scale))]


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (_squared, "not contiguous"),
        (_needed_in_part, "of which the product takes a part"),
        (_turned_right, "the rows of the right operand are not contiguous"),
        (_reduced, "reduces"),
        (_waiting, "another reader of"),
    ],
)
def test_what_it_leaves(build: Callable[[Builder, str, str], list[str]], reason: str) -> None:
    graph, b, (x, w) = start((37, 6), (6, 20))
    finish(graph, *build(b, b.elementwise(sympy.tanh, x), w))
    assert reason in misses(apply(STEP, graph))


def test_panels_that_no_cache_holds_and_wrong_options() -> None:
    assert "elements; expected" in misses(PrologueFusion(rows=64).run(product((4, 4096), (4096, 2))))
    with pytest.raises(DaceoptError, match="expected 1 or more"):
        PrologueFusion(rows=0)


def test_random_graphs_in_both_directions() -> None:
    recipe = recipes.get("cpu").after("map-fusion", STEP)
    assert not failures([Case(9100 + seed, "small", backward=True) for seed in range(10)], recipe)
