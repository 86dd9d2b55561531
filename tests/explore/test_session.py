"""Interactive sessions: walked, branched, saved, replayed; bad transformations leave them as they were."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import daceopt
from daceopt.errors import CaptureError, DaceoptError, SessionError, Unsupported
from daceopt.explore import Session
from daceopt.ir.graph import Graph
from daceopt.ir.render import render
from daceopt.passes import transform
from daceopt.passes.recipe import Recipe
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.passes.verification import outputs, relative_error
from tests.explore.test_display import HOSTILE
from tests.onnx_models import FLOAT, proto
from tests.registered import restored
from tests.transformations.graphs import Net


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.norm(self.up(x))))


class Blocks(nn.Module):
    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(count)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


def session(count: int = 2, **options: Any) -> Session:
    torch.manual_seed(0)
    return daceopt.explore(Blocks(count), torch.randn(4, 8), **options)


def lowered(count: int = 2, **options: Any) -> Session:
    return session(count, backward=False, **options).apply("lower-operators")


def texts(at: Session) -> list[str]:
    return [render(graph) for graph in at.program.directions()]


def chain(*op_types: str) -> Graph:
    net = Net(x=(2, 3))
    y = net.x
    for op_type in op_types:
        y = net.op(op_type, y)
    return net.done(y)


@pytest.fixture
def clean() -> Iterator[None]:
    with restored():
        yield


# ---------------------------------------------------------------- what it begins with


def test_a_module_begins_at_its_captured_graph() -> None:
    at = session()
    assert at.title == "Blocks" and not at.path and at.program.wanted is not None
    assert {n.op_type for n in at.forward.operators()} >= {"MatMul", "LayerNormalization", "Gelu"}
    assert at.report().inputs == ["x: float32[4, 8]"]


def test_the_model_stays_as_it_was() -> None:
    model = nn.BatchNorm1d(8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    daceopt.explore(model, torch.randn(4, 8)).apply("cpu")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_optimized_module_gives_its_options() -> None:
    model = daceopt.optimized_module(Blocks(), backward=False)
    assert daceopt.explore(model, torch.randn(4, 8)).program.wanted is None
    assert daceopt.explore(model, torch.randn(4, 8), backward=True).program.wanted is not None


def test_onnx_files_and_graphs(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    made = proto(
        [node("Tanh", ["x"], ["t"]), node("Mul", ["t", "x"], ["y"])], [("x", FLOAT, ["n", 6])], [("y", FLOAT, ["n", 6])]
    )
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    for model in (path, str(path), made, made.SerializeToString()):
        assert [n.op_type for n in daceopt.explore(model).forward.operators()] == ["Tanh", "Mul"]
    given = daceopt.explore(path, np.ones((5, 6), np.float32), backward=True).apply("none")
    assert given.backward is not None and given.at.bytes == sum(k.bytes for k in given.report().kernels)
    with pytest.raises(TypeError, match=r"input 0: expected the shape .* found \(5, 7\)"):
        daceopt.explore(path, np.ones((5, 7), np.float32))
    with pytest.raises(TypeError, match="takes 1 inputs, 2 were given"):
        daceopt.explore(path, 1, 2)
    graph = chain("Tanh", "Relu")
    at = daceopt.explore(graph).apply("lower-operators")
    assert len(graph.operators()) == 2 and not at.forward.operators(), "the user's graph stays"


def test_what_cannot_be_explored() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(x)
            print("a break")
            return torch.relu(y) + 1

    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(TypeError, match="explore takes an nn.Module, an ONNX file"):
        daceopt.explore(3)
    with pytest.raises(CaptureError, match=r"Broken is 2 graphs, of 1, 2 nodes .*graph=0 to graph=1"):
        daceopt.explore(Broken(), torch.randn(3))
    assert [n.op_type for n in daceopt.explore(Broken(), torch.randn(3), graph=0).forward.operators()] == ["Tanh"]
    with pytest.raises(CaptureError, match="graph=2 of Broken; expected 0 to 1"):
        daceopt.explore(Broken(), torch.randn(3), graph=2)
    with pytest.raises(CaptureError, match="nothing of Nothing can be compiled"):
        daceopt.explore(Nothing(), torch.randn(3))
    with pytest.raises(DaceoptError, match="verify='all': expected one of"):
        session(verify="all")


# ---------------------------------------------------------------- sites


def test_sites_of_all_transformations_say_where_and_why_not() -> None:
    at = lowered()
    before = texts(at)
    found = at.sites()
    assert texts(at) == before
    assert {s.transformation.name for s in found} >= {"map-fusion", "epilogue-fusion", "vectorization"}
    assert any(s.origin == "blocks.0.up" for s in found) and not found.failures
    assert "differentiate" in found.whole
    assert all(str(m) for m in found.near_misses)
    shown = str(found.matching("epilogue-fusion"))
    assert "epilogue-fusion at matmul + add (forward, from blocks.0.up)" in shown and "map-fusion" not in shown


def test_what_comes_too_late_is_not_looked_for() -> None:
    at = lowered(1).apply("map-fusion").apply("threading")
    found = at.sites()
    assert {"map-fusion", "constant-folding", "lower-operators"} <= {*found.late} and "vectorization" not in found.late
    assert {s.transformation.level for s in found} == {"hardware"} and "too late for: aggregation" in str(found)
    for site in found:
        at.branch(str(site)).apply(site)
    assert not at.sites("compound-opening").late, "what is named is looked for"


def test_near_misses_say_why() -> None:
    at = session().apply("lower-operators{keep_rules=True}").apply("differentiate").apply("lower-operators")
    found = at.sites("epilogue-fusion")
    assert any("the product is read through a view" in str(m) and m.direction == "backward" for m in found.near_misses)


def test_a_single_site() -> None:
    at = lowered()
    sites = at.sites("epilogue-fusion")
    assert len(sites) == 4 and at.apply(sites[2]) is at
    after = at.sites("epilogue-fusion")
    assert [s.origin for s in after] == [s.origin for k, s in enumerate(sites) if k != 2]
    assert at.at.sites() == 1 and "blocks.1.up" in at.at.title
    outside = after[0].apply().sites("epilogue-fusion")
    assert len(outside) == 2


def test_sites_are_found_again_after_others_were_applied() -> None:
    """Their numbers among equal ones change with each."""
    again = daceopt.explore(chain("Exp", "Neg", "Exp", "Neg", "Exp"))
    third, first = (again.sites("lower-operators")[k] for k in (4, 0))
    again.apply(first).apply(third)
    assert [n.op_type for n in again.forward.operators()] == ["Neg", "Exp", "Neg"]
    with pytest.raises(SessionError, match="is no site any more"):
        again.apply(first)


def test_a_site_that_is_gone_is_an_error() -> None:
    at = lowered()
    site = at.sites("epilogue-fusion")[0]
    at.apply(site)
    before = texts(at)
    with pytest.raises(SessionError, match=r"epilogue-fusion at matmul \+ add .* is no site any more"):
        at.apply(site)
    assert texts(at) == before
    at.undo().apply(site)
    assert texts(at) == before


# ---------------------------------------------------------------- walking


def test_undo_and_redo_give_the_very_graphs() -> None:
    at = lowered()
    first = texts(at)
    second = texts(at.apply("map-fusion"))
    third = texts(at.apply("threading"))
    assert texts(at.undo()) == second and texts(at.undo()) == first
    assert texts(at.redo(2)) == third and not at.undone
    assert texts(at.undo(2)) == first
    at.apply("epilogue-fusion")
    assert not at.undone, "another way begins here"
    with pytest.raises(SessionError, match=r"redo\(1\): there are 0 changes to redo"):
        at.redo()
    with pytest.raises(SessionError, match=r"undo\(5\): there are 2 changes to undo"):
        at.undo(5)
    assert len(at.path) == 2


def test_branches_go_their_own_ways() -> None:
    main = lowered()
    fused = main.branch("fused").apply("map-fusion")
    assert len(fused.path) == 2 and len(main.path) == 1
    assert main.branch("fused") is fused and fused.branch("main") is main
    main.apply("epilogue-fusion")
    assert main.branches == fused.branches == ("main", "fused")
    assert len({v.number for v in (*main.at.line(), *fused.at.line())}) == 4
    with pytest.raises(SessionError, match="expected a name"):
        main.branch("")


def test_a_recipe_is_one_change() -> None:
    at = session().apply("cpu")
    assert at.backward is not None and len(at.path) > 30 and at.at.title == "recipe cpu"
    assert not at.undo().path and at.backward is None
    chosen = session().apply("auto")
    assert "by the cost model" in chosen.notes[-1] and chosen.path == session().apply("cpu").path


def test_graphs_that_are_looked_at_are_copies() -> None:
    at = lowered()
    before = texts(at)
    graph = at.forward
    graph.remove(graph.nodes()[-1])
    at.program.forward.sdfg.name = "other"
    assert texts(at) == before


def test_the_text_shows_the_walk() -> None:
    at = lowered().apply("map-fusion").undo()
    at.branch("other")
    shown = str(at)
    assert shown.startswith("Blocks: session main, 1 step\n") and ">   1  lower-operators" in shown
    assert "redo: map-fusion" in shown and "branches: main, other" in shown
    assert "version 1" in repr(at)


def test_nothing_found_says_what_almost_matched() -> None:
    at = daceopt.explore(chain("Relu", "Relu"))
    at.apply(ReluTwice(picky=True))
    assert at.at.sites() == 0 and "almost: Relu: it is picky" in str(at)


# ---------------------------------------------------------------- bad transformations


@dataclass(frozen=True)
class ReluTwice(Transformation):
    """Relu(Relu(x)) = Relu(x), with something wrong on demand."""

    level: ClassVar[str] = "coarse"
    wrong: str = ""
    picky: bool = False

    def match_at(self, graph: Graph, node: Any) -> Any:
        if self.picky:
            yield NearMiss(node, "it is picky")
            return
        if self.wrong == "match raises":
            raise ZeroDivisionError("in match")
        if self.wrong == "match edits":
            graph.add_array("stray", (1,), graph.dtype(graph.inputs[0]))
        if getattr(node, "op_type", "") != "Relu":
            return
        inner = graph.producer(graph.operand(node, 0))
        if self.wrong == "endless" or getattr(inner, "op_type", "") == "Relu":
            yield Site(graph, (node,) if self.wrong == "endless" else (node, inner))

    def apply(self, site: Site) -> None:
        graph, outer = site.graph, site.nodes[0]
        if self.wrong == "endless":
            return
        result, x = graph.result(outer, 0), graph.operand(site.nodes[1], 0)
        graph.remove(outer)
        if self.wrong == "raises":
            raise KeyError("in the middle of an edit")
        if self.wrong == "refuses":
            raise Unsupported("this one is not for me")
        if self.wrong == "ends Python":
            raise SystemExit(3)
        if self.wrong != "invalid":
            graph.add_operator("Neg" if self.wrong == "numbers" else "Relu", [x], [result])


WRONG = [
    ("raises", "relu-twice{wrong='raises'} failed on graph test: KeyError: 'in the middle of an edit', at site Relu"),
    ("refuses", "step relu-twice{wrong='refuses'}, site Relu + Relu: this one is not for me"),
    ("invalid", "graph test is invalid after step relu-twice{wrong='invalid'}, 1 sites, the last at Relu + Relu: "),
    ("endless", "relu-twice{wrong='endless'} does not end: 1060 applications, the last at Relu"),
    ("match edits", "step relu-twice{wrong='match edits'}: match edited graph test: - 7 nodes"),
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


# ---------------------------------------------------------------- saved paths


def test_a_saved_path_replays_in_new_sessions(tmp_path: Path) -> None:
    at = session().apply("lower-operators{keep_rules=True}").apply("differentiate").apply("lower-operators")
    site = at.sites("loop-merging").matching("backward")[0]
    at.apply(at.sites("epilogue-fusion")[1]).apply(site).apply("threading")
    path = at.save(tmp_path / "my_path.py")
    assert texts(session().apply(path)) == texts(at)
    text = path.read_text()
    assert "my_path = Recipe(" in text and "Each at-site belongs to this model" in text
    assert "at-site{step='epilogue-fusion', site='matmul + add', origin='blocks.0.down'}" in text
    deeper = session(3).apply(str(path))
    left = [s.origin for s in deeper.sites("epilogue-fusion")]
    assert "blocks.0.down" not in left and {"blocks.0.up", "blocks.1.down", "blocks.2.down"} <= {*left}


def test_a_saved_path_is_a_recipe_like_others(tmp_path: Path, clean: None) -> None:
    path = lowered().apply("epilogue-fusion").save(tmp_path / "own-fusion.py")
    assert daceopt.transformations.load_file(path) == ["own-fusion"]
    graph = session(backward=False).forward
    steps = daceopt.recipes.get("own-fusion").run(graph, verify="structure")
    assert [s.name for s in steps] == ["lower-operators", "epilogue-fusion"] and len(steps[1].sites) == 6


def test_a_path_that_does_not_fit_another_model(tmp_path: Path) -> None:
    at = lowered()
    path = at.apply(at.sites("epilogue-fusion")[2]).save(tmp_path / "path.py")
    other = session(1, backward=False)
    with pytest.raises(SessionError) as error:
        other.apply(path)
    said = str(error.value)
    assert "epilogue-fusion has no site 'matmul + add' from 'blocks.1.up' with number 0" in said
    assert "sites called so come from 'blocks.0.up', 'blocks.0.down'; leave origin out for any" in said
    assert not other.path
    path.write_text(path.read_text().replace("blocks.1.up", "*.up"))
    assert [s.origin for s in other.apply(path).sites("epilogue-fusion")] == ["blocks.0.down"]


def test_steps_of_the_users_own_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class in a module that can be imported is; another one has to be put into a file first."""
    at = daceopt.explore(chain("Relu", "Relu", "Exp"))
    at.apply(at.sites(ReluTwice(wrong=""))[0])
    path = at.save(tmp_path / "own.py")
    text = path.read_text()
    assert f"from {ReluTwice.__module__} import ReluTwice" in text and "AtSite(ReluTwice(" in text
    assert texts(daceopt.explore(chain("Relu", "Relu", "Exp")).apply(path)) == texts(at)

    @dataclass(frozen=True)
    class InANotebook(ReluTwice):
        """As good."""

    at.undo().apply(InANotebook())
    with pytest.raises(
        SessionError, match="in-a-notebook cannot be written into a file, for no other program can import"
    ):
        at.save(tmp_path / "own.py")
    assert path.read_text() == text


