"""Clusters of a DAG's nodes: the quotient stays acyclic, refusals name a path, and work grows with what is near."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.ir.fusion import clusters
from daceopt.ir.fusion.clusters import Clusters, CyclicMerge


def of(edges: Iterable[tuple[int, int]], count: int) -> Clusters[int]:
    successors: dict[int, list[int]] = {n: [] for n in range(count)}
    for a, b in edges:
        successors[a].append(b)
    return Clusters(successors)


class Reference:
    """The same by networkx: the quotient graph is made anew for each question."""

    def __init__(self, edges: list[tuple[int, int]], count: int):
        self.graph = nx.DiGraph(edges)
        self.graph.add_nodes_from(range(count))
        self.parts = [[n] for n in range(count)]

    def part(self, node: int) -> int:
        return next(k for k, part in enumerate(self.parts) if node in part)

    def quotient(self, parts: list[list[int]]) -> nx.DiGraph:
        home = {n: k for k, part in enumerate(parts) for n in part}
        found = nx.DiGraph((home[a], home[b]) for a, b in self.graph.edges if home[a] != home[b])
        found.add_nodes_from(range(len(parts)))
        return found

    def merged(self, a: int, b: int) -> list[list[int]]:
        i, j = self.part(a), self.part(b)
        return [p for k, p in enumerate(self.parts) if k not in (i, j)] + [self.parts[i] + self.parts[j]]

    def may_merge(self, a: int, b: int) -> bool:
        return nx.is_directed_acyclic_graph(self.quotient(self.merged(a, b)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], list[tuple[int, int]]]:
    count = draw(st.integers(2, 14))
    name = draw(st.permutations(range(count)))  # names say nothing about the order
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    edges = [(name[a], name[b]) for a, b in draw(st.lists(st.sampled_from(pairs), max_size=30, unique=True))]
    node = st.integers(0, count - 1)
    merges = draw(st.lists(st.tuples(node, node).filter(lambda p: p[0] != p[1]), max_size=20))
    return count, edges, merges


@settings(max_examples=100)
@given(cases())
def test_merges_are_refused_exactly_where_networkx_finds_a_cycle(case: tuple) -> None:
    count, edges, merges = case
    found, reference = of(edges, count), Reference(edges, count)
    for a, b in merges:
        if reference.part(a) == reference.part(b):
            with pytest.raises(ValueError, match="one cluster already"):
                found.merge(a, b)
        elif reference.may_merge(a, b):
            found.merge(a, b)
            reference.parts = reference.merged(a, b)
        else:
            with pytest.raises(CyclicMerge) as error:
                found.merge(a, b)
            check_path(found, reference, [int(n) for n in error.value.path], a, b)
        check_same(found, reference)


def check_path(found: Clusters[int], reference: Reference, path: list[int], a: int, b: int) -> None:
    assert {path[0], path[-1]} == {found.leader(a), found.leader(b)} and len(path) > 2
    quotient = reference.quotient(reference.parts)
    assert all(quotient.has_edge(reference.part(p), reference.part(q)) for p, q in pairwise(path))


def check_same(found: Clusters[int], reference: Reference) -> None:
    assert {found.members(n) for n in found} == {tuple(p) for p in reference.parts} and len(found) == len(
        reference.parts
    )
    quotient = reference.quotient(reference.parts)
    for n in found:
        after, before = ({reference.part(x) for x in side} for side in (found.successors(n), found.predecessors(n)))
        assert after == set(quotient.successors(reference.part(n)))
        assert before == set(quotient.predecessors(reference.part(n)))
    place = {reference.part(n): k for k, n in enumerate(found.topological())}
    assert all(place[p] < place[q] for p, q in quotient.edges) and len(place) == len(reference.parts)


@settings(max_examples=60)
@given(cases())
def test_paths_are_those_of_two_or_more_edges(case: tuple) -> None:
    count, edges, _ = case
    found, graph = of(edges, count), Reference(edges, count).graph
    for a in range(count):
        for b in range(count):
            longer = any(nx.has_path(graph, n, b) for n in graph.successors(a) if n != b)
            path = found.path(a, b)
            assert (path is not None) == longer
            assert path is None or (path[0] == a and path[-1] == b and nx.is_path(graph, path) and len(path) > 2)


def test_a_path_that_only_a_merge_makes() -> None:
    """2 and 3 became one: what 2 needs now runs before all that needs 3."""
    found = of([(0, 1), (1, 2), (3, 4), (0, 4)], 5)
    assert found.obstacle(0, 4) is None
    found.merge(3, 2)
    with pytest.raises(CyclicMerge, match="0 and 4 cannot be one cluster: 0 -> 1 -> 3 -> 4 would be a cycle"):
        found.merge(0, 4)
    assert found.members(2) == (3, 2)


def test_what_is_wrong_is_told() -> None:
    with pytest.raises(ValueError, match="the graph has a cycle"):
        of([(0, 1), (1, 2), (2, 1)], 3)
    with pytest.raises(KeyError):
        of([], 2).leader(7)
    assert list(of([], 0)) == []


def network(layers: int, width: int = 10) -> list[tuple[int, int]]:
    """Chains with a shortcut around each layer, as residual networks have them, and one node that all layers read."""
    edges = [(0, 1)]
    for k in range(layers):
        first = 1 + k * width
        edges += [(n, n + 1) for n in range(first, first + width)]
        edges += [(first, first + width), (0, first + 3)]
    return edges


def _expansions(layers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Nodes that searches look at while each node joins what it reads, as long as a cluster has less than 8."""
    seen = 0
    plain = clusters._Search._expand

    def counted(self: clusters._Search[int], node: int) -> None:
        nonlocal seen
        seen += 1
        plain(self, node)

    monkeypatch.setattr(clusters._Search, "_expand", counted)
    edges = network(layers)
    found = of(edges, 2 + layers * 10)
    for a, b in edges:
        if found.leader(a) != found.leader(b) and len(found.members(a)) + len(found.members(b)) <= 8:
            try:
                found.merge(a, b)
            except CyclicMerge:
                continue
    monkeypatch.setattr(clusters._Search, "_expand", plain)
    return seen


