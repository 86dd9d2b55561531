"""Instances compute what the nodes computed, read only what they need, and overlap or wait where windows do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sympy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from daceopt.errors import Unsupported
from daceopt.ir.control import region
from daceopt.ir.control.region_builder import LoopBuilder
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.sub_graphs import HALOS, SubGraph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render
from daceopt.ops import lower_all
from daceopt.passes.transform import Outcome
from tests.properties.graphs import Maker
from tests.transformations.instances.graphs_of import assert_same, split, values
from tests.transformations.instances.machines import tiny
from tests.transformations.instances.networks import F, Network, resnet, stages
from tests.transformations.instances.random_networks import RandomNetwork
from transformations.instances._orders import HEURISTICS
from transformations.instances._units import units_of
from transformations.instances.instance_grouping import InstanceGrouping
from transformations.instances.instance_ordering import InstanceOrdering
from transformations.instances.instance_splitting import InstanceSplitting
from transformations.local.map_fusion import MapFusion


def test_figure_6_an_instance_depends_on_those_that_write_what_it_reads() -> None:
    units = units_of(split(stages(), tiny(512)))
    assert [list(readers) for readers in units.after] == [
        *([8], [8], [9], [9], [10], [10], [11], [11]),
        *([12], [12], [13], [13]),
        *([14], [14], []),
    ]


def test_factors_that_nest_make_parts_of_parts_and_no_whole() -> None:
    graph = split(stages(), tiny(512))
    wholes = {graph.part(name).whole for name in graph.arrays() if graph.is_part(name)}
    assert {len(graph.parts_of(name)) for name in wholes} == {2}  # each reader has an array of its own
    last = graph.outputs[0]
    assert not graph.parts_of(last)


def test_factors_that_do_not_nest_read_views_of_the_parts_that_they_need() -> None:
    net = Network(12, 8)
    x = net.relu(net.x)
    y = net.relu(x)
    graph = net.done(y)
    expected = values(graph)
    graph.sub_graphs = [SubGraph({x: 0}, 4), SubGraph({y: 0}, 3)]
    InstanceSplitting().run(graph)
    graph.validate()
    assert_same(graph, expected)
    assert [list(readers) for readers in units_of(graph).after] == [[4], [4, 5], [5, 6], [6], [], [], []]


def test_a_reader_of_more_instances_reads_a_piece_of_a_part() -> None:
    net = Network(8, 8)
    x = net.relu(net.x)
    y = net.relu(x)
    graph = net.done(y)
    expected = values(graph)
    graph.sub_graphs = [SubGraph({x: 0}, 2), SubGraph({y: 0}, 4)]
    InstanceSplitting().run(graph)
    assert_same(graph, expected)
    assert [list(readers) for readers in units_of(graph).after] == [[2, 3], [4, 5], [], [], [], []]


@pytest.mark.parametrize("clusters", [1, 2])
def test_a_network_in_instances_of_images(clusters: int) -> None:
    graph = split(resnet(8, (2, 1, 1), 4, 32), tiny(12_000, clusters=clusters))
    assert max(group.count for group in graph.sub_graphs) == 8
    for group in graph.sub_graphs:
        sizes = {len(nodes) for nodes in group.instance_nodes(graph)}
        assert len(group.instances) == group.count and len(sizes) == 1  # all alike
    assert set(graph.instance_positions()) >= {n for group in graph.sub_graphs for n in group.nodes(graph)}
    text = render(graph)
    assert render(parse(text)) == text


# ---------------------------------------------------------------- halos


def _rows(halos: str, layers: int = 3, count: int = 4) -> tuple[Graph, Outcome]:
    """Convolutions of 3x3 and a pool, in ``count`` instances of rows."""
    net = Network(1, 2, 32, 8)
    x = net.x
    written = []
    for _ in range(layers):
        x = net.conv(x, 2, 3)
        written.append(x)
    written.append(net.pool(x, 3, 2))
    graph = net.done(written[-1])
    expected = values(graph)
    graph.sub_graphs = [SubGraph(dict.fromkeys(written, 2), count, halos=halos)]
    outcome = InstanceSplitting().run(graph)
    graph.validate()
    assert_same(graph, expected)
    return graph, outcome


def _extents(graph: Graph) -> list[list[int]]:
    """Rows of what each node of an instance writes."""
    (group,) = graph.sub_graphs
    return [[int(graph.shape(name)[2]) for name in names] for names in group.instances]


def test_halos_that_are_recomputed_overlap_and_depend_on_nobody() -> None:
    graph, outcome = _rows("recomputed")
    assert outcome.sites == ["sub-graph 0: 4 nodes in 4 instances, 3 arrays with halos of their own"]
    assert _extents(graph)[1:3] == [[13, 11, 9, 4]] * 2  # two rows more for each layer below
    assert not any(units_of(graph).after)


def test_halos_that_are_kept_are_read_of_the_instance_before() -> None:
    graph, _ = _rows("kept")
    extents = _extents(graph)
    assert [sum(rows) for rows in zip(*extents)] == [32, 32, 32, 16]  # nothing is computed twice
    assert extents[0] == [10, 9, 8, 4] and extents[-1][-1] == 4
    assert [list(readers) for readers in units_of(graph).after] == [[1], [2], [3], []]


def test_an_instance_without_work_is_refused_with_its_reason() -> None:
    net = Network(1, 2, 8, 8)
    x = net.conv(net.conv(net.x, 2, 5), 2, 5)
    graph = net.done(x)
    (first,) = (n for n in graph.arrays() if graph.consumers(n) and graph.producers(n))
    graph.sub_graphs = [SubGraph({first: 2, x: 2}, 8, halos="kept")]
    outcome = InstanceSplitting().run(graph)
    assert outcome.sites == [] and "no elements" in outcome.near_misses[0]


def test_what_others_read_as_well_is_kept_though_halos_are_recomputed() -> None:
    net = Network(1, 2, 16, 8)
    x = net.relu(net.x)
    y = net.conv(x, 2, 3)
    graph = net.done(y, x)
    expected = values(graph)
    graph.sub_graphs = [SubGraph({x: 2, y: 2}, 4)]
    InstanceSplitting().run(graph)
    graph.validate()
    assert_same(graph, expected)
    assert [int(graph.shape(names[0])[2]) for names in graph.sub_graphs[0].instances] == [5, 4, 4, 3]


# ---------------------------------------------------------------- views, concatenations


def test_views_between_nodes_follow_their_parts() -> None:
    graph = Graph("heads")
    b = Builder(graph)
    x = graph.add_input("x", (8, 6, 4), F)
    y = b.elementwise(lambda v: sympy.tanh(v), x)
    z = b.elementwise(lambda v: v * 2, b.transpose(y, (1, 0, 2)))
    graph.add_output(z)
    expected = values(graph)
    graph.sub_graphs = [SubGraph({y: 0, z: 1}, 4)]
    InstanceSplitting().run(graph)
    graph.validate()
    assert_same(graph, expected)
    assert not any(units_of(graph).after) and not graph.has(y)


def test_concatenations_in_parts_stay_parts() -> None:
    net = Network(4, 2, 4)
    one, other = net.relu(net.x), net.relu(net.x)
    whole = net.graph.add_array("whole", (4, 4, 4), F)
    parts = [net.graph.add_part(whole, "part", [0, start, 0], (4, 2, 4)) for start in (0, 2)]
    for name, part in zip((one, other), parts, strict=True):
        net.b.copy(name, out=part)
    last = net.relu(whole)
    graph = net.done(last)
    expected = values(graph)
    graph.sub_graphs = [SubGraph(dict.fromkeys((one, other, *parts, last), 0), 4)]
    InstanceSplitting().run(graph)
    graph.validate()
    assert_same(graph, expected)
    assert not any(units_of(graph).after)  # an image of the whole is two images of its parts


def test_bodies_of_control_flow_have_instances_of_their_own() -> None:
    graph = Graph("loop")
    b = Builder(graph)
    x = graph.add_input("x", (64, 8), F)
    loop = LoopBuilder(graph, "loop")
    state = loop.carry(b.elementwise(lambda v: sympy.tanh(v), x))
    last = graph.add_array("last", (64, 8), F)
    changed = loop.b.elementwise(lambda v: v + 1, loop.b.elementwise(lambda v: v * v, state))
    loop.finish([changed], [last], [], trips=3)
    graph.add_output(b.elementwise(lambda v: v * 2, last))
    expected = values(graph)
    InstanceGrouping(machine=tiny(1024), buffer="local").run(graph)
    InstanceSplitting().run(graph)
    InstanceOrdering().run(graph)
    graph.validate()
    assert_same(graph, expected)
    (body,) = region.bodies(graph)
    assert [group.count for group in body.sub_graphs] == [4] and len(body.nodes()) == 8


# ---------------------------------------------------------------- random graphs


def check(graph: Graph, seed: int) -> bool:
    """Grouped for a machine of random size, split and ordered; are there any instances?"""
    rng = np.random.default_rng(seed)
    expected, before = values(graph), len(graph.nodes())
    sizes = [graph.size(n) for n in graph.arrays()]
    most = max((n for n in sizes if isinstance(n, int)), default=1)
    machine = tiny(int(4 * most / rng.choice([0.3, 1, 2, 4, 8])) + 64, clusters=int(rng.choice([1, 1, 2])))
    InstanceGrouping(machine=machine, buffer=str(rng.choice(["local", ""]))).run(graph)
    halos = str(rng.choice(["", *HALOS]))
    graph.sub_graphs = [replace(group, halos=halos or group.halos) for group in graph.sub_graphs]
    InstanceSplitting().run(graph)
    graph.validate()
    units = units_of(graph)
    peaks = {name: units.peak(heuristic(units)) for name, heuristic in HEURISTICS.items()}
    InstanceOrdering(by=str(rng.choice([*peaks, "best", "optimal"])), seconds=1.0, variables=300).run(graph)
    graph.validate()
    assert_same(graph, expected)
    return len(graph.nodes()) > before


def _network(seed: int) -> bool:
    rng = np.random.default_rng(seed + 1)
    graph = RandomNetwork(seed).build(int(rng.integers(4, 18)))
    if rng.random() < 0.5:
        MapFusion().run(graph)
    return check(graph, seed)


def _general(seed: int, kind: str) -> bool:
    graph = Maker(seed, kind).build()
    try:
        lower_all(graph)
    except Unsupported:
        return False
    if seed % 2:
        MapFusion().run(graph)
    return check(graph, seed)


def test_random_networks_most_of_which_have_instances() -> None:
    assert sum(map(_network, range(15))) >= 10


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.sampled_from(["small", "large", "empty", "open"]))
@example(1253223, "empty")  # reduces a view of nothing
@example(92564112, "open")  # of an array and a view of it, which is less depends on a size
def test_random_graphs(seed: int, kind: str) -> None:
    _general(seed, kind)


@pytest.mark.fuzz
@settings(max_examples=1000, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**9))
def test_a_thousand_random_networks(seed: int) -> None:
    _network(seed)


@pytest.mark.fuzz
@settings(max_examples=1000, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**9), st.sampled_from(["small", "large", "empty", "open"]))
def test_a_thousand_random_graphs(seed: int, kind: str) -> None:
    _general(seed, kind)
