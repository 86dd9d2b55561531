"""How far the cost model is from what was measured, over the kernels of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, log

from daceopt.cost.program_time import by_node
from daceopt.explore.report.collect import Direction, measured_seconds
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode

SHORT = 1e-6  # seconds: below this the clock is most of what it reads


def modelled_and_measured(directions: Iterable[Direction], sizes: Mapping[str, int]) -> list[tuple[Node, float, float]]:
    """(kernel, modelled seconds, measured seconds) of each kernel that takes longer than the clock's own time."""
    triples = []
    for direction in directions:
        for node, model in by_node(direction.graph, sizes).items():
            seconds = measured_seconds(direction, node)
            if isinstance(node, KernelNode) and seconds is not None and seconds >= SHORT:
                triples.append((node, model, seconds))
    return triples


def summary(pairs: Iterable[tuple[Node, float, float]]) -> str | None:
    """One line: how many kernels, the geometric mean of the factors by which the model is off, and the worst."""
    errors = [(abs(log(model / seconds)), node) for node, model, seconds in pairs if model > 0]
    if not errors:
        return None
    mean = exp(sum(e for e, _ in errors) / len(errors))
    worst, node = max(errors, key=lambda pair: pair[0])
    count = f"{len(errors)} kernel{'s' * (len(errors) > 1)}"
    return (
        f"the cost model is off by a factor of {mean:.2f} (mean of {count}), at worst {exp(worst):.2f} ({node.label})"
    )
