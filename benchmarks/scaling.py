"""How import, recipe, derivation and printing grow with the number of layers; the time of BERT-large's recipe."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.front_end import capture_graph
from benchmarks.harness import Budget, Result, at_most, case
from benchmarks.importing import bert_large
from benchmarks.models.named import stack

if TYPE_CHECKING:
    from daceopt.capture.torch.importing import Traced

_LAYERS = (2, 4, 8, 16, 32, 64)
_QUICK_LAYERS = (1, 2, 4, 8)
PHASES = ("import", "recipe and derivation", "printing")
_BERT_LARGE = (6, 12, 24)
_RECIPE_SECONDS = 40.0
_LARGEST_EXPONENT = 1.1  # time ~ layers ** exponent; 1 is linear, the rest is noise and the collector of a large heap


@case
def linear_scaling(budget: Budget) -> Iterator[Result]:
    """Processor seconds for equal BERT layers, and the exponent of growth over the larger half of the sizes."""
    layers = _LAYERS if budget.repeats > 1 else _QUICK_LAYERS
    _seconds(1)  # what the first compilation imports and sets up
    measured = {n: _seconds(n) for n in layers}
    for phase in measured[layers[0]]:
        seconds = {n: measured[n][phase] for n in layers}
        exponent = growth({n: seconds[n] for n in layers[len(layers) // 2 - 1 :]})
        goal = at_most(exponent, _LARGEST_EXPONENT, f"linear (an exponent of at most {_LARGEST_EXPONENT})")
        notes = {"exponent": round(exponent, 2)}
        values = {str(n): s for n, s in seconds.items()}
        yield Result("linear-scaling", f"{phase}, by layers", "s", values, *goal, notes)


@case
def recipe_time(budget: Budget) -> Iterator[Result]:
    """BERT-large with its gradients, batch 1, length 128: processor seconds of the steps of ``auto`` alone."""
    layers = _BERT_LARGE if budget.repeats > 1 else _BERT_LARGE[:2]
    _recipe_seconds(1)  # what the first compilation imports and sets up
    seconds = {n: _recipe_seconds(n) for n in layers}
    bound = _RECIPE_SECONDS * layers[-1] / _BERT_LARGE[-1]
    goal = at_most(seconds[layers[-1]], bound, f"under {bound:g} s for {layers[-1]} layers")
    values = {str(n): s for n, s in seconds.items()}
    yield Result("recipe-time", "recipe auto, by layers", "s", values, *goal, {"exponent": round(growth(seconds), 2)})


def _recipe_seconds(layers: int) -> float:
    from daceopt import explore, recipes
    from daceopt.passes import choice

    module, inputs = bert_large(layers)
    program = explore(module, backward=True, **inputs).program
    start = time.process_time()
    choice.run(recipes.get("auto"), program, None)
    return time.process_time() - start


def growth(seconds: dict[int, float]) -> float:
    """The exponent b of the least-squares fit ``seconds = a * size ** b``."""
    points = [(math.log(n), math.log(s)) for n, s in seconds.items()]
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)


def _seconds(layers: int) -> dict[str, float]:
    """Processor seconds (the machine may be shared) of each phase and of all; nothing is compiled.

    What TorchDynamo does is PyTorch's own work and does not count.
    """
    model, inputs = stack(layers)
    ticks = [time.process_time() for _ in through(capture_graph(model, inputs, {}))]
    seconds = {phase: end - begin for phase, begin, end in zip(PHASES, ticks, ticks[1:])}
    return {**seconds, "all": ticks[-1] - ticks[0]}


def through(traced: Traced) -> Iterator[None]:
    """From a captured graph to the text of its programs; stops before the first of ``PHASES`` and after each."""
    from daceopt import libs, recipes
    from daceopt.capture.torch.importing import load
    from daceopt.codegen.build import GeneratedProgram
    from daceopt.programs import derivation

    yield
    imported = load(traced)
    yield
    derived = derivation.derive(imported, recipes.get("auto"))
    yield
    for k, (graph, roles) in enumerate(derived.directions()):
        GeneratedProgram(graph, roles, libs.implement, k)
    yield