def test_hostile_names_do_not_get_into_the_file(tmp_path: Path) -> None:
    graph = chain("Relu", "Relu")
    graph.sdfg.name = "test"
    at = daceopt.explore(graph)
    at._subject = type(at._subject)('"""\nimport os\nos.abort()\n\\', at._subject.program, at._subject.tensors)
    path = at.apply("lower-operators").save(tmp_path / "1 x'.py")
    names: dict[str, Any] = {}
    exec(path.read_text(), names)
    (recipe,) = [v for v in names.values() if isinstance(v, Recipe)]
    assert recipe.name == "1-x" and recipe.steps == ("lower-operators",)


@pytest.mark.parametrize("name", [*HOSTILE, "{x='1'}", "a{b}, c", "\\", "[a-z]*", "'''", '"""'])
def test_hostile_origins_are_picked_and_replayed(tmp_path: Path, name: str) -> None:
    def made() -> Session:
        net = Net(x=(2, 3))
        y = net.x
        for origin in ("plain", name, "plain"):
            with net.graph.made_for(origins=(origin,)):
                y = net.op("Exp", y)
        return daceopt.explore(net.done(y))

    at = made()
    at.apply(at.sites("lower-operators")[1])
    path = at.save(tmp_path / "path.py")
    assert texts(made().apply(path)) == texts(at)
    assert "\x1b" not in str(at) and len(str(at).splitlines()) == 3


