"""Runs of small graphs by hand: where arrays live, what moves, and how long that takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import dace
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.cost import machines
from daceopt.cost.core_bindings import plain
from daceopt.cost.machines import Buffer, MachineModel, Unit
from daceopt.cost.simulator import Kernels, Policy, run
from daceopt.cost.simulator.run import EXCHANGE, _Simulation
from daceopt.cost.simulator.tile_pipeline import OVERLAPS
from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.placements import Placement
from daceopt.ir.graph.sub_graphs import SubGraph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.splits import split
from tests.cost.simulator.test_footprint import SIZES, halves, walked
from tests.strategies import graphs

F = dace.float32
PLAIN = Policy(keep="memory", pipelined=False)
STCP = machines.get("stcp920")
UNITS = (Unit("M", ("product",), 1e3), Unit("V", ("element-wise", "multiply-accumulate"), 1e2))
SMALL = MachineModel("small", 1, 2, UNITS, Buffer(512, 1e6, 128), Buffer(4096, 1e4, 1024), Buffer(1 << 20, 1e3), 1e6)


def product_chain(count: int = 2, rows: int = 16, width: int = 8) -> Graph:
    """``count`` products, each with a tanh behind it."""
    graph = Graph("chain")
    b, x = Builder(graph), graph.add_input("x", (rows, width), F)
    for _ in range(count):
        x = b.elementwise(lambda v: sympy.tanh(v), b.matmul(x, graph.add_input("w", (width, width), F)))
    graph.add_output(x)
    return graph


def local(graph: Graph, cores: int) -> Graph:
    names = [n for node in graph.nodes() for n in graph.outputs_of(node)]
    graph.placements = {n: Placement("local", plain(graph, n, cores)) for n in names}
    return graph


def test_what_follows_a_product_is_in_its_layer() -> None:
    graph = product_chain()
    layers = Kernels(graph, STCP).layers
    assert [len(layer.nodes) for layer in layers] == [2, 2]
    assert [list(layer.work) for layer in layers] == [["product", "element-wise"]] * 2
    first = layers[0]
    assert first.reads == {"x_1": 2 * 16 * 8, "w_2": 2 * 8 * 8} and sum(first.writes.values()) == 2 * 16 * 8


def test_a_result_with_two_readers_ends_its_layer() -> None:
    graph = Graph("forked")
    b, x = Builder(graph), graph.add_input("x", (16, 8), F)
    y = b.matmul(x, graph.add_input("w", (8, 8), F))
    for function in (sympy.exp, sympy.tanh):
        graph.add_output(b.elementwise(lambda v, f=function: f(v), y))
    assert [len(layer.nodes) for layer in Kernels(graph, STCP).layers] == [1, 1, 1]


def test_a_later_operand_moves_no_layer_before_its_writer() -> None:
    """y = tanh(x @ w) + exp(z): the sum runs behind both, wherever it joins."""
    graph = Graph("joined")
    b, x, z = Builder(graph), graph.add_input("x", (16, 8), F), graph.add_input("z", (16, 8), F)
    left = b.elementwise(lambda v: sympy.tanh(v), b.matmul(x, graph.add_input("w", (8, 8), F)))
    right = b.elementwise(lambda v: sympy.exp(v), z)
    graph.add_output(b.elementwise(lambda u, v: u + v, left, right))
    written: set[str] = set()
    for layer in Kernels(graph, STCP).layers:
        assert all(name in written or graph.is_given(name) for name in layer.reads)
        written.update(layer.writes)


def test_layer_by_layer_all_goes_through_memory() -> None:
    found = run(product_chain(), STCP, policy=PLAIN)
    assert found.places_by_level() == {"local": 0, "shared": 0, "memory": 2} and found.kernels == 2
    assert found.traffic == {"local": 0, "shared": 0, "memory": 2 * (4 * 16 * 8 + 2 * 8 * 8), EXCHANGE: 0}


def test_in_local_buffers_only_the_ends_go_through_memory() -> None:
    found = run(local(product_chain(), 8), STCP)
    assert found.places_by_level() == {"local": 1, "shared": 0, "memory": 1}
    assert found.traffic["memory"] == 2 * (16 * 8 + 2 * 8 * 8 + 16 * 8)
    assert found.traffic["local"] == 2 * (16 * 8 + 16 * 8)
    assert found.occupancy == ((256, 0), (256, 0))


def test_the_time_of_one_layer_is_what_its_memory_takes() -> None:
    """1 core reads 2 * 64 + 64 floats of 4 bytes in four tiles, computes, writes: the last write is not hidden."""
    graph = Graph("copy")
    x = graph.add_input("x", (256,), F)
    graph.add_output(Builder(graph).elementwise(lambda v: v + 1, x))
    found = run(graph, SMALL, policy=PLAIN)
    read, written, work = 1024 / 1e3, 1024 / 1e3, 256 / 200
    assert found.seconds >= read + written
    assert found.seconds <= read + written + work + 0.2
    assert found.cycles == pytest.approx(found.seconds * 1e6, abs=1)
    assert found.busy["DMA"] == pytest.approx((read + written) / found.seconds)


def test_instances_are_kernels_and_weights_stay() -> None:
    graph = product_chain(2, 64, 8)
    parts = [split(graph, node, 0, 4) for node in graph.nodes()]
    graph.order = [node for instance in zip(*parts) for node in instance]
    names = [[graph.outputs_of(node)[0] for node in instance] for instance in zip(*parts)]
    graph.sub_graphs = [SubGraph({n: 0 for own in names for n in own}, 4, instances=tuple(map(tuple, names)))]
    local(graph, 8)
    found = run(graph, STCP)
    assert found.kernels == 4 and len(found.layers) == 8
    assert sorted(found.promoted) == ["w_2", "w_5"]
    assert found.traffic["memory"] == 2 * (64 * 8 + 2 * 8 * 8 + 64 * 8)
    assert found.traffic["shared"] == 2 * (2 * 8 * 8) + 2 * 4 * (2 * 8 * 8)


def test_full_buffers_spill_one_level_down() -> None:
    """Of two cores with 384 bytes each for results, and 3072 in the shared buffer: 256 fit once, 8192 nowhere."""
    found = run(local(product_chain(3, 256, 8), 2), SMALL)
    assert found.places_by_level() == {"local": 0, "shared": 0, "memory": 3} and len(found.spilled) == 2
    tight = run(local(product_chain(3, 16, 8), 2), SMALL)
    assert tight.places_by_level() == {"local": 1, "shared": 1, "memory": 1} and len(tight.spilled) == 1
    assert tight.traffic["local"] == tight.traffic["shared"] == 2 * 4 * 16 * 8


def test_overlap_is_faster_and_moves_the_same() -> None:
    graph = local(product_chain(6, 128, 64), 8)
    apart, together = run(graph, STCP, policy=Policy(pipelined=False)), run(graph, STCP)
    assert together.seconds < apart.seconds and together.traffic == apart.traffic


def test_layers_overlap_where_there_is_room_and_nothing_is_spilled_for_it() -> None:
    """Results of 2048 bytes in a shared buffer of 3072 or of 8192: two are alive beside a third, or not."""
    graph = product_chain(4, 128, 8)
    names = [n for node in graph.nodes() for n in graph.outputs_of(node)]
    graph.placements = {n: Placement("shared", plain(graph, n, 2)) for n in names}
    wide = replace(SMALL, shared=Buffer(16384, 1e4, 1024), float_bytes=2)
    tight = replace(SMALL, shared=Buffer(4096 + 1024, 1e4, 1024), float_bytes=2)
    kernels = {m: Kernels(graph, m) for m in (wide, tight)}
    times = {
        (m, overlap): _Simulation(kernels[m], Policy(), overlap).run() for m in (wide, tight) for overlap in OVERLAPS
    }
    assert times[wide, "room"].seconds == times[wide, "tiles"].seconds < times[wide, "weights"].seconds
    assert times[tight, "room"].places_by_level() == times[tight, "weights"].places_by_level()
    assert times[tight, "tiles"].places_by_level()["memory"] > times[tight, "room"].places_by_level()["memory"]
    assert times[tight, "room"].seconds <= times[tight, "weights"].seconds


def test_readers_that_disagree_exchange() -> None:
    graph = Graph("transposed")
    b, x = Builder(graph), graph.add_input("x", (16, 8), F)
    y = b.elementwise(lambda v: sympy.tanh(v), x)
    graph.add_output(b.reduce("sum", None, y, axes=(0,)))
    (first, _) = (n for node in graph.nodes() for n in graph.outputs_of(node))
    graph.placements = {first: Placement("local", (8, 1)), graph.outputs[0]: Placement("memory", (8,))}
    assert run(graph, STCP).traffic[EXCHANGE] == 2 * 16 * 8


def test_neighbours_exchange_a_halo() -> None:
    graph = Graph("stencil")
    b, x = Builder(graph), graph.add_input("x", (18, 8), F)
    y = b.elementwise(lambda v: sympy.tanh(v), x)
    z = graph.add_array("z", (16, 8), F)
    reads = {"u": (y, lambda i, j: (i, j)), "v": (y, lambda i, j: (i + 2, j))}
    b.map((16, 8), reads, {"out": (z, lambda i, j: (i, j))}, lambda i, u, v: u + v)
    graph.add_output(z)
    graph.placements = {y: Placement("local", (2, 1)), z: Placement("memory", (2, 1))}
    assert run(graph, STCP).traffic[EXCHANGE] == 2 * 2 * 8


def test_one_cluster_is_simulated() -> None:
    assert (STCP.cluster.clusters, STCP.cluster.memory.bandwidth) == (1, 34e9)
    graph = product_chain()
    assert run(graph, STCP).seconds == run(graph, STCP.cluster).seconds
    graph.sub_graphs = [SubGraph({graph.outputs[0]: 0}, 2, clusters=4)]
    with pytest.raises(DaceoptError, match="divided among 4 clusters; expected what one runs"):
        run(graph, STCP)


def test_a_policy_that_is_none() -> None:
    with pytest.raises(DaceoptError, match="keep='cache'.*expected one of local"):
        Policy(keep="cache")


@settings(max_examples=30)
@given(graphs(2, 12), st.data())
def test_traffic_is_what_a_walk_over_the_graph_finds(graph: Graph, choices: st.DataObject) -> None:
    """Layer by layer: the bytes of all that layers read and write, and no array that passes inside of one."""
    halves(graph, choices)
    expected, kernels = 0, Kernels(graph, STCP, SIZES)
    for layer in kernels.layers:
        inside = {n for node in layer.nodes[:-1] for n in graph.outputs_of(node)}
        for name in {n for node in layer.nodes for n in (walked(graph, node) or {})} - inside:
            sizes = [(walked(graph, node) or {}).get(name, 0) for node in layer.nodes]
            expected += max(sizes) * STCP.itemsize(graph.dtype(name))
        expected += sum(layer.writes.values())
    if all(walked(graph, node) is not None for node in graph.nodes()):
        found = run(graph, STCP, SIZES, PLAIN)
        assert found.traffic["memory"] == expected
        assert found.traffic["local"] == found.traffic["shared"] == 0


@settings(max_examples=20)
@given(graphs(2, 12), st.data())
def test_no_unit_does_two_things_at_once(graph: Graph, choices: st.DataObject) -> None:
    halves(graph, choices)
    found = run(local(graph, 8), STCP, SIZES)
    by_unit: dict[str, list[tuple[float, float]]] = {}
    for event in found.events:
        by_unit.setdefault(event.unit, []).append((event.start, event.end))
    for spans in by_unit.values():
        spans.sort()
        assert all(b[0] >= a[1] - 1e-15 for a, b in pairwise(spans))
    assert found.seconds == max((e.end for e in found.events), default=0.0)
    assert sum(found.places_by_level().values()) == sum(len(layer.writes) for layer in found.layers)


def test_relu_is_no_sum() -> None:
    graph = Graph("relu")
    x = graph.add_input("x", (4, 4), F)
    graph.add_output(Builder(graph).elementwise(lambda v: scalar.maximum(v, 0), x))
    assert Kernels(graph, STCP).layers[0].work == {"element-wise": 16}
