"""Which nodes become one sub-graph: the figures of GraphTurbo, networks, and what is left alone with its reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import dace
import pytest
import sympy

from daceopt.cost.machines import get
from daceopt.errors import DaceoptError
from daceopt.ir.control import region
from daceopt.ir.control.region_builder import LoopBuilder
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes import library
from daceopt.ir.nodes.builder import Builder
from daceopt.passes.transform import Outcome
from daceopt.passes.verification import contents
from tests.transformations.instances.machines import tiny
from tests.transformations.instances.networks import F, Network, bottleneck, resnet, stages
from transformations.instances._cuts import cuts_of
from transformations.instances._merging import Merging
from transformations.instances._orders import HEURISTICS
from transformations.instances._splitting_information import Budget
from transformations.instances._units import units_of
from transformations.instances.instance_grouping import InstanceGrouping


def _factors(graph: Graph) -> list[int]:
    return [group.factor for group in graph.sub_graphs]


def _group(graph: Graph, size: int, **others: int) -> Outcome:
    return InstanceGrouping(machine=tiny(size, **others), buffer="local").run(graph)


def test_figure_3a_each_stage_has_its_own_number_of_instances() -> None:
    graph = stages()
    _group(graph, 512)
    assert _factors(graph) == [8, 4, 2, 1]
    assert all(set(group.axes.values()) == {0} for group in graph.sub_graphs)


def test_sub_graphs_are_split_more_finely_where_asked() -> None:
    """As often as their positions stand there; the first has one instance for each image already."""
    graph = stages()
    found = InstanceGrouping(machine=tiny(512), buffer="local", finer=(0, 2, 3, 3)).run(graph)
    assert _factors(graph) == [8, 4, 4, 4]
    assert sum("cannot be split more finely" in reason for reason in found.near_misses) == 1
    with pytest.raises(DaceoptError, match="positions of its 4 sub-graphs"):
        InstanceGrouping(machine=tiny(512), buffer="local", finer=(4,)).run(stages())


@pytest.mark.parametrize("images", [8, 1])
def test_figure_5_a_conv_and_an_identity_block_become_one_sub_graph(images: int) -> None:
    """Figure 5(a): straight patterns are layers up to where branches meet; (c): all of it."""
    net = Network(8, 16, 8, 8)
    x = bottleneck(net, net.x, 4, 1, project=True)
    graph = net.done(bottleneck(net, x, 4, 1, project=False))
    layers, blocks = _stepwise(graph, images * 40 * 4 * 64)  # 40 channels of an image are alive at most
    assert layers == ["conv v conv v conv", "conv", "v", "conv v conv v conv", "v"]
    assert len(blocks) == 1


def _stepwise(graph: Graph, size: int) -> list[list[str]]:
    """The sub-graphs by their nodes' labels after the first pattern, and in the end."""
    planned = [cuts_of(graph, node) for node in graph.nodes()]
    merging = Merging(graph, planned, Budget(tiny(size), "local"))
    found = []
    for step in (merging.straight, merging.run):
        step()
        groups = [sorted(merging.clusters.members(k)) for k in merging.clusters.topological()]
        found.append([" ".join(planned[k].node.label for k in members) for members in groups])
    return found


def _resnet_50(batch: int, stored: int, size: int) -> tuple[Graph, list[list[int]]]:
    """ResNet-50 grouped for stcp920, and which of its blocks (0 to 15) end in each sub-graph of several nodes."""
    graph = resnet(batch, size=size)
    InstanceGrouping(machine=replace(get("stcp920"), float_bytes=stored)).run(graph)
    adds = [n for n in graph.nodes() if sum(bool(graph.producers(a)) for a in graph.inputs_of(n) if a) == 2]
    groups = [group for group in graph.sub_graphs if len(group.axes) > 1]
    assert {group.clusters for group in graph.sub_graphs} == {4}
    assert [group.factor for group in groups] == [8, 4, 2, 1]
    return graph, [[adds.index(node) for node in group.nodes(graph) if node in adds] for group in groups]