# ---------------------------------------------------------------- comparing and measuring


def test_versions_are_compared_without_building() -> None:
    at = lowered()
    fused = at.branch("fused").apply("map-fusion").apply("vectorization")
    found = fused.compare("main", seconds=None)
    assert found.kernels[0] > found.kernels[1] == fused.at.nodes and found.bytes[0] > found.bytes[1]
    assert found.graph and found.schedules and found.seconds is None and found.speedup is None
    assert "vector for" in "\n".join(line for line in found.schedules if line.startswith("+"))
    assert found.text().startswith("main, version 1 -> fused, version 3")
    same = fused.compare(fused, seconds=None)
    assert not same.graph and not same.schedules and "are the same" in str(same)
    backwards = at.compare(fused, seconds=None)
    assert backwards.bytes == found.bytes[::-1]


def test_versions_are_built_and_run_in_turns() -> None:
    at = session(1)
    found = at.branch("quick").apply("cpu").compare(seconds=0.02)
    assert found.seconds is not None and min(found.seconds) > 0 and found.speedup == found.seconds[0] / found.seconds[1]
    assert found.difference is not None and 0 <= found.difference[0] < 1e-5
    steps = "lower-operators{keep_rules=True}, differentiate, lower-operators"
    assert found.notes[0] == f"captured is not lowered yet: finished by {steps}"
    assert "times as fast" in str(found) and "<details>" in found._repr_html_()


