"""Compiled random graphs, forward and backward, beside the interpreter in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daceopt import libs, ops, recipes
from daceopt.autodiff import differentiate
from daceopt.codegen import trial
from daceopt.codegen.bundle import Bundle
from daceopt.errors import Unsupported
from daceopt.ir.control.imported import Gradients, Imported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.passes.recipe import Recipe
from daceopt.programs import derivation
from daceopt.programs.derivation import Derived
from daceopt.runtime.executable import Executable
from tests.numerics import assert_within_rounding
from tests.properties.graphs import NOMINAL, SIZE, Maker

SIZES = (0, 1, 2, NOMINAL)  # of the open extent
ULPS = 64.0  # of the largest element: a chain of a dozen steps
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A graph is its seed, the kind of its extents, and whether it is differentiated."""

    seed: int
    kind: str
    backward: bool

    def graph(self) -> Graph:
        return Maker(self.seed, self.kind).build()

    def deviation(self, name: str, shape: Sequence[int]) -> float:
        """The standard deviation of the values of an input: results are of order one, too."""
        return 1.0


@dataclass
class Run:
    """Values by role: what is given, and what the graph says in float64 and in float32."""

    given: Arrays
    expected: Arrays
    peer: Arrays


@dataclass
class Compiled:
    """A case as programs, and what they are run on."""

    forward: Executable
    backward: Executable | None
    runs: list[Run]

    def check(self) -> None:
        """Compare all results with float64."""
        for run in self.runs:
            self._check(run)

    def _check(self, run: Run) -> None:
        first = trial.run(self.forward, run.given)
        found = dict(first.outputs)
        if self.backward is not None:
            found |= trial.run(self.backward, {**run.given, **found}, first.saved).outputs
        assert set(found) == set(run.expected), f"results {sorted(found)}, expected {sorted(run.expected)}"
        for role, ours in found.items():
            try:
                assert ours.shape == run.expected[role].shape, f"shape {run.expected[role].shape} is expected"
                assert_within_rounding(*map(_beside_one, (ours, run.expected[role], run.peer[role])), ulps=ULPS)
            except AssertionError as error:
                raise AssertionError(f"{role} {ours.shape}: {str(error).strip()}") from None


def _beside_one(array: np.ndarray) -> np.ndarray:
    """Values are of order one: where they cancel, what is left is the rounding of such values."""
    return np.append(array, array.dtype.type(1))


def compile_case(case: Case, bundle: Bundle, recipe: str | Recipe = "cpu") -> Compiled:
    """Derive both directions as the pipeline does, and the reference from the graph as it was."""
    graph = case.graph()
    runs = []
    for size in SIZES if graph.symbols else (NOMINAL,):
        given = _values(graph, case, size)
        runs.append(Run(given, *(reference(graph, given, case.backward, t) for t in (np.float64, None))))
    directions = _derived(graph, case.backward, recipe).directions()
    forward, *backward = [bundle.add(g, roles, libs.implement) for g, roles in directions]
    return Compiled(forward, backward[0] if backward else None, runs)


def _derived(graph: Graph, backward: bool, recipe: str | Recipe) -> Derived:
    gradients = Gradients(tuple(range(len(graph.inputs))), tuple(range(len(graph.outputs))))
    imported = Imported(graph.copy(), gradients if backward else None)
    return derivation.derive(imported, recipes.get(recipe) if isinstance(recipe, str) else recipe)


def _values(graph: Graph, case: Case, size: int) -> Arrays:
    """Inputs, and gradients of the outputs, by role; ``size`` is the open extent."""
    rng = np.random.default_rng(case.seed + 1)
    shapes = {f"input:{k}": graph.shape(n) for k, n in enumerate(graph.inputs)}
    shapes |= {f"grad:{k}": graph.shape(n) for k, n in enumerate(graph.outputs)}
    numbers = {r: [n if isinstance(n, int) else int(n.subs({SIZE: size})) for n in s] for r, s in shapes.items()}
    names = {f"input:{k}": n for k, n in enumerate(graph.inputs)}
    scales = {role: case.deviation(names[role], shape) if role in names else 1.0 for role, shape in numbers.items()}
    return {role: (scales[role] * rng.standard_normal(shape)).astype(np.float32) for role, shape in numbers.items()}


def reference(graph: Graph, given: Arrays, backward: bool, dtype: type | None) -> Arrays:
    """Results of the interpreter by role: outputs and, with ``backward``, gradients of the inputs that have any."""
    feeds = {n: given[f"input:{k}"] for k, n in enumerate(graph.inputs)}
    if not backward:
        done = interpret(graph, feeds, dtype)
        return {f"output:{k}": done[n] for k, n in enumerate(graph.outputs)}
    graph = graph.copy()
    ops.lower_all(graph, keep=ops.has_gradient)
    derivative = differentiate(graph, graph.outputs, graph.inputs)
    done = interpret(derivative.forward, feeds, dtype)
    result = {f"output:{k}": done[n] for k, n in enumerate(derivative.forward.outputs)}
    order = derivative.forward.outputs
    seeds = {g: given[f"grad:{order.index(n)}"] for n, g in derivative.grad_outputs.items()}
    again = {n: feeds[n] for n in derivative.forward_inputs_needed}
    found = interpret(derivative.backward, {**feeds, **seeds, **{n: done[n] for n in derivative.saved}, **again}, dtype)
    gradients = {graph.inputs.index(n): g for n, g in derivative.grad_inputs.items() if g is not None}
    return result | {f"grad_input:{k}": found[g] for k, g in gradients.items()}


def failures(cases: Sequence[Case], recipe: str | Recipe = "cpu") -> list[str]:
    """What is wrong with each case that fails, the smallest graphs first; all are compiled together."""
    bundle = Bundle()
    programs: dict[Case, Compiled] = {}
    found: list[tuple[Case, Exception]] = []
    for case in cases:
        try:
            programs[case] = compile_case(case, bundle, recipe)
        except Unsupported as error:
            if "no output depends" not in str(error):
                found.append((case, error))
        except Exception as error:
            found.append((case, error))
    for case, program in programs.items():
        try:
            program.check()
        except Exception as error:
            found.append((case, error))
    found.sort(key=lambda item: len(item[0].graph().nodes()))
    return [f"{case}\n    {type(error).__name__}: {error}" for case, error in found]
