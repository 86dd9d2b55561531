"""Merging on address functions: locals, shared loops, and the reasons against."""

from __future__ import annotations

from typing import Any

import dace
import pytest
import sympy

from daceopt.ir.fusion.fusion import collapse, common_parameters, copies, expand_locals, merge, shrink_locals
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.scalar import symbol

F = dace.float32
HALF = types.from_name("float16")
A, B = param(0), param(1)


def start(*shape: Any) -> tuple[Graph, Builder, str]:
    graph = Graph("test")
    return graph, Builder(graph), graph.add_input("x", shape or (4, 6), F)


def merged(graph: Graph, needed: bool = False) -> Kernel | str:
    first, second = (expand_locals(k.kernel) for k in graph.kernels())
    return merge(graph, first, second, lambda array: needed)


def row_sums(graph: Graph, b: Builder, x: str) -> tuple[str, str]:
    total = b.reduce("sum", None, x, axes=[1], keepdims=True)
    return total, b.elementwise(lambda v, s: v / s, x, total)


def test_a_reduction_and_its_reader_share_the_rows() -> None:
    graph, b, x = start()
    total, _ = row_sums(graph, b, x)
    kernel = merged(graph)
    assert isinstance(kernel, Kernel) and kernel.outer == (A,)
    assert kernel.locals == {f"{total}_l": (F, (4,))}
    assert shrink_locals(kernel).locals == {f"{total}_l": (F, ())}
    assert collapse(kernel) is None


def test_expanding_undoes_shrinking() -> None:
    graph, b, x = start()
    row_sums(graph, b, x)
    kernel = merged(graph)
    assert isinstance(kernel, Kernel) and expand_locals(shrink_locals(kernel)) == kernel


def test_an_array_that_others_need_is_written_twice() -> None:
    graph, b, x = start()
    total, _ = row_sums(graph, b, x)
    kernel = merged(graph, needed=True)
    assert isinstance(kernel, Kernel)
    assert {a.array: a.wcr for a in kernel.stages[0].writes.values()} == {total: "sum", f"{total}_l": "sum"}


@pytest.mark.parametrize("rounds", [False, True])
def test_what_others_read_rounded_is_read_rounded(rounds: bool) -> None:
    """Within a kernel values are of the type in which they are computed; memory holds them rounded."""
    graph = Graph("test")
    b, x = Builder(graph), graph.add_input("x", (4,), dace.float32)
    half = graph.add_array("half", (4,), HALF)
    b.elementwise(lambda v: scalar.cast(v * v, HALF) if rounds else v * v, x, out=half)
    b.elementwise(lambda v: v * v, half, dtype=dace.float32)
    for needed in (False, True):
        kernel = merged(graph, needed=needed)
        assert isinstance(kernel, Kernel)
        rounded = [a for a in kernel.stages[1].assignments if "cast_float16" in str(a.expr)]
        assert bool(rounded) is (needed and not rounds)


def test_a_chain_collapses_to_one_stage() -> None:
    graph, b, x = start()
    b.elementwise(lambda v: v + 1, b.transpose(b.elementwise(sympy.exp, x), [1, 0]))
    kernel = merged(graph)
    assert isinstance(kernel, Kernel)
    one = collapse(kernel)
    assert one is not None and len(one.stages) == 1 and not one.locals


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (lambda b, t: b.elementwise(lambda u, v: u + v, t, b.transpose(t, [1, 0])), "read at other elements"),
        (lambda b, t: b.copy(b.slice(t, [1], [6], [1], [0])), "walked differently"),
        (lambda b, t: b.reduce("sum", None, b.graph.add_input("z", (6, 6), F), axes=[0]), "no shared access"),
    ],
)
def test_reasons(second: Any, reason: str) -> None:
    graph, b, x = start(6, 6)
    second(b, b.elementwise(sympy.exp, x))
    found = merged(graph)
    assert isinstance(found, str) and reason in found


def test_an_empty_array_of_stride_zero_is_not_read_in_other_loops() -> None:
    graph, b, x = start(3, 0)
    t = b.elementwise(sympy.exp, x)
    b.elementwise(sympy.tanh, t)
    graph.set_strides(t, (0, 1))
    found = merged(graph)
    assert isinstance(found, str) and "read at other elements" in found


def test_no_common_loop() -> None:
    graph, b, x = start()
    b.elementwise(lambda v, s: v / s, x, b.reduce("sum", None, x, axes=[0, 1], keepdims=True))
    found = merged(graph)
    assert isinstance(found, str) and "no common parallel parameter" in found


def chain(read: tuple[Any, ...]) -> Kernel:
    """x -> a local array -> y, the local one read at ``read``."""
    v, out = symbol("v", F), symbol("out", F)
    code = (Assignment(out, v, F),)
    first = Stage((A, B), {"v": Access("x", (A, B))}, {"out": Access("t", (A, B))}, code)
    second = Stage((A, B), {"v": Access("t", read)}, {"out": Access("y", (A, B))}, code)
    return Kernel("chain", {A: 4, B: 4}, [first, second], (), {"t": (F, (4, 4))})


@pytest.mark.parametrize(
    ("read", "common"), [((A, B), (A, B)), ((A, B + 1), (A,)), ((A, None), (A,)), ((B, A), ()), ((A, 0), (A,))]
)
def test_loops_along_which_a_local_array_is_read_elsewhere_are_not_shared(read: tuple, common: tuple) -> None:
    kernel = chain(read)
    assert common_parameters(kernel) == common
    assert (collapse(kernel) is not None) == (read == (A, B))


def test_who_a_local_came_from_is_no_matter_of_names() -> None:
    """A copy is found by what it holds, whatever it is called."""
    graph = Graph("names")
    b = Builder(graph)
    x = graph.add_input("x", (4, 6), F)
    y = b.elementwise(lambda v: v + 1, x)
    graph.add_output(y)
    graph.add_output(b.elementwise(lambda v: v * 2, y))
    graph.add_output(b.elementwise(lambda v: v * 3, y))
    first, second, third = (expand_locals(e.kernel) for e in graph.kernels())
    once = merge(graph, first, second, needed=lambda name: True)
    assert isinstance(once, Kernel)
    (local,) = once.locals
    assert copies(once) == {y: local}
    renamed = once.rename_locals_apart(graph)
    (other,) = renamed.locals
    assert other != local and copies(renamed) == {y: other}
    again = merge(graph, renamed, third, needed=lambda name: True)
    assert isinstance(again, Kernel) and list(again.locals) == [other]