def test_what_cancels_and_what_is_written_over_is_no_difference() -> None:
    """The gradient by a bias before a normalization is rounding alone; running statistics are new in each call."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    found = daceopt.explore(model, torch.randn(2, 3, 6, 6)).apply("cpu").compare(seconds=0.0)
    assert found.difference is not None and found.difference[0] < 1e-5


def test_a_wrong_version_shows_in_the_difference() -> None:
    at = daceopt.explore(chain("Relu", "Relu", "Exp"), np.ones((2, 3), np.float32))
    found = at.apply(ReluTwice("numbers")).compare(seconds=0.0)
    assert found.difference is not None and found.difference[0] > 0.5 and found.difference[1] == "output 0"


def test_one_kernel_alone() -> None:
    at = session(1).apply("cpu")
    report = at.report()
    for label in dict.fromkeys(k.label for k in report.kernels):
        row, found = report.kernel(label), at.measure(label, seconds=0.0)
        assert (found.row.bytes, found.row.flops, found.row.limit) == (row.bytes, row.flops, row.limit)
        assert 0 < found.seconds < 1 and found.share == row.limit / found.seconds and found.runs >= 15
        assert found.intensity == row.flops / row.bytes and "of the limit" in str(found)
    with pytest.raises(Unsupported, match="is an operator, not lowered yet"):
        session().measure("gelu")


def test_a_kernel_alone_computes_what_it_does_among_others() -> None:
    from daceopt.explore.kernel_alone import alone

    graph = session(backward=False).apply("cpu").forward
    values = {
        n: np.random.default_rng(k).standard_normal(graph.shape(n)).astype(np.float32)
        for k, n in enumerate(graph.inputs)
    }
    for position, _ in enumerate(graph.nodes()):
        own = alone(graph, position)
        own.validate()
        assert len(own.nodes()) == 1 and set(own.inputs) <= {*values}
        values |= dict(zip(own.outputs, outputs(own, {n: values[n] for n in own.inputs})))
    for name, exact in zip(graph.outputs, outputs(graph, {n: values[n] for n in graph.inputs})):
        assert relative_error(values[name], exact) < 1e-6


def test_sizes_that_are_open_are_those_of_the_call() -> None:
    model = daceopt.optimized_module(nn.Sequential(nn.Linear(6, 6), nn.Softmax(-1)), dynamic=True, backward=False)
    at = daceopt.explore(model, torch.randn(50, 6)).apply("cpu")
    assert at.forward.symbols and at.at.bytes > 50 * 6 * 4
    assert at.measure("softmax", seconds=0.0).row.bytes == at.report().kernel("softmax").bytes > 50 * 6 * 4
    assert 'extern "C"' in at.measure("softmax", seconds=0.0).text()


def test_measured_reports_finish_what_is_not_lowered() -> None:
    found = session(1).report(measure=True)
    assert any("not lowered yet: finished by" in note for note in found.notes)
    assert all(k.seconds is not None for k in found.kernels) and found.peak > 0
    plain = session().report()
    assert {k.library for k in plain.kernels} == {"operator"} and all(k.seconds is None for k in plain.kernels)


# ---------------------------------------------------------------- progress


def test_what_takes_long_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    from daceopt import progress

    shown: list[str] = []

    class Screen:
        def show(self, rows: Any) -> None:
            shown.extend(map(str, rows))

        def close(self) -> None: ...

    monkeypatch.setattr(progress, "is_watched", lambda: True)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "_Terminal", Screen)
    at = lowered()
    at.sites()
    at.apply("map-fusion").compare(seconds=0.0)
    joined = "\n".join(shown)
    assert "sites" in joined and "compare" in joined
