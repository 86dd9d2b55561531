"""Transformations of DaCe in recipes: what they do to kernels, what is refused, and that they are verified."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dace
import numpy as np
import pytest
import sympy
from dace import properties
from dace.transformation import transformation as xf

from daceopt.errors import DaceoptError, VerificationError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.schedule.schedule_text import text
from daceopt.passes.feeds import random_inputs
from daceopt.passes.recipe import Recipe, _foreign_source
from daceopt.passes.runner import Runner

F = dace.float32


def chain(rows: object = 50) -> Graph:
    """y = tanh(x) * w; z = exp(y) and its row sums; rows may be a size."""
    graph = Graph("chain")
    x, w = graph.add_input("x", (rows, 40), F), graph.add_input("w", (40,), F)
    if not isinstance(rows, int):
        graph.symbols[str(rows)] = (x, 0)
    b = Builder(graph)
    y = b.elementwise(lambda a, c: sympy.tanh(a) * c, x, w, label="scaled")
    graph.add_output(b.elementwise(lambda a: sympy.exp(a), y, label="grown"))
    graph.add_output(b.reduce("sum", lambda v: v * v, graph.outputs[0], axes=(1,), label="summed"))
    return graph


def run(step: str, graph: Graph) -> dict[str, object]:
    """The record of the step, verified."""
    feeds = random_inputs(graph)
    before = interpret(graph, feeds, np.float64)
    (record,) = Runner(Recipe("r", (step,)), "numerics").run(graph)
    after = interpret(graph, feeds, np.float64)
    for name, old in zip(graph.outputs, before.values()):
        np.testing.assert_allclose(after[name], old)
    return vars(record)


def loops(graph: Graph, label: str) -> str:
    entry = next(k for k in graph.kernels() if k.label == label)
    return text(entry.kernel.schedule)


@pytest.mark.parametrize("rows", [50, 48, 7, dace.symbolic.symbol("n", dace.int64)])
def test_tiles_become_a_schedule(rows: object) -> None:
    graph = chain(rows)
    record = run("dace:MapTiling{tile_sizes=[16, 8]}", graph)
    assert record["name"] == "dace:MapTiling{tile_sizes=[16, 8]}" and len(record["sites"]) == 3
    listing = loops(graph, "scaled").split()
    assert listing.index("i0_block") < listing.index("i1_block") < listing.index("i0") < listing.index("i1")


def test_one_loop_of_two_is_cut() -> None:
    graph = chain()
    assert len(run("dace:StripMining{dim_idx=1, tile_size=8}", graph)["sites"]) == 3
    assert "i1_block" in loops(graph, "grown") and "i0_block" not in loops(graph, "grown")


def test_loops_are_turned() -> None:
    graph = chain()
    run("dace:MapDimShuffle{parameters=['i1', 'i0']}", graph)
    assert [line.strip() for line in loops(graph, "scaled").splitlines()[:2]] == ["for i0 < 40:", "for i1 < 50:"]


@pytest.mark.parametrize("step", ["dace:MapFusion", "dace:OTFMapFusion"])
def test_fusion_makes_kernels_of_several_statements(step: str) -> None:
    graph = chain()
    assert run(step, graph)["sites"] == ["scaled + grown"]
    assert [len(k.kernel.stages) for k in graph.kernels()] == [2, 1]


def test_what_others_read_is_never_fused_away() -> None:
    graph = Graph("kept")
    b = Builder(graph)
    x = graph.add_input("x", (8,), F)
    y = b.elementwise(lambda v: sympy.sin(v), x)
    graph.add_output(b.elementwise(lambda v: v * v, y))
    graph.saved = [y]
    assert not run("dace:MapFusion", graph)["sites"]


def test_what_stays_the_same_is_no_site() -> None:
    for step in ("dace:MapExpansion", "dace:MapCollapse", "dace:MapFission", "dace:RedundantArray"):
        assert not run(step, chain())["sites"], step
    record = run("dace:MapExpansion", chain())
    assert "scaled: it changes nothing but how loops are nested: the kernel is the same" in record["near_misses"]


def test_a_schedule_is_not_replaced() -> None:
    graph = chain()
    run("dace:MapTiling{tile_sizes=[16, 8]}", graph)
    record = run("dace:MapTiling{tile_sizes=[4, 4]}", graph)
    assert not record["sites"] and all("has a schedule already" in m for m in record["near_misses"])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("dace:MapTilin", "DaCe has no transformation called 'MapTilin'; did you mean 'MapTiling'"),
        ("dace:MapTiling{tile_size=[3]}", "has no option 'tile_size'; it has .*; did you mean 'tile_sizes'"),
        ("dace:MapTiling{tile_sizes=3}", "dace:MapTiling: option tile_sizes=3"),
        ("dace:StateFusion", "works on states or on sub-graphs"),
        ("dace:", "expects the name of a transformation"),
        ("dace-transformation{of='MapTilin'}", "did you mean 'MapTiling'"),
    ],
)
def test_names_and_options(step: str, message: str) -> None:
    with pytest.raises(DaceoptError, match=message):
        Recipe("r", (step,)).resolve()


def test_levels_and_text() -> None:
    tiling, fusion = Recipe("r", ("dace:MapFusion", "dace:MapTiling{tile_sizes=[4, 4]}")).resolve()[::-1]
    assert (tiling.level, fusion.level) == ("hardware", "local")
    assert str(tiling) == "dace:MapTiling{tile_sizes=[4, 4]}" and hash(tiling) == hash(tiling)
    with pytest.raises(DaceoptError, match=r"dace:MapFusion \(local\) stands after dace:MapTiling"):
        Recipe("r", ("dace:MapTiling{tile_sizes=[4, 4]}", "dace:MapFusion")).resolve()


@properties.make_properties
class WrongInterchange(xf.SingleStateTransformation):
    """A transformation of somebody else's with a bug: it shortens the map."""

    map_entry = xf.PatternNode(dace.nodes.MapEntry)

    @classmethod
    def expressions(cls):
        return [dace.sdfg.utils.node_path_graph(cls.map_entry)]

    def can_be_applied(self, graph, expr_index, sdfg, permissive=False):
        return len(self.map_entry.map.params) == 2

    def apply(self, graph, sdfg):
        (a, b, c), *rest = self.map_entry.map.range.ranges
        self.map_entry.map.range = dace.subsets.Range([(a, b - 1, c), *rest])


