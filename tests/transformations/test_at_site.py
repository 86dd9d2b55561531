"""A step at one of its sites: how it is picked, what recipes say of it, and what a wrong choice is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from daceopt import recipes, transformations
from daceopt.errors import DaceoptError, VerificationError
from daceopt.ir.graph.graph import Graph
from daceopt.passes.bisect import bisect
from daceopt.passes.recipe import Recipe, as_step
from daceopt.passes.runner import Runner
from daceopt.passes.transform import Site, Transformation
from daceopt.transformations.at_site import AtSite
from tests.transformations.graphs import Net, op_types


@dataclass(frozen=True)
class Negate(Transformation):
    """Neg in the place of an operator."""

    level: ClassVar[str] = "coarse"
    op_type: str = "Exp"

    def match_at(self, graph: Graph, node: Any) -> Any:
        if node.op_type == self.op_type:
            yield Site(graph, (node,))

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        x, y = graph.operand(node, 0), graph.result(node, 0)
        graph.remove(node)
        graph.add_operator("Neg", [x], [y])


def chain(*op_types: str, origins: tuple[str, ...] = ()) -> Graph:
    net = Net(x=(2, 3))
    y = net.x
    for k, op_type in enumerate(op_types):
        with net.graph.label_nodes(origins=(origins[k],) if origins else ()):
            y = net.op(op_type, y)
    return net.done(y)


def run(graph: Graph, step: Transformation) -> list[str]:
    Runner(Recipe("r", (step,)), "structure").run(graph)
    return op_types(graph)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_number_says_which(number: int) -> None:
    expected = ["Exp", "Exp", "Exp"]
    expected[number] = "Neg"
    assert run(chain("Exp", "Exp", "Exp"), AtSite(Negate(), number=number)) == expected


def test_names_and_origins_pick_with_wildcards() -> None:
    def made() -> Graph:
        return chain("Exp", "Abs", "Exp", "Abs", origins=("a.0", "a.0", "a.1", "b[0]"))

    assert run(made(), AtSite(Negate(), site="Exp", origin="a.1")) == ["Exp", "Abs", "Neg", "Abs"]
    assert run(made(), AtSite(Negate(), site="E*", origin="*.1")) == ["Exp", "Abs", "Neg", "Abs"]
    assert run(made(), AtSite(Negate("Abs"), origin="b[0]")) == ["Exp", "Abs", "Exp", "Neg"], "literally first"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"site": "Ex"}, r"negate has no site 'Ex' with number 0: its sites are 'Exp'; did you mean 'Exp'\?"),
        ({"site": "Exp", "number": 2}, "negate has no site 'Exp' with number 2: there are 2, numbered from 0"),
        ({"site": "Exp", "number": -1}, "with number -1: there are 2"),
        ({"origin": "c"}, "from 'c' with number 0: sites called so come from 'a', 'b'; leave origin out for any"),
    ],
)
def test_a_site_that_is_not_there(options: dict[str, Any], said: str) -> None:
    graph = chain("Exp", "Exp", origins=("a", "b"))
    with pytest.raises(DaceoptError, match=said):
        run(graph, AtSite(Negate(), **options))
    assert op_types(graph) == ["Exp", "Exp"]


def test_a_step_without_any_site() -> None:
    with pytest.raises(DaceoptError, match=r"negate has no site with number 0: it has no site at all"):
        run(chain("Abs"), AtSite(Negate()))


def test_text_is_what_it_means() -> None:
    step = as_step("at-site{step='map-fusion{max_stages=3}', site='add + mul x 2', origin='a, b', number=1}")
    assert isinstance(step, AtSite) and as_step(str(step)) == step and step.level == "local"
    assert str(AtSite(Negate("Abs"), site="Abs")) == "at-site{step=\"negate{op_type='Abs'}\", site='Abs'}"
    assert transformations.get("at-site", step="threading").level == "hardware"
    assert not as_step("at-site{step='threading'}").changes_dataflow
    with pytest.raises(DaceoptError, match=r"threading \(hardware\) .*|stands after"):
        Recipe("r", ("at-site{step='threading'}", "map-fusion")).resolve()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("at-site{step='differentiate'}", "differentiate has no single sites; apply it as a whole"),
        ("at-site{step='at-site'}", "at-site"),
        ("at-site{step='map-fusio'}", "did you mean 'map-fusion'"),
        ("at-site{step='map-fusion', direction='back'}", "direction='back' of at-site; expected one of forward"),
        ("at-site{step='map-fusion', sites='x'}", "at-site has no option 'sites'; .* did you mean 'site'"),
    ],
)  # fmt: skip
def test_wrong_steps(text: str, said: str) -> None:
    with pytest.raises(DaceoptError, match=said):
        as_step(text)


def test_the_source_of_the_users_own_step_is_in_the_key() -> None:
    own = Recipe("r", (AtSite(Negate()),)).fingerprint()
    built_in = Recipe("r", ("at-site{step='map-fusion'}",)).fingerprint()
    assert own != Recipe("r", (AtSite(Negate("Abs")),)).fingerprint()
    assert built_in != Recipe("r", ("at-site{step='map-fusion', number=1}",)).fingerprint()


def test_each_direction_has_its_own_sites() -> None:
    from daceopt.ir.control.imported import Gradients
    from daceopt.ir.control.program import Program

    program = Program.of(chain("Tanh", "Exp"), Gradients((0,), (0,)))
    steps = (*recipes.get("none").steps, "at-site{step='tasklet-fusion', direction='backward'}")
    records = Recipe("r", steps).run(program)
    last = [r for r in records if r.name.startswith("at-site")]
    assert [(r.graph.endswith("_backward"), len(r.sites)) for r in last] == [(True, 1)]


def test_bisect_knows_it() -> None:
    recipe = Recipe("r", ("identity-removal", AtSite(Negate(), number=1), "dead-code-elimination"))
    found = bisect(recipe, chain("Exp", "Exp", "Abs"))
    assert found is not None and found.index == 1 and found.site == 1
    with pytest.raises(VerificationError, match=r"at-site.*site 1 of 1: Exp"):
        Runner(recipe, "numerics").run(chain("Exp", "Exp", "Abs"))