@pytest.mark.parametrize(("batch", "stored"), [(64, 2), (32, 4)])
def test_resnet_50_has_8_4_2_and_1_instances_on_stcp920(batch: int, stored: int) -> None:
    """64 images in half precision (table 2), or 32 in single, a quarter of them on each cluster, in 8 MiB: not even one
    image fits the local buffers of a cluster, 512 KiB. The first block of a stage, whose input has the size of the
    stage before, runs with that."""
    graph, blocks = _resnet_50(batch, stored, 224)
    assert blocks == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11, 12, 13], [14, 15]]
    assert sum(len(group.nodes(graph)) for group in graph.sub_graphs) == len(graph.nodes())


def test_a_little_less_memory_makes_the_sub_graphs_of_resnet_50_its_stages() -> None:
    """Of images of 192x192 the first block of a stage fits with the others, but for one convolution."""
    _, blocks = _resnet_50(64, 2, 192)
    assert blocks == [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10, 11, 12], [13, 14, 15]]


def test_what_fits_is_not_split() -> None:
    graph = resnet(2, (1, 1), 4, 16)
    _group(graph, 1 << 24)
    assert _factors(graph) == [1]


def test_an_axis_of_prime_length_does_not_join_what_the_batch_keeps_apart() -> None:
    """Four images of 13 tokens: all together need 4 instances of the batch, or 13, one for each token."""
    graph = Graph("tokens")
    b, first, scale = Builder(graph), graph.add_input("x", (4, 13, 16, 1), F), graph.add_input("s", (1, 1, 1, 4), F)
    x = b.elementwise(lambda v: v + 1, first)
    for _ in range(2):
        wide = b.elementwise(lambda v: v * v, b.elementwise(lambda v, s: v * s, x, scale))
        x = b.elementwise(lambda v, w: v + w, x, b.reduce("sum", None, wide, axes=(3,), keepdims=True))
    graph.add_output(x)
    _group(graph, 9000)
    assert max(_factors(graph)) == 2
    assert {axis for group in graph.sub_graphs if group.factor > 1 for axis in group.axes.values()} == {0}


def test_a_convolution_and_its_activation_stay_together() -> None:
    """Before all patterns: a layer of figure 2. What two layers read is none, nor is what no weights are read for."""
    net = Network(8, 4, 16, 16)
    x = net.relu(net.relu(net.conv(net.x, 8)))
    y = net.conv(x, 8)
    graph = net.done(net.add_relu(net.relu(y), y))
    planned = [cuts_of(graph, node) for node in graph.nodes()]
    merging = Merging(graph, planned, Budget(tiny(45_000), "local"))
    merging.layers()
    groups = [sorted(merging.clusters.members(k)) for k in merging.clusters.topological()]
    labels = [" ".join(planned[k].node.label for k in members) for members in groups]
    assert labels == ["conv v v", "conv", "v", "v"]


def _attention(batch: int, tokens: int, size: int) -> Graph:
    """Queries, keys and values by one product, then scores of all tokens, which are as large as tokens squared."""
    graph = Graph("attention")
    b = Builder(graph)
    x = b.elementwise(lambda v: sympy.tanh(v), graph.add_input("x", (batch, tokens, size), F))
    wide = b.matmul(x, graph.add_input("w", (size, 3 * size), F))
    q, k, v = (b.slice(wide, [i * size], [(i + 1) * size], axes=[2]) for i in range(3))
    scores = b.elementwise(lambda s: sympy.exp(s), b.matmul(q, b.transpose(k, (0, 2, 1))))
    found = b.matmul(b.matmul(scores, v), graph.add_input("u", (size, size), F))
    graph.add_output(b.elementwise(lambda v, w: v + w, x, found))
    return graph


def test_attention_that_reads_what_waits_has_small_instances() -> None:
    """They read no weights, so more of them cost nothing, and leave room to queries, keys and values."""
    graph = _attention(2, 128, 16)
    _group(graph, 95_000)
    (scores,) = (group for group in graph.sub_graphs if any(graph.shape(n)[-2:] == (128, 128) for n in group.axes))
    assert scores.factor > 2 and min(_factors(graph)) == 1


