"""The record of what is split together: it follows the graph through copies, fusions and text."""

from __future__ import annotations

from dataclasses import replace

import dace
import pytest
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.sub_graphs import SubGraph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render
from daceopt.splits import split
from transformations.local.map_fusion import MapFusion


def _chain() -> tuple[Graph, list[str]]:
    graph = Graph("chain")
    b = Builder(graph)
    x = graph.add_input("x", (8, 6), dace.float32)
    y = b.elementwise(lambda v: sympy.tanh(v), x)
    z = b.reduce("sum", None, y, axes=(1,))
    graph.add_output(z)
    return graph, [y, z]


def test_nodes_are_found_by_what_they_write() -> None:
    graph, (y, z) = _chain()
    graph.sub_graphs = [SubGraph({y: 0, z: 0}, 4, 2)]
    (group,) = graph.sub_graphs
    assert group.nodes(graph) == graph.nodes() and group.count == 8 and not group.is_split
    assert graph.instance_positions() == dict.fromkeys(graph.nodes(), (0, 0))


def test_copies_have_it_and_edit_it_apart() -> None:
    graph, (y, z) = _chain()
    graph.sub_graphs = [SubGraph({y: 0, z: 0}, 2)]
    twin = graph.copy()
    twin.sub_graphs = []
    assert len(graph.sub_graphs) == 1 and not twin.sub_graphs
    (group,) = graph.copy().sub_graphs
    assert group.axes == {y: 0, z: 0}


def test_fusion_leaves_what_there_still_is() -> None:
    graph, (y, z) = _chain()
    graph.sub_graphs = [SubGraph({y: 0, z: 0}, 2)]
    MapFusion().run(graph)
    assert len(graph.nodes()) == 1
    (group,) = graph.sub_graphs
    assert group.axes == {z: 0} and group.nodes(graph) == graph.nodes()


def test_instances_are_the_nodes_of_each_part() -> None:
    graph, (y, _) = _chain()
    tanh, total = graph.nodes()
    made = split(graph, tanh, 0, 2), split(graph, total, 0, 2)
    written = [tuple(str(graph.result(n, 0)) for n in pair) for pair in zip(*made)]
    axes = {name: 0 for names in written for name in names}
    graph.sub_graphs = [SubGraph(axes, 2, instances=tuple(written))]
    graph.prune()  # nobody reads y as a whole: it is gone, the record stands
    (group,) = graph.sub_graphs
    assert not graph.has(y)
    assert group.instance_nodes(graph) == [list(pair) for pair in zip(*made)]
    assert graph.instance_positions()[made[1][1]] == (0, 1)


def test_text_says_it() -> None:
    graph, (y, z) = _chain()
    graph.sub_graphs = [SubGraph({y: 0}, 2, halos="kept"), SubGraph({z: 0}, 2, 2)]
    text = render(graph)
    assert f"group 2 on 1 kept: {y} 0" in text and render(parse(text)) == text
    assert parse(text).sub_graphs == graph.sub_graphs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factor": 0}, "0 instances"),
        ({"axes": {"z": 3}}, "no axis 3"),
        ({"axes": {"nothing_1": 0}}, "no array"),
        ({"halos": "forgotten"}, "recomputed or kept"),
        ({"instances": (("z",),)}, "1 instances, expected 2"),
        ({"instances": (("z",), ("z",))}, "each of its arrays once"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    graph, (_, z) = _chain()
    if isinstance(change.get("axes"), dict):
        change["axes"] = {z if n == "z" else n: k for n, k in change["axes"].items()}  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=message):
        graph.sub_graphs = [replace(SubGraph({z: 0}, 2), **change)]  # type: ignore[arg-type]


def test_an_array_is_in_one_sub_graph() -> None:
    graph, (_, z) = _chain()
    with pytest.raises(ValueError, match="in two"):
        graph.sub_graphs = [SubGraph({z: 0}, 2), SubGraph({z: 0}, 4)]
