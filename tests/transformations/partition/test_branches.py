"""Branches: which nodes a walk collects, and the sub-graphs of APOLLO's figure 6.

The paper describes figure 6 in words only (sections 4.3 and 6.1); the graphs here are what these words demand.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from daceopt.transformations.partition._branches import BranchGraph, Candidates

Edges = dict[str, str]


def graph(text: str, compute_bound: str = "") -> BranchGraph[str]:
    """From chains such as ``"a b c; d c"``."""
    after: dict[str, list[str]] = {}
    for chain in text.split(";"):
        nodes = chain.split()
        for k, node in enumerate(nodes):
            after.setdefault(node, []).extend(nodes[k + 1 : k + 2])
    return BranchGraph(after, lambda n: n not in compute_bound.split())


def shown(found: Candidates[str]) -> str:
    return f"{found.pattern} {found.common or '-'}: {', '.join(' '.join(b) for b in found.branches)}"


def common(made: BranchGraph[str]) -> list[str]:
    return [shown(c) for c in made.common_node_sets() if len(c.branches) > 1]


def independent(made: BranchGraph[str], visited: str = "", most: int = 7) -> list[str]:
    return [shown(c) for c in made.independent_sets(most, visited.split())]


def test_figure_6a_is_a_multi_head_case() -> None:
    """All branches of the common tail."""
    made = graph("a1 a2 sum; b1 b2 sum; c1 sum")
    assert common(made) == ["multi-head sum: a2 a1, b2 b1, c1"]


def test_figure_6b_has_the_branches_of_mul_and_then_a_virtual_tail() -> None:
    made = graph("a1 a2 mul; b1 mul; c1 c2")
    assert common(made) == ["multi-head mul: a2 a1, b1"]
    assert independent(made, "a1 a2 b1") == ["virtual tail -: c2 c1, mul"]


def test_figure_6c_has_seven_branches() -> None:
    """Clean operators with a common tail; then, under virtual ones, addn beside add, and seven sub-graphs, of which
    those that begin earlier come first."""
    cleans = ";".join(f"clean{k} addn" for k in range(7))
    updates = ";".join(f"assign{k} sum{k}" for k in range(7))
    made = graph(f"{cleans};product add;{updates}", "product")
    assert common(made) == ["multi-head addn: " + ", ".join(f"clean{k}" for k in range(7))]
    visited = " ".join(f"clean{k}" for k in range(7))
    first = "virtual tail -: " + ", ".join(f"sum{k} assign{k}" for k in range(7))
    assert independent(made, visited) == [first, "virtual tail -: addn, add"]


def test_a_backward_path_ends_before_a_multi_tail_node_and_at_a_multi_head_node() -> None:
    made = graph("fork a sum; fork other; x join sum; y join")
    assert "multi-head sum: a, join" in common(made)


def test_a_forward_path_ends_before_a_multi_head_node_and_at_a_multi_tail_node() -> None:
    made = graph("head a join; head b fork; z join; fork c; fork d")
    assert "multi-tail head: a, b fork" in common(made)


def test_compute_bound_nodes_are_walked_past() -> None:
    made = graph("a product b sum; c d sum", "product")
    assert common(made) == ["multi-head sum: b a, d c"]


def test_where_compute_bound_nodes_are_cut_out_sub_graphs_appear() -> None:
    made = graph("x product y; z", "product")
    assert independent(made) == ["virtual tail -: x, z, y"]
    assert independent(graph("product", "product")) == []


def test_a_virtual_head_where_there_is_one_tail() -> None:
    made = graph("a sum; b sum")
    assert independent(made) == ["virtual head -: a, b"]


def test_at_most_so_many_sub_graphs_at_once() -> None:
    made = graph(";".join(f"n{k}" for k in range(10)))
    assert [len(c.branches) for c in made.independent_sets(7, ())] == [7, 3]
    assert [len(c.branches) for c in made.independent_sets(16, ())] == [10]


@pytest.mark.parametrize("seed", range(40))
def test_branches_are_disjoint_and_a_path_each(seed: int) -> None:
    """No node twice; neighbours of a branch follow one another, past nodes that are compute-bound."""
    rng = random.Random(seed)
    count = rng.randrange(2, 40)
    after = {k: sorted(rng.sample(range(k + 1, count), min(rng.randrange(3), count - k - 1))) for k in range(count)}
    bound = set(rng.sample(range(count), count // 5))
    made = BranchGraph(after, lambda n: n not in bound)
    for found in [*made.common_node_sets(), *made.independent_sets(7, ())]:
        nodes = [n for b in found.branches for n in b]
        assert len(nodes) == len(set(nodes)) and not bound & set(nodes)
        for branch in found.branches:
            assert all(_leads(after, *sorted(pair)) for pair in pairwise(branch))


def _leads(after: dict[int, list[int]], a: int, b: int) -> bool:
    waiting: list[int] = [a]
    step: Callable[[int], list[int]] = after.__getitem__
    for node in waiting:
        if node == b:
            return True
        waiting += [n for n in step(node) if n <= b and n not in waiting]
    return False
