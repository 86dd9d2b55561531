"""Bad transformations and names: step, site and cause are said, and the session stays as it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import daceopt
from daceopt.errors import DaceoptError, SessionError
from daceopt.ir.graph.graph import Graph
from daceopt.passes import transform
from daceopt.passes.recipe import Recipe
from daceopt.passes.transform import NearMiss, Site, Transformation
from tests.explore.sessions import ReluTwice, chain, lowered, texts
from tests.registered import restored


@pytest.fixture
def clean() -> Iterator[None]:
    with restored():
        yield


WRONG = [
    ("raises", "relu-twice{wrong='raises'} failed on graph test: KeyError: 'in the middle of an edit', at site Relu"),
    ("refuses", "step relu-twice{wrong='refuses'}, site Relu + Relu: this one is not for me"),
    ("invalid", "graph test is invalid after step relu-twice{wrong='invalid'}, 1 sites, the last at Relu + Relu: "),
    ("endless", "relu-twice{wrong='endless'} does not end: 1060 applications, the last at Relu"),
    ("match edits", "step relu-twice{wrong='match edits'}: match edited graph test: +   stray_5"),
    ("match raises", "step relu-twice{wrong='match raises'} failed on graph test: ZeroDivisionError: in match"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=[name for name, _ in WRONG])
def test_a_bad_transformation_is_rolled_back(wrong: str, said: str) -> None:
    at = daceopt.explore(chain("Relu", "Relu", "Exp"))
    before = texts(at)
    with pytest.raises(SessionError) as error:
        at.apply(ReluTwice(wrong))
    assert said in str(error.value), str(error.value)
    assert str(error.value).endswith("; the session is as it was, at version 0")
    assert error.value.__cause__ is not None
    assert texts(at) == before and not at.path and not at.undone
    at.apply(ReluTwice()).apply("lower-operators")
    assert len(at.forward.nodes()) == 2


@dataclass(frozen=True)
class BadMatch(Transformation):
    """``match`` gives what is no site of the graph."""

    level: ClassVar[str] = "coarse"
    kind: str = "node"

    def match(self, graph: Graph) -> Iterator[Any]:
        node = graph.nodes()[0]
        other = graph.copy()
        wrong = {"node": node, "bare": Site(graph, node), "foreign": Site(other, (other.nodes()[0],)), "text": "Relu"}
        yield NearMiss(node, "almost")
        yield wrong[self.kind]

    def apply(self, site: Site) -> None:
        site.graph.remove(site.nodes[0])


@dataclass(frozen=True)
class BadMatchAt(BadMatch):
    """The same at each node."""

    match = Transformation.match

    def match_at(self, graph: Graph, node: Any) -> Iterator[Any]:
        return BadMatch.match(self, graph)


@pytest.mark.parametrize("made", [BadMatch, BadMatchAt])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("node", r"gave OnnxRelu \(Relu\); expected Site\(graph, \(node, ...\)\) or NearMiss\(node, reason\)"),
        ("text", "gave 'Relu'; expected Site"),
        ("bare", r"gave Site\(graph, OnnxRelu \(Relu\)\); expected \(node, ...\)"),
        ("foreign", "gave a site of another graph; expected one of test"),
    ],
)  # fmt: skip
def test_what_match_gives_is_looked_at(made: type[BadMatch], kind: str, said: str) -> None:
    """Taken for nothing found, it would be a step that silently never applies."""
    at = daceopt.explore(chain("Relu", "Exp"))
    before = texts(at)
    with pytest.raises(SessionError, match=f"match of step .*{said}"):
        at.apply(made(kind))
    assert texts(at) == before and "could not look: match of step" in str(at.sites(made(kind)))


@dataclass(frozen=True)
class DropAt(Transformation):
    """Drops the ``at``-th Relu, whose result is still read, and puts another one in the place of the others."""

    level: ClassVar[str] = "coarse"
    sites_are_independent: ClassVar[bool] = True
    at: int = 0

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        for k, node in enumerate(graph.operators()):
            yield Site(graph, (node,), {"title": f"the {node.op_type} number {k}", "drop": k == self.at})

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        x, y = graph.operand(node, 0), graph.result(node, 0)
        graph.remove(node)
        if not site["drop"]:
            graph.add_operator("Relu", [x], [y])


@pytest.mark.parametrize("at", [0, 2, 4])
def test_of_many_sites_the_first_that_breaks_the_graph_is_named(at: int) -> None:
    explored = daceopt.explore(chain("Relu", "Relu", "Relu", "Relu", "Relu"))
    with pytest.raises(SessionError, match=f"the Relu number {at}"):
        explored.apply(DropAt(at))
    assert len(explored.forward.operators()) == 5


def test_a_bad_transformation_in_a_recipe_is_rolled_back_as_a_whole() -> None:
    at = daceopt.explore(chain("Relu", "Relu", "Exp"))
    before = texts(at)
    with pytest.raises(SessionError, match="step relu-twice{wrong='raises'} failed"):
        at.apply(Recipe("mine", ("identity-removal", ReluTwice("raises"), "lower-operators")))
    assert texts(at) == before and at.at.number == 0


def test_wrong_numbers_are_found_with_the_given_inputs() -> None:
    at = daceopt.explore(chain("Relu", "Relu", "Exp"), np.full((2, 3), 2, np.float32), verify="numerics")
    before = texts(at)
    with pytest.raises(
        SessionError, match=r"step relu-twice{wrong='numbers'}: output .* site 1 of 1: Relu \+ Relu"
    ) as error:
        at.apply(ReluTwice("numbers"))
    assert "reproducer in" in str(error.value) and texts(at) == before
    assert at.apply(ReluTwice()).at.records[0].error < 1e-6


def test_bad_transformations_do_not_keep_the_others_from_looking() -> None:
    at = daceopt.explore(chain("Relu", "Relu"))
    before = texts(at)
    found = at.sites(ReluTwice("match raises"), ReluTwice("match edits"), ReluTwice())
    assert [str(s.transformation) for s in found] == ["relu-twice"] and texts(at) == before
    assert found.failures["relu-twice{wrong='match raises'}"] == "ZeroDivisionError: in match"
    assert "match edited graph test" in found.failures["relu-twice{wrong='match edits'}"]
    assert "could not look" in str(found)


def test_sites_of_a_transformation_that_goes_bad() -> None:
    at = daceopt.explore(chain("Relu", "Relu"))
    before = texts(at)
    (site,) = at.sites(ReluTwice())
    for wrong, said in (("match raises", "ZeroDivisionError: in match"), ("match edits", "match edited graph")):
        bad = dataclasses.replace(site, transformation=ReluTwice(wrong))
        with pytest.raises(SessionError, match=said):
            at.apply(bad)
        assert texts(at) == before
    with pytest.raises(SessionError, match="belongs to another session, on test"):
        daceopt.explore(chain("Relu", "Relu")).apply(site)


def test_an_interrupted_step_leaves_the_session_as_it_was() -> None:
    at = daceopt.explore(chain("Relu", "Relu"))
    before = texts(at)
    with pytest.raises(SystemExit):
        at.apply(ReluTwice("ends Python"))
    assert texts(at) == before and texts(at.apply(ReluTwice())) != before


def test_names_that_clash() -> None:
    @dataclass(frozen=True)
    class MapFusion(Transformation):
        level: ClassVar[str] = "local"

    at = daceopt.explore(chain("Relu", "Relu"))
    with pytest.raises(
        DaceoptError, match=r"step map-fusion of .*MapFusion has the name of daceopt.*give the class another"
    ):
        at.apply(MapFusion)
    with pytest.raises(DaceoptError, match="has the name of"):
        at.sites(MapFusion())


def test_a_file_that_takes_a_name(tmp_path: Path, clean: None) -> None:
    lines = ("from daceopt import Transformation", "", "class {}(Transformation):", "    level = 'coarse'")
    text = "\n".join(lines)
    first, second, third = (tmp_path / name for name in ("one.py", "two.py", "three.py"))
    first.write_text(text.format("MapFusion"))
    second.write_text(text.format("OwnStep"))
    third.write_text(text.format("OwnStep"))
    with pytest.raises(
        DaceoptError, match=r"one.py defines the transformation 'map-fusion', a name that daceopt.*has already"
    ):
        daceopt.transformations.load_file(first)
    assert transform.transformations.is_built_in("map-fusion")
    daceopt.transformations.load_file(second)
    daceopt.transformations.load_file(second)  # an edited file takes the place of what it was
    with pytest.raises(DaceoptError, match=r"three.py defines the transformation 'own-step', a name that .*two.py has"):
        daceopt.transformations.load_file(third)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("map-fusin", "no transformation or recipe is called 'map-fusin'; did you mean 'map-fusion'?"),
        ("cpuu", "no transformation or recipe is called 'cpuu'; did you mean 'cpu'?"),
        ("map-fusion{max_stage=3}", "no option 'max_stage'; it has max_stages; did you mean 'max_stages'?"),
        ("map-fusion{max_stages=}", "expected name=value pairs"),
        ("Map Fusion", "no transformation or recipe is called 'Map Fusion'; did you mean 'map-fusion'?"),
        ("differentiate", "no gradients are wanted; explore a model whose parameters or inputs require them"),
        ("constant-folding", "recipe session: constant-folding (coarse) stands after lower-operators (lower)"),
        ("at-site", "at-site needs a step"),
        ("MapTiling", "no transformation or recipe is called 'MapTiling'; did you mean 'map-tiling'?"),
        ("map-tiling{size='x'}", "map-tiling: size='x'; expected int | tuple[int, ...], found str"),
        ("dace:MapTilling", "DaCe has no transformation called 'MapTilling'; did you mean 'MapTiling'?"),
        ("dace:MapTiling{tile_size=[3]}", "has no option 'tile_size'; it has divides_evenly, prefix"),
        (3, "expected a Transformation or its name, found int"),
    ],
)  # fmt: skip
def test_what_is_no_step(step: Any, said: str) -> None:
    at = lowered()
    with pytest.raises(DaceoptError) as error:
        at.apply(step)
    assert said in str(error.value)
    assert len(at.path) == 1


def test_unknown_names_suggest_the_nearest() -> None:
    at = lowered()
    at.branch("fused")
    with pytest.raises(DaceoptError, match="did you mean 'tasklet-fusion'"):
        at.sites("tasklet-fusio")
    with pytest.raises(SessionError, match="no branch is called 'fusd'; there are: main, fused; did you mean 'fused'"):
        at.compare("fusd")
    with pytest.raises(SessionError, match="there is no version 9; there are 0, 1"):
        at.compare(9)
    with pytest.raises(SessionError, match="began at another captured graph"):
        at.compare(lowered())
    with pytest.raises(DaceoptError, match="no kernel's label contains 'geluu'; .* did you mean 'gelu'"):
        at.measure("geluu")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda at: at.undo("a"), "undo('a'): there are 1 changes to undo"),
        (lambda at: at.undo(-1), "undo(-1): there are 1 changes to undo"),
        (lambda at: at.compare(1.5), "compare(1.5): expected a branch"),
        (lambda at: at.measure(None), "None is no kernel; expected a label"),
        (lambda at: at.apply("no/where"), "no/where: no such file"),
    ],
)  # fmt: skip
def test_wrong_arguments(call: Any, said: str) -> None:
    with pytest.raises(DaceoptError) as error:
        call(lowered(1))
    assert said in str(error.value)