def test_a_match_edits_nothing_and_a_second_run_finds_nothing() -> None:
    graph = stages()
    before = contents(graph)
    step = InstanceGrouping(machine=tiny(512), buffer="local")
    assert len(list(step.match(graph))) == 4 and contents(graph) == before
    assert len(step.run(graph).sites) == 4 and step.run(graph).sites == []


# ---------------------------------------------------------------- up and down


def _u_net(depth: int, size: int = 32) -> Graph:
    net = Network(8, 4, size, size)
    x, skips = net.x, []
    for level in range(depth):
        x = net.relu(net.conv(x, 4 << level, 3))
        skips.append(x)
        x = net.pool(x, 2, 2)
    x = net.relu(net.conv(x, 4 << depth, 3))
    for level in reversed(range(depth)):
        x = net.conv(net.up(x), 4 << level, 3)
        x = net.relu(net.conv(net.add_relu(x, skips[level]), 4 << level, 3))
    return net.done(x)


def test_up_sampling_does_not_pass_its_factor_back() -> None:
    """Section 3.6: a decoder is an encoder read backwards, so its stages stay apart, too."""
    graph = _u_net(3)
    _group(graph, 96 << 10)
    factors = _factors(graph)
    lowest = factors.index(min(factors))
    assert min(factors) == 1 and factors[0] > 1 and factors[-1] > 1
    assert factors[: lowest + 1] == sorted(factors[: lowest + 1], reverse=True)
    assert factors[lowest:] == sorted(factors[lowest:])


def test_more_channels_are_no_up_sampling_and_resizing_is() -> None:
    net = Network(2, 4, 8, 8)
    wide = net.conv(net.relu(net.x), 64)
    graph = net.done(net.relu(net.up(wide)))
    found = [cuts_of(graph, n) for n in graph.nodes()]
    assert [cuts.sampling for cuts in found if cuts.node.label == "conv"] == [1]
    assert [cuts.sampling for cuts in found if wide in cuts.reads] == [4]


@pytest.mark.parametrize("layer", ["pool", "stride", "mean"])
def test_windows_with_steps_and_reductions_are_down_sampling(layer: str) -> None:
    net = Network(2, 4, 8, 8)
    x = net.relu(net.x)
    made = {
        "pool": lambda: net.pool(x, 3, 2),
        "stride": lambda: net.conv(x, 64, 1, 2),
        "mean": lambda: net.b.reduce("sum", None, x, axes=(2, 3)),
    }[layer]()
    graph = net.done(made)
    assert cuts_of(graph, graph.producer(made)).sampling == (Fraction(1, 64) if layer == "mean" else Fraction(1, 4))


# ---------------------------------------------------------------- what is left alone


def test_sizes_that_are_open() -> None:
    graph = Graph("open")
    n = dace.symbolic.symbol("n", dace.int64)
    x = graph.add_input("x", (n, 8), F)
    graph.symbols["n"] = (x, 0)
    b = Builder(graph)
    graph.add_output(b.elementwise(lambda v: sympy.tanh(v), x))
    graph.add_output(b.elementwise(lambda v: v * 2, graph.add_input("y", (64, 8), F)))
    outcome = _group(graph, 512)
    assert [len(group.axes) for group in graph.sub_graphs if group.factor > 1] == [1]
    assert any("n elements along an axis, which is known when running" in miss for miss in outcome.near_misses)


def test_control_flow_and_host_calls() -> None:
    graph = Graph("mixed")
    b = Builder(graph)
    x = graph.add_input("x", (64, 8), F)
    y = b.elementwise(lambda v: sympy.tanh(v), x)
    loop = LoopBuilder(graph, "loop")
    state = loop.carry(y)
    last = graph.add_array("last", (64, 8), F)
    loop.finish([loop.b.elementwise(lambda v: v + 1, state)], [last], [], trips=3)
    called = graph.add_array("called", (64, 8), F)
    call = library.HostCall("call", inputs=["In0"], outputs=["Out0"])
    graph.add_node(call, {"In0": last}, {"Out0": called})
    graph.add_output(b.elementwise(lambda v: v * 2, called))
    outcome = _group(graph, 1024)
    misses = " / ".join(outcome.near_misses)
    assert "control flow" in misses and "takes whole arrays" in misses
    split = [node for group in graph.sub_graphs if group.factor > 1 for node in group.nodes(graph)]
    assert len(split) == 2 and all(call is not node for node in split)
    assert list(region.bodies(graph))


