"""A choice among recipes: what all have in common runs once, and the model decides about the rest."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any

import dace
import pytest

from daceopt import recipes
from daceopt.cost import limits, program_time, rates
from daceopt.cost.limits import Limits
from daceopt.cost.program_time import ProgramTime
from daceopt.ir.control.imported import Gradients, Imported
from daceopt.ir.control.program import Program
from daceopt.ir.control.region import Repeat
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.passes.choice import Candidate, Choice, common_prefix
from daceopt.passes.recipe import Recipe
from daceopt.passes.transform import Transformation
from daceopt.programs import derivation
from daceopt.store.cache import key
from tests.transformations.lowered import feeds

FUSED = replace(recipes.get("cpu"), name="fused")
PLAIN = replace(recipes.get("cpu").without("map-fusion"), name="plain")


def graph() -> Graph:
    """Several kernels, until ``map-fusion`` makes one of them."""
    made = Graph("test")
    x = made.add_input("x", (600, 700), dace.float32)
    y = Builder(made).elementwise(lambda v: v * 2, x)
    total = Builder(made).reduce("sum", None, y, axes=(1,), keepdims=True)
    made.add_output(Builder(made).elementwise(lambda v, w: v / w, y, total))
    return made


def derive(recipe: Recipe, gradients: Gradients | None = None) -> Any:
    return derivation.derive(Imported(graph(), gradients), recipe)


@pytest.mark.parametrize("among", [(FUSED, PLAIN), (PLAIN, FUSED)])
def test_the_faster_one_is_chosen(among: tuple[Recipe, ...]) -> None:
    derived = derive(Choice.of("either", *among))
    assert len(derived.forward.nodes()) == 1
    assert derived.choice.startswith("recipe fused, by the cost model (")
    names = [s.name for s in derived.history]
    assert names.count("constant-folding") == 2 and "map-fusion" in names
    values = feeds(graph())
    before = graph()
    ours, plain = (interpret(g, values)[g.outputs[0]] for g in (derived.forward, before))
    assert (ours == plain).all()


def test_in_doubt_it_is_the_first() -> None:
    twin = replace(FUSED.without("memory-ordering"), name="twin")
    assert derive(Choice.of("either", FUSED, twin)).choice.startswith("recipe fused")
    assert derive(Choice.of("either", twin, FUSED)).choice.startswith("recipe twin")


@dataclass(frozen=True)
class NeverRuns(Transformation):
    """A step that says when it runs."""

    level = "hardware"

    def match(self, graph: Graph) -> Any:
        raise AssertionError("it ran")


def test_another_recipe_is_not_tried_where_nothing_can_be_saved() -> None:
    """One kernel left: no array between kernels, one start of threads."""
    derived = derive(Choice.of("either", FUSED, replace(FUSED + NeverRuns(), name="never")))
    assert "too little to save" in derived.choice and "never" not in derived.choice


def test_both_directions_count() -> None:
    derived = derive(Choice.of("either", PLAIN, FUSED), Gradients((0,), (0,)))
    assert derived.backward is not None and derived.choice.startswith("recipe fused")


def test_the_margin_is_a_share_of_the_kernels_and_of_all() -> None:
    rule = Candidate(FUSED)
    time = ProgramTime(2.0, 1.0, 0.18)
    assert rule.most(time) > rule.least(time)
    assert not rule.most(replace(time, fusible=0.12)) > rule.least(time)
    assert not rule.most(replace(time, total=10.0)) > rule.least(replace(time, total=10.0))


def test_large_programs_must_save_more() -> None:
    """What another derivation takes should be earned; a program of few nodes is derived fast."""
    rule, time = Candidate(FUSED), ProgramTime(2e-3, 1.5e-3, 0.45e-3, nodes=100)
    assert rule.most(time) > rule.least(time)
    assert not rule.most(replace(time, nodes=700)) > rule.least(replace(time, nodes=700))


def test_a_candidate_must_save_what_it_says() -> None:
    """The model says that the plain recipe takes longer; a rule may ask for more than the fused one saves."""
    greedy = Candidate(FUSED, most=lambda first: 1.0, least=lambda first: 0.99 * first.total)
    derived = derive(Choice.of("either", PLAIN, greedy))
    assert derived.choice.startswith("recipe plain") and "fused" in derived.choice
    modest = replace(greedy, least=lambda first: 0.01 * first.total)
    assert derive(Choice.of("either", PLAIN, modest)).choice.startswith("recipe fused")


def test_a_candidate_for_inference_is_not_tried_in_training() -> None:
    choice_of = Choice.of("either", PLAIN, Candidate(FUSED, trains=False))
    assert derive(choice_of).choice.startswith("recipe fused")
    derived = derive(choice_of, Gradients((0,), (0,)))
    assert derived.choice.startswith("recipe plain") and "fused" not in derived.choice


def test_what_the_model_does_not_know_is_named_and_not_run() -> None:
    never = replace(FUSED + NeverRuns(), name="never")
    choice_of = Choice.of("either", FUSED, Candidate(never, trains=False, modelled=False))
    assert derive(choice_of).choice.endswith("; tune=True would measure never as well")
    assert "never" not in derive(choice_of, Gradients((0,), (0,))).choice


def test_recipes_part_from_the_first_at_places_of_their_own() -> None:
    early, late = replace(FUSED.without("gelu-lifting"), name="early"), replace(FUSED + NeverRuns(), name="late")
    never = Candidate(late, most=lambda first: 0.0)
    derived = derive(Choice.of("either", PLAIN, never, Candidate(early, most=lambda first: 1.0)))
    steps = [s.name for s in derived.history]
    assert derived.choice.startswith("recipe early") and "gelu-lifting" not in steps
    assert steps.count("differentiate") == 0 and steps.count("map-fusion") == 1


def test_auto_runs_depth_first_where_caches_hold_no_layer() -> None:
    """Four layers on 64 MB: what they pass to one another stays in the cache of the assumed machine."""
    made = Graph("deep")
    b, x = Builder(made), made.add_input("x", (64, 512, 512), dace.float32)
    for _ in range(3):
        x = b.reduce(
            "sum",
            None,
            b.elementwise(lambda v, w: v / w, x, b.reduce("max", None, x, axes=(1,), keepdims=True)),
            axes=(2,),
            keepdims=True,
        )
        x = b.elementwise(lambda v, w: v - w, made.inputs[0], x)
    made.add_output(b.reduce("sum", None, x, axes=(1, 2)))
    machine = Limits(cores=2)
    with limits.assume(machine), rates.assume(rates.typical(machine)):
        derived = derivation.derive(Imported(made.copy(), None), recipes.get("auto"))
        small = derivation.derive(Imported(graph(), None), recipes.get("auto"))
    assert derived.choice.startswith("recipe graphturbo, by the cost model (cpu ")
    assert any(isinstance(node, Repeat) for node in derived.forward.nodes())
    assert "graphturbo" not in small.choice


def test_the_common_prefix() -> None:
    """Both differentiate the same graph, which is done once."""
    cpu = recipes.get("cpu").resolve()
    apollo = recipes.get("apollo").resolve()
    assert cpu[common_prefix([cpu, apollo]) - 1].name == "differentiate"
    assert common_prefix([cpu, cpu]) == len(cpu)


def test_a_choice_has_the_steps_of_its_first_and_a_fingerprint_of_all() -> None:
    auto = recipes.get("auto")
    assert isinstance(auto, Choice) and auto.steps == recipes.get("cpu").steps
    assert key(auto.fingerprint()) != key(recipes.get("cpu").fingerprint())
    assert pickle.loads(pickle.dumps(auto)) == auto
    edited = auto.without("layout-search")
    assert type(edited) is Recipe and edited.name == "auto" and "layout-search" not in str(edited)


def test_a_program_is_copied_whole() -> None:
    program = Program.of(graph(), Gradients((0,), (0,)))
    twin = program.copy()
    program.forward.remove(program.forward.nodes()[-1])
    assert len(twin.forward.nodes()) == 3 and twin.inputs == program.inputs and twin.inputs is not program.inputs


def test_the_model_looks_at_all_nodes() -> None:
    made = graph()
    assert len(program_time.by_node(made)) == 3