def test_the_work_grows_with_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (_expansions(layers, monkeypatch) for layers in (50, 500))
    assert large < 11 * small  # 5,000 nodes, and 500


def test_any_two_clusters_of_a_large_random_graph() -> None:
    draw = random.Random(0)
    edges = [(draw.randrange(max(0, n - 50), n), n) for n in range(1, 400) for _ in range(3)]
    found, reference = of(edges, 400), Reference(edges, 400)
    for _ in range(60):
        a, b = draw.sample(range(400), 2)
        if reference.part(a) != reference.part(b):
            allowed = reference.may_merge(a, b)
            assert allowed == (found.obstacle(a, b) is None)
            if allowed:
                found.merge(a, b)
                reference.parts = reference.merged(a, b)
    check_same(found, reference)


def test_a_copy_merges_in_its_own_way() -> None:
    clusters = Clusters({"a": ["b"], "b": ["c"], "c": []}, ordered=True)
    other = clusters.copy()
    other.merge("a", "b")
    assert len(clusters) == 3
    assert len(other) == 2
    assert clusters.members("a") == ("a",)
    assert other.members("b") == ("a", "b")
    assert sorted(clusters.positions().values()) == [0, 1, 2]


def test_an_order_that_is_given_is_kept_or_refused() -> None:
    clusters = Clusters({"a": [], "b": ["c"], "c": []}, ordered=True)
    assert clusters.topological() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="c stands behind one of its successors"):
        Clusters({"b": [], "c": ["b"]}, ordered=True)


def test_what_is_bypassed_has_one_reader_less() -> None:
    clusters = Clusters({"a": ["p"], "p": ["b", "c"], "b": [], "c": []}, ordered=True)
    clusters.bypass("p", "b")
    assert clusters.predecessors("b") == ("a",)
    assert clusters.successors("p") == ("c",)
    assert set(clusters.successors("a")) == {"p", "b"}
    with pytest.raises(ValueError, match="no edge leads from p to b"):
        clusters.bypass("p", "b")
