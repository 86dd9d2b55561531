"""How import, recipe and derivation grow with the number of layers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from benchmarks.harness import Budget, Result, at_most, case
from benchmarks.models.named import stacked

_LAYERS = (1, 2, 4, 8, 16, 32)
_QUICK_LAYERS = (1, 2, 4, 8)
_PHASES = ("import", "recipe", "differentiate")
_LARGEST_EXPONENT = 1.15  # time ~ layers ** exponent; 1 is linear, the rest is noise


@case
def linear_scaling(budget: Budget) -> Iterator[Result]:
    """Seconds for equal BERT layers, and the exponent of growth over the larger half of the sizes."""
    layers = _LAYERS if budget.repeats > 1 else _QUICK_LAYERS
    _seconds(1)  # what the first compilation imports and sets up
    measured = {n: _seconds(n) for n in layers}
    for phase in _PHASES:
        values = {str(n): measured[n][phase] for n in layers}
        exponent = growth({n: measured[n][phase] for n in layers[len(layers) // 2 - 1 :]})
        goal, met = at_most(exponent, _LARGEST_EXPONENT, f"linear (an exponent of at most {_LARGEST_EXPONENT})")
        yield Result("linear-scaling", f"{phase}, by layers", "s", values, goal, met, {"exponent": round(exponent, 2)})


def growth(seconds: dict[int, float]) -> float:
    """The exponent b of the least-squares fit ``seconds = a * size ** b``."""
    points = [(math.log(n), math.log(s)) for n, s in seconds.items()]
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)


def _seconds(layers: int) -> dict[str, float]:
    """Seconds per phase for a model of ``layers`` layers; capture is PyTorch's own work and does not count."""
    from daceopt import pipeline, recipes
    from daceopt.capture.trace import trace
    from daceopt.importer import import_model

    model, inputs = stacked(layers)
    traced = trace(model, inputs, {})
    onnx_model = traced.to_onnx()
    begun = time.perf_counter()
    import_model(onnx_model)
    imported = time.perf_counter() - begun
    constants = {k: s.value.detach().numpy() for k, s in enumerate(traced.inputs) if s.value is not None}
    wanted = tuple(k for k, s in enumerate(traced.inputs) if s.kind == "parameter")
    outputs = tuple(k for k, s in enumerate(traced.graph_outputs) if s.kind == "user")
    gradients = pipeline.Gradients(wanted, outputs)
    return {"import": imported, **pipeline.derive(onnx_model, constants, recipes.get("auto"), gradients).seconds}
