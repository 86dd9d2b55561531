"""How import, recipe and derivation grow with the number of layers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from benchmarks.front_end import captured
from benchmarks.harness import Budget, Result, at_most, case
from benchmarks.models.named import stacked

_LAYERS = (1, 2, 4, 8, 16, 32)
_QUICK_LAYERS = (1, 2, 4, 8)
_LARGEST_EXPONENT = 1.15  # time ~ layers ** exponent; 1 is linear, the rest is noise


@case
def linear_scaling(budget: Budget) -> Iterator[Result]:
    """Processor seconds for equal BERT layers, and the exponent of growth over the larger half of the sizes."""
    layers = _LAYERS if budget.repeats > 1 else _QUICK_LAYERS
    _seconds(1)  # what the first compilation imports and sets up
    measured = {n: _seconds(n) for n in layers}
    for phase in measured[1]:
        seconds = {n: measured[n][phase] for n in layers}
        exponent = growth({n: seconds[n] for n in layers[len(layers) // 2 - 1 :]})
        goal = at_most(exponent, _LARGEST_EXPONENT, f"linear (an exponent of at most {_LARGEST_EXPONENT})")
        notes = {"exponent": round(exponent, 2)}
        values = {str(n): s for n, s in seconds.items()}
        yield Result("linear-scaling", f"{phase}, by layers", "s", values, *goal, notes)


def growth(seconds: dict[int, float]) -> float:
    """The exponent b of the least-squares fit ``seconds = a * size ** b``."""
    points = [(math.log(n), math.log(s)) for n, s in seconds.items()]
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)


def _seconds(layers: int) -> dict[str, float]:
    """Processor seconds (the machine may be shared) of the import alone, and of import, recipe and derivation.

    What TorchDynamo does is PyTorch's own work and does not count.
    """
    from daceopt import pipeline, recipes
    from daceopt.capture.torch.importing import load

    model, inputs = stacked(layers)
    traced = captured(model, inputs, {})
    begun = time.process_time()
    imported = load(traced)
    seconds = time.process_time() - begun
    pipeline.derive(imported, recipes.get("auto"))
    return {"import": seconds, "all": time.process_time() - begun}
