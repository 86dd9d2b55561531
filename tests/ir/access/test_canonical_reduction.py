"""Loops of reductions in canonical form: the order, the digits, and that the sums stay the same."""

from __future__ import annotations

from typing import Any

import pytest

from daceopt.errors import IllegalSchedule
from daceopt.ir.access.canonical_reduction import canonical_form, coalesced
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar.symbols import param
from daceopt.ir.schedule.schedule_text import text
from tests.ir.isl_checking import assert_agrees
from tests.transformations.lowered import assert_same, finish, size_symbol, start

N = size_symbol()


def reduced(shape: tuple[Any, ...], axes: tuple[int, ...], kind: str = "sum") -> tuple[Graph, Any]:
    graph, b, (x,) = start(shape)
    finish(graph, b.reduce(kind, None, x, axes=axes))
    return graph, graph.kernels()[0]


def flat(graph: Graph, entry: Any) -> str:
    """The canonical form, committed and checked."""
    before = graph.copy()
    kernel = entry.kernel
    found = text(edits.commit(graph, entry, canonical_form(graph, kernel, edits.of(graph, entry))))
    assert_same(before, graph)
    assert_agrees(graph, entry.kernel)
    return str(found)


def test_all() -> None:
    assert flat(*reduced((3, 4, 5), (0, 1, 2))).splitlines() == [
        "accumulate s0.out0:",
        "  for y < 60:",
        "    s0(y // 20, y // 5 % 4, y % 5)",
    ]


def test_y() -> None:
    """What lies side by side is reduced: inside."""
    assert flat(*reduced((3, 4, 5, 6), (1, 3))).splitlines() == [
        "for x < 15:",
        "  accumulate s0.out0:",
        "    for y < 24:",
        "      s0(x // 5, y // 6, x % 5, y % 6)",
    ]


def test_x() -> None:
    """Results lie side by side along the inner loop."""
    assert flat(*reduced((3, 4, 5), (0, 1))).splitlines() == [
        "accumulate s0.out0:",
        "  for y < 12:",
        "    for x < 5:",
        "      s0(y // 4, y % 4, x)",
    ]


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 4, 5), (3, 1, 2), (N, 2, 3), (2, 3, N)])
def test_any(shape: tuple[Any, ...], axes: tuple[int, ...], kind: str) -> None:
    graph, entry = reduced(shape, axes, kind)
    found = flat(graph, entry)
    assert sum(line.strip().startswith("for ") for line in found.splitlines()) <= 2


def test_a_statement_that_reduces_nothing_is_left() -> None:
    graph, b, (x,) = start((3, 4))
    finish(graph, b.elementwise(lambda v: v + 1, x))
    (entry,) = graph.kernels()
    tree = edits.of(graph, entry)
    assert canonical_form(graph, entry.kernel, tree) == tree


def test_a_form_that_is_none_is_refused() -> None:
    graph, entry = reduced((3, 4), (1,))
    with pytest.raises(IllegalSchedule, match="a reduction of the form 'z'; expected one of all-reduce, x-reduce"):
        coalesced(edits.of(graph, entry), [param(1)], "z")
