"""Transformations, recipes and the runner: names, options, order, registration, history, verification, bisection."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from daceopt import transformations
from daceopt.errors import DaceoptError, VerificationError
from daceopt.ir.graph.graph import Graph
from daceopt.passes import recipe, transform
from daceopt.passes.bisect import bisect
from daceopt.passes.recipe import Recipe, recipes
from daceopt.passes.runner import Runner
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.coarse.device_placement import DevicePlacement
from tests.transformations.graphs import Net, op_types


@dataclass(frozen=True)
class ExpToNeg(Transformation):
    """Wrong on purpose at the ``at``-th Exp."""

    level: ClassVar[str] = "coarse"
    at: int = 0
    width: tuple[int, ...] = ()

    def match(self, graph: Graph) -> Iterable[Site | NearMiss]:  # type: ignore[override]
        found = [n for n in graph.operators() if n.op_type == "Exp"]
        for k, node in enumerate(found):
            yield Site(graph, (node,), {"op_type": "Neg" if k == self.at else "Abs"})

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        x, y = graph.inputs_of(node)[0], graph.outputs_of(node)[0]
        graph.remove(node)
        graph.add_operator(site["op_type"], [x], [y])


@dataclass(frozen=True)
class ReluOfRelu(Transformation):
    """Correct: Relu(Relu(x)) = Relu(x); ``wrong`` makes it an error."""

    level: ClassVar[str] = "coarse"
    wrong: bool = False

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        if getattr(node, "op_type", "") != "Relu":
            return
        inner = graph.producer(graph.operand(node, 0))
        if getattr(inner, "op_type", "") != "Relu":
            yield NearMiss(node, "its input is no Relu")
        else:
            yield Site(graph, (node, inner))

    def apply(self, site: Site) -> None:
        graph, (outer, inner) = site.graph, site.nodes
        if self.wrong:
            raise ZeroDivisionError("a bug of the user's")
        output = graph.outputs_of(outer)[0]
        x = graph.inputs_of(inner)[0]
        graph.remove(outer)
        graph.add_operator("Relu", [x], [output])


def chain(*op_types: str, length: int = 1) -> Graph:
    net = Net(x=(2, 3))
    y = net.x
    for op_type in op_types * length:
        y = net.op(op_type, y)
    return net.done(y)


def test_options_print_and_parse() -> None:
    transform.transformations.add("exp-to-neg", ExpToNeg)
    made = ExpToNeg(at=2, width=(1, 2))
    assert str(made) == "exp-to-neg{at=2, width=(1, 2)}"
    assert Transformation.parse(str(made)) == made
    assert str(ExpToNeg()) == "exp-to-neg"
    assert transformations.get("exp-to-neg", at=1) == ExpToNeg(at=1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no-such-step", "no transformation is called 'no-such-step'; there are: aggregation, "),
        ("constant-folding{size=1}", "constant-folding has no option 'size'; it has budget"),
        ("constant-folding{budget=open('x')}", "literal values"),
        ("Constant Folding", "expected a form like"),
    ],
)
def test_wrong_steps(text: str, reason: str) -> None:
    with pytest.raises(DaceoptError, match="^" if not reason else None) as error:
        Transformation.parse(text)
    assert reason in str(error.value)


def test_kebab_names_follow_the_class() -> None:
    assert ReluOfRelu.kebab_name() == "relu-of-relu"
    assert all(transformations.get(n).name == n for n in transformations.names())


def test_a_pass_is_local_and_linear() -> None:
    graph = chain("Relu", length=200)
    outcome = ReluOfRelu().run(graph)
    graph.validate()
    assert len(outcome.sites) == 199 and op_types(graph) == ["Relu"]
    assert outcome.near_misses == ["Relu: its input is no Relu"]


def test_rounds_apply_every_site() -> None:
    graph = chain("Exp", "Neg", length=5)
    assert len(ExpToNeg(at=-1).run(graph).sites) == 5
    assert "Exp" not in op_types(graph)


def test_limit() -> None:
    graph = chain("Relu", length=5)
    assert len(ReluOfRelu().run(graph, limit=2).sites) == 2
    assert len(op_types(graph)) == 3


@dataclass(frozen=True)
class Endless(ReluOfRelu):
    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        yield Site(graph, (node,))

    def apply(self, site: Site) -> None:
        """Changes nothing."""


def test_a_transformation_that_does_not_end_is_stopped() -> None:
    with pytest.raises(DaceoptError, match="does not end"):
        Endless().run(chain("Relu"))


# ---------------------------------------------------------------- recipes


def names(recipe: Recipe) -> list[str]:
    return [str(s) for s in recipe.steps]


def test_insertion_and_removal() -> None:
    base = Recipe("r", ("constant-folding", "dead-code-elimination", "differentiate", "transient-reuse"))
    assert names(base.before("dead-code-elimination", ReluOfRelu()))[1] == "relu-of-relu"
    assert names(base.after("constant-folding", ReluOfRelu))[1] == "relu-of-relu"
    assert names(base.without("constant-folding"))[0] == "dead-code-elimination"
    assert names(base + ReluOfRelu(wrong=True))[2] == "relu-of-relu{wrong=True}"
    assert names(base)[1] == "dead-code-elimination", "edits give a new recipe"
    with pytest.raises(DaceoptError, match="has no step 'map-tiling'; it has: constant-folding"):
        base.before("map-tiling", ReluOfRelu())


def test_adding_recipes_keeps_the_parts_apart() -> None:
    both = Recipe("a", ("dead-code-elimination", "tasklet-fusion", "differentiate", "transient-reuse")) + Recipe(
        "b", (ReluOfRelu(), "differentiate", "map-fusion")
    )
    expected = [
        "dead-code-elimination",
        "relu-of-relu",
        "tasklet-fusion",
        "differentiate",
        "map-fusion",
        "transient-reuse",
    ]
    assert names(both) == expected


def test_the_target_is_where_the_last_placement_says() -> None:
    assert recipes.get("gpu").target == recipes.get("cuda-kernels").target == "cuda"
    assert recipes.get("cpu").target == recipes.get("auto").target == "cpu"
    placed = Recipe("r", ("device-placement", DevicePlacement("cpu"), "differentiate"))
    assert placed.target == "cpu" and Recipe("r", placed.steps[:1]).target == "cuda"


def test_order_of_levels() -> None:
    with pytest.raises(DaceoptError, match=r"constant-folding \(coarse\) stands after tasklet-fusion \(local\)"):
        Recipe("r", ("tasklet-fusion", "constant-folding")).resolve()
    with pytest.raises(DaceoptError, match=r"constant-folding \(coarse\) is misplaced"):
        Recipe("r", ("differentiate", "constant-folding")).resolve()


def test_parts() -> None:
    recipe = Recipe("r", ("constant-folding", "differentiate", "map-fusion"))
    assert names(recipe.before_differentiation()) == ["constant-folding"]
    assert names(recipe.after_differentiation()) == ["map-fusion"]
    unmarked = Recipe("r", ("constant-folding", "map-fusion", "transient-reuse"))
    assert names(unmarked.after_differentiation()) == ["transient-reuse"]


def test_steps_must_be_transformations() -> None:
    with pytest.raises(DaceoptError, match="expected a Transformation or its name, found int"):
        Recipe("r", (3,))  # type: ignore[arg-type]


USER_FILE = '''
from dataclasses import dataclass
from typing import ClassVar
from daceopt.passes import recipe, transform

@dataclass(frozen=True)
class NothingAtAll(transform.Transformation):
    """before: x   after: x"""
    level: ClassVar[str] = "coarse"
    size: int = {size}

    def match_at(self, graph, node):
        return ()

mine = recipe.Recipe("mine", (NothingAtAll(), "dead-code-elimination"))
'''


def test_a_file_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (transform.transformations, recipe.recipes):
        monkeypatch.setattr(table, "_loaded", dict(table._loaded))
    path = tmp_path / "nothing.py"
    path.write_text(USER_FILE.format(size=1))
    assert transformations.load_file(path) == ["mine", "nothing-at-all"] or recipe.recipes.get("mine")
    step = transformations.get("nothing-at-all", size=7)
    assert str(step) == "nothing-at-all{size=7}"
    first = recipe.recipes.get("mine").fingerprint()
    path.write_text(USER_FILE.format(size=1) + "# edited\n")
    transformations.load_file(path)
    assert recipe.recipes.get("mine").fingerprint() != first, "the source text is part of the key"


@pytest.mark.parametrize(
    ("text", "reason"),
    [(None, "no such file"), ("1 / 0", "ZeroDivisionError"), ("x = 1", "found none"), ("def", "SyntaxError")],
)
def test_files_that_cannot_be_loaded(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DaceoptError, match=reason):
        transformations.load_file(path)


# ---------------------------------------------------------------- running


def test_history() -> None:
    seen: list[Any] = []
    runner = Runner(
        Recipe("r", (ReluOfRelu(), "differentiate")), "structure", after=lambda step, graph: seen.append(step)
    )
    steps = runner.run(chain("Exp", "Relu", "Relu"))
    assert steps == runner.history == seen and len(steps) == 1
    (step,) = steps
    assert (step.name, step.level, step.nodes_before, step.nodes_after) == ("relu-of-relu", "coarse", 3, 2)
    assert step.bytes_before == 3 * 2 * 24 and step.bytes_after == 2 * 2 * 24
    assert step.sites == ["Relu + Relu"] and step.seconds > 0


def test_hooks_stand_around_every_step() -> None:
    from daceopt.ir.control.imported import Gradients
    from daceopt.ir.control.program import Program

    graph, said = chain("Relu", "Relu", "Tanh"), []
    made = Recipe("r", (ReluOfRelu(), *recipe.recipes.get("none").steps, "tasklet-fusion"))
    steps = made.run(
        Program.of(graph, Gradients((0,), (0,))),
        before=lambda step, graph: said.append(("before", str(step), graph.name, len(graph.nodes()))),
        after=lambda step, graph: said.append(("after", step.name, graph.name, len(graph.nodes()))),
    )
    assert said[:2] == [("before", "relu-of-relu", "test", 3), ("after", "relu-of-relu", "test", 2)]
    assert [s[0] for s in said] == ["before", "after"] * len(steps)
    assert [(s.name, s.graph) for s in steps] == [s[1:3] for s in said[1::2]]
    fused = [s[2] for s in said if s[:2] == ("before", "tasklet-fusion")]
    assert fused == ["test", "test_backward"], "once for each direction"


def test_a_hook_that_raises_stops_the_recipe() -> None:
    def stop(step: Any, graph: Graph) -> None:
        raise KeyboardInterrupt

    graph = chain("Relu", "Relu")
    with pytest.raises(KeyboardInterrupt):
        Recipe("r", (ReluOfRelu(), "lower-operators")).run(graph, after=stop)
    assert op_types(graph) == ["Relu"], "the first step was done, the second one was not"


def test_levels_select_steps() -> None:
    recipe = Recipe("r", (ReluOfRelu(), "differentiate", "transient-reuse"))
    graph = chain("Relu", "Relu")
    assert [s.name for s in Runner(recipe).run(graph, levels=["hardware"])] == ["transient-reuse"]
    assert [s.name for s in Runner(recipe).run(graph, levels=["coarse"])] == ["relu-of-relu"]


def test_a_failing_step_names_itself() -> None:
    with pytest.raises(VerificationError, match=r"step relu-of-relu\{wrong=True\} failed .* a bug of the user's"):
        Runner(Recipe("r", (ReluOfRelu(wrong=True),))).run(chain("Relu", "Relu"))


def test_numerics_find_the_site_and_save_a_reproducer() -> None:
    net = Net(x=(2, 3))
    parts = [net.op("Abs", net.op("Exp", net.op("Abs", net.x))) for _ in range(3)]
    graph = net.done(net.op("Sum", *parts))

    with pytest.raises(VerificationError) as error:
        Runner(Recipe("r", ("dead-code-elimination", ExpToNeg(at=1))), "numerics").run(graph)
    text = str(error.value)
    assert "step exp-to-neg{at=1}" in text and "error" in text
    written = Path(text.rpartition("reproducer in ")[2]).read_text()
    assert "exp-to-neg{at=1}" in written and "graph test(" in written


def test_numerics_accept_what_is_right() -> None:
    inputs = {"x_1": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}
    (step,) = Runner(Recipe("r", (ReluOfRelu(),)), "numerics", inputs=inputs).run(chain("Exp", "Relu", "Relu"))
    assert step.error is not None and step.error < 1e-6


def test_bisect() -> None:
    graph = chain("Relu", "Relu", "Exp")
    good = Recipe("r", ("constant-folding", ReluOfRelu(), "dead-code-elimination"))
    assert bisect(good, graph) is None
    guilty = bisect(good.after("relu-of-relu", ExpToNeg()), graph)
    assert guilty is not None and (guilty.step, guilty.index, guilty.site) == ("exp-to-neg", 2, 1)
    assert op_types(graph) == ["Relu", "Relu", "Exp"], "the graph itself is not changed"


def test_bisect_finds_an_exception() -> None:
    guilty = bisect(Recipe("r", (ReluOfRelu(wrong=True),)), chain("Relu", "Relu"))
    assert guilty is not None and "ZeroDivisionError" in guilty.reason


def test_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DACEOPT_TRACE", str(tmp_path / "trace"))
    Runner(Recipe("r", (ReluOfRelu(),))).run(chain("Relu", "Relu"))
    written = [p.name.split("-", 2)[2] for p in sorted((tmp_path / "trace").iterdir())]
    assert written == ["00-test.txt", "01-relu-of-relu.json", "01-relu-of-relu.txt"]


def test_a_trace_says_what_a_step_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DACEOPT_TRACE", str(tmp_path))
    with pytest.raises(VerificationError):
        Runner(Recipe("r", (ReluOfRelu(wrong=True),))).run(chain("Relu", "Relu"))
    (failure,) = tmp_path.glob("*.error.txt")
    assert failure.name.endswith("-01-relu-of-relu.error.txt")
    assert "a bug of the user's, at site Relu + Relu" in failure.read_text()
