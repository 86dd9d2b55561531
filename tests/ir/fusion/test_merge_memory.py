"""Pairs of kernels that are alike are merged once, and as merging each would have it."""

from __future__ import annotations

from typing import Any

import pytest
import sympy

from daceopt.ir.fusion import fusion
from daceopt.ir.fusion.fusion import expand_locals, merge
from daceopt.ir.fusion.merge_memory import MergeMemory
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.builder import Builder
from tests.transformations.lowered import finish, start

Pair = tuple[Kernel, Kernel]


def _steps(*starts: tuple[int, int]) -> tuple[Graph, list[Pair]]:
    """For each: the exponentials of two rows of x, and their sums with two rows of the other buffer; where both are."""
    graph, b, (x, y) = start((12, 6), (12, 6))
    return _pairs(graph, b, x, y, starts)


def _pairs(graph: Graph, b: Builder, x: str, y: str, starts: tuple[tuple[int, int], ...]) -> tuple[Graph, list[Pair]]:
    steps = []
    for first, second in starts:
        e = b.elementwise(sympy.exp, graph.add_view(x, "rows", (2, 6), (6, 1), 6 * first))
        total = b.elementwise(lambda u, v: u + v, e, graph.add_view(y, "rows", (2, 6), (6, 1), 6 * second))
        steps.append((e, total))
    finish(graph, *(total for _, total in steps))
    return graph, [(_kernel(graph, e), _kernel(graph, total)) for e, total in steps]


def _kernel(graph: Graph, array: str) -> Kernel:
    (node,) = graph.producers(array)
    assert isinstance(node, KernelNode)
    return expand_locals(node.kernel)


def _merge(memory: MergeMemory, pair: Pair, needed: bool = False, reason: str | None = None) -> Any:
    return memory.merge(*pair, lambda array: needed, "any", lambda kernel: reason or kernel)


def _count_merges(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The first kernels of pairs that are really merged from now on."""
    firsts: list[Kernel] = []
    unify = fusion.unify
    monkeypatch.setattr(fusion, "unify", lambda first, *rest: (firsts.append(first), unify(first, *rest))[1])
    return firsts


@pytest.mark.parametrize("needed", [False, True])
def test_each_merge_is_what_it_would_be_by_itself(needed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, pairs = _steps((0, 0), (4, 1), (8, 2))
    expected = [merge(graph, *pair, lambda array: needed) for pair in pairs]
    firsts, memory = _count_merges(monkeypatch), MergeMemory(graph)
    assert [_merge(memory, pair, needed) for pair in pairs] == expected
    assert len(firsts) == 1 and len({str(kernel) for kernel in expected}) == 3


def test_what_was_merged_is_merged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, b, (x,) = start((12, 6))
    rows = [graph.add_view(x, "rows", (2, 6), (6, 1), 6 * k) for k in (0, 4, 9)]
    exps = [b.elementwise(sympy.exp, row) for row in rows]
    sines = [b.elementwise(sympy.sin, e) for e in exps]
    products = [b.elementwise(lambda u, v: u * v, s, row) for s, row in zip(sines, rows)]
    finish(graph, *products)
    kernels = [[_kernel(graph, array) for array in chain] for chain in zip(exps, sines, products)]
    alone = [_merge(MergeMemory(graph), (_merge(MergeMemory(graph), (a, z)), c)) for a, z, c in kernels]
    firsts, memory = _count_merges(monkeypatch), MergeMemory(graph)
    assert [_merge(memory, (_merge(memory, (a, z)), c)) for a, z, c in kernels] == alone
    assert len(firsts) == 2


def test_whether_others_need_a_result_tells_pairs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, pairs = _steps((0, 0), (4, 1))
    firsts, memory = _count_merges(monkeypatch), MergeMemory(graph)
    once, again = _merge(memory, pairs[0]), _merge(memory, pairs[1], needed=True)
    assert len(firsts) == 2 and len(once.locals) == len(again.locals)
    assert again == merge(graph, *pairs[1], lambda array: True)


def test_distances_within_a_buffer_tell_pairs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read x: what the second pair's kernels read of it lies further apart."""
    graph, b, (x,) = start((12, 6))
    graph, pairs = _pairs(graph, b, x, x, ((0, 2), (4, 6), (0, 6)))
    firsts, memory = _count_merges(monkeypatch), MergeMemory(graph)
    for pair in pairs:
        assert _merge(memory, pair) == merge(graph, *pair, lambda array: False)
    assert len(firsts) == 2 + 3  # those of the memory, and of the comparison


def test_a_reason_is_told_in_the_names_of_the_pair() -> None:
    graph, pairs = _steps((0, 0), (4, 1))
    memory = MergeMemory(graph)
    (written,), (other,) = ([a.array for a in first.writes()] for first, _ in pairs)
    assert _merge(memory, pairs[0], reason=f"{written} is large") == f"{written} is large"
    assert _merge(memory, pairs[1]) == f"{other} is large"
