"""How far the cost model is from what was measured, over the kernels of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, log

from daceopt.cost.kernel_class import WITHIN, ModelError
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
    """One line: how many kernels, the geometric mean of the factors by which the model is off, how many are well known,
    and the worst."""
    triples = [(node, model, seconds) for node, model, seconds in pairs if model > 0]
    if not triples:
        return None
    error = ModelError.of((model, seconds) for _, model, seconds in triples)
    worst, label = max((abs(log(model / seconds)), str(node.label)) for node, model, seconds in triples)
    count = f"{error.count} kernel{'s' * (error.count > 1)}, {error.share:.0%} within {WITHIN}"
    mean = f"a factor of {error.factor:.2f} (mean of {count})"
    return f"the cost model is off by {mean}, at worst {exp(worst):.2f} ({label})"