def test_a_wrong_one_is_found() -> None:
    with pytest.raises(VerificationError, match="step dace:WrongInterchange: output .*; site 1 of 3: scaled"):
        Runner(Recipe("r", ("dace:WrongInterchange",)), "numerics").run(chain())


@properties.make_properties
class Raising(WrongInterchange):
    """One that fails half-way."""

    def apply(self, graph, sdfg):
        graph.remove_node(self.map_entry)
        raise KeyError("half-way")


def test_one_that_fails_leaves_the_graph_as_it_was() -> None:
    graph = chain()
    record = run("dace:Raising", graph)
    assert not record["sites"] and "DaCe fails: KeyError: 'half-way'" in record["near_misses"][0]
    graph.validate()


def test_its_reproducer_brings_its_class(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="reproducer in ") as caught:
        Runner(Recipe("r", ("dace:WrongInterchange",)), "numerics").run(chain())
    file = Path(str(caught.value).rpartition("reproducer in ")[2])
    assert "class WrongInterchange" in file.read_text()
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr


def test_somebody_else_s_class_is_part_of_a_recipe_s_identity() -> None:
    own, theirs = (Recipe("r", (f"dace:{name}",)).resolve()[0] for name in ("MapFusion", "WrongInterchange"))
    assert own.defined_by is type(own) and theirs.defined_by is WrongInterchange
    assert _foreign_source(own) == "" and "shortens the map" in str(_foreign_source(theirs))