def test_an_instance_that_no_buffer_has_room_for() -> None:
    graph = Graph("large")
    x = graph.add_input("x", (4, 4096), F)
    graph.add_output(Builder(graph).reduce("sum", None, x, axes=(1,)))
    outcome = _group(graph, 64)
    assert not graph.sub_graphs
    assert any("bytes are alive" in miss and "64 bytes (local" in miss for miss in outcome.near_misses)


def test_an_empty_graph_and_an_empty_array() -> None:
    assert _group(Graph("nothing"), 64).sites == []
    graph = Graph("empty")
    graph.add_output(Builder(graph).elementwise(lambda v: v + 1, graph.add_input("x", (0, 4), F)))
    assert any("is empty" in miss for miss in _group(graph, 64).near_misses)


def test_wrong_options_say_what_there_is() -> None:
    with pytest.raises(DaceoptError, match="expected one of local, shared"):
        InstanceGrouping(buffer="l2").run(stages())
    with pytest.raises(DaceoptError, match="did you mean 'stcp920'"):
        InstanceGrouping(machine="stcp92").run(stages())


def test_a_sum_over_the_batch_ends_a_sub_graph() -> None:
    """Statistics of a whole batch need all of it: no instance of the batch has them alone."""
    net = Network(8, 4, 8, 8)
    x = net.relu(net.x)
    mean = net.b.reduce("sum", None, x, axes=(0, 2, 3), keepdims=True)
    graph = net.done(net.b.elementwise(lambda v, m: v - m, x, mean))
    _group(graph, 4 * 4 * 64 * 2)
    assert all(len(group.axes) < 3 for group in graph.sub_graphs if group.factor > 1)


# ---------------------------------------------------------------- which buffer, which halo


def test_the_buffer_follows_from_the_time_that_data_takes() -> None:
    graph = stages()
    (first, *_) = InstanceGrouping(machine=tiny(512, shared=4096)).run(graph).sites
    assert "(local)" in first
    graph = resnet(2, (1,), 4, 32)
    outcome = InstanceGrouping(machine=tiny(64, shared=1 << 16)).run(graph)
    assert all("(shared)" in site for site in outcome.sites)  # no instance fits 64 bytes


def test_sites_show_what_halos_cost() -> None:
    net = Network(1, 4, 64, 64)
    x = net.x
    for _ in range(3):
        x = net.relu(net.conv(x, 4, 3))
    (site,) = _group(net.done(x), 50_000).sites
    assert "halos recomputed (" in site and ", kept " in site


# ---------------------------------------------------------------- time


def _long(blocks: int) -> Graph:
    graph = Graph("long")
    b = Builder(graph)
    x = graph.add_input("x", (8, 16), F)
    for _ in range(blocks):
        y = b.elementwise(lambda v: v + 1, b.elementwise(lambda v: v * 2, x))
        x = b.elementwise(lambda v, w: v + w, x, y)
    graph.add_output(x)
    return graph


def _calls(function: Callable[[], object]) -> int:
    """How many Python functions run meanwhile."""
    count = 0

    def called(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_grouping_and_ordering_grow_with_the_network() -> None:
    trials, merges, orders = [], [], []
    for blocks in (50, 200):
        graph = _long(blocks)
        planned = [cuts_of(graph, node) for node in graph.nodes()]
        merging = Merging(graph, planned, Budget(tiny(512), "local"))
        merges.append(_calls(merging.run))
        assert len(merging.groups) == 1
        trials.append(merging.trials)
        orders.append(_calls(lambda g=graph: [order(units_of(g)) for order in HEURISTICS.values()]))
    assert trials[1] <= 4.1 * trials[0]
    assert merges[1] <= 4 * 1.4 * merges[0]  # n log n: profiles are trees
    assert orders[1] <= 4.2 * orders[0]
