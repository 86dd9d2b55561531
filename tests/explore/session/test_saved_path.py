"""Paths of sessions as recipe files: they replay, or say why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import daceopt
from daceopt.errors import SessionError
from daceopt.explore import Session
from daceopt.passes.recipe import Recipe
from tests.explore.report.test_display import HOSTILE
from tests.explore.sessions import ReluTwice, chain, lowered, session, texts
from tests.registered import restored
from tests.transformations.graphs import Net


@pytest.fixture
def clean() -> Iterator[None]:
    with restored():
        yield


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
    graph.name = "test"
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
            with net.graph.label_nodes(origins=(origin,)):
                y = net.op("Exp", y)
        return daceopt.explore(net.done(y))

    at = made()
    at.apply(at.sites("lower-operators")[1])
    path = at.save(tmp_path / "path.py")
    assert texts(made().apply(path)) == texts(at)
    assert "\x1b" not in str(at) and len(str(at).splitlines()) == 3


@pytest.mark.parametrize("stem", ["class", "import", "9", "-", "Recipe", "for"])
def test_any_file_name_gives_a_file_that_loads(tmp_path: Path, stem: str, clean: None) -> None:
    path = daceopt.explore(chain("Relu")).apply("lower-operators").save(tmp_path / f"{stem}.py")
    assert len(daceopt.explore(chain("Exp")).apply(path).path) == 1
    assert len(daceopt.transformations.load_file(path)) == 1


def test_transformations_of_dace_are_steps_of_a_session(tmp_path: Path) -> None:
    """By their names, at one site or at all, undone, saved and replayed, here and on another model."""
    at = lowered(1)
    sites = at.sites("dace:MapTiling{tile_sizes=[2, 2]}")
    assert len(sites) > 1
    at.apply(sites[0]).undo().redo().apply("dace:MapTiling{tile_sizes=[2, 2]}")
    assert sum(n.tree is not None for n in at.forward.kernels()) == len(sites)
    path = at.save(tmp_path / "tiled.py")
    text = path.read_text()
    assert "import" not in text.partition("from daceopt import Recipe")[2]
    assert "at-site{step='dace:MapTiling{tile_sizes=[2, 2]}'" in text
    assert texts(lowered(1).undo().apply(path)) == texts(at)
    whole = lowered(1).apply("dace:MapTiling{tile_sizes=[2, 2]}").save(tmp_path / "whole.py")
    other = daceopt.explore(chain("Exp", "Relu")).apply(whole)
    assert [len(record.sites) for record in other.at.records] == [2, 2] and sum(
        n.tree is not None for n in other.forward.kernels()
    ) == 2


OF_DACE = """
import dace
from dace import properties
from dace.transformation import transformation as xf


@properties.make_properties
class {name}(xf.SingleStateTransformation):
    map_entry = xf.PatternNode(dace.nodes.MapEntry)

    @classmethod
    def expressions(cls):
        return [dace.sdfg.utils.node_path_graph(cls.map_entry)]

    def can_be_applied(self, graph, expr_index, sdfg, permissive=False):
        return {can}

    def apply(self, graph, sdfg):
        raise NotImplementedError("only looked for")
"""


def test_a_file_with_a_transformation_for_dace(tmp_path: Path) -> None:
    """The latest definition counts, and the path says which file it needs."""
    file = tmp_path / "mine.py"
    for can, misses in (("False", 0), ("True", 2)):
        file.write_text(OF_DACE.format(name="OnlyLookedFor", can=can))
        assert daceopt.transformations.load_file(file) == ["dace:OnlyLookedFor"]
        at = daceopt.explore(chain("Exp", "Relu")).apply("lower-operators").apply("dace:OnlyLookedFor")
        assert len([*at.at.misses()]) == misses
    text = at.save(tmp_path / "path.py").read_text()
    assert "Needs the file that defines dace:OnlyLookedFor: --load it first." in text
