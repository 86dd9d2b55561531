"""What the liftings of normalizations share: ``n / sqrt(mean(d * d) + eps)`` and the scale and bias after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daceopt.ir import types
from daceopt.ir.graph import Graph, Shape
from daceopt.transform import Site, sweep
from daceopt.transformations.coarse._patterns import (
    between,
    made_by,
    ratio,
    scaled_by_vector,
    shared,
    squares,
    trailing,
    with_scalar,
)


@dataclass(frozen=True)
class Normalization:
    """``numerator / sqrt(mean(of * of) + epsilon)``; ``reduction`` is the operator that takes the mean."""

    numerator: str
    of: str
    reduction: Any
    epsilon: float

    def site(self, graph: Graph, node: Any, x: str, affine: tuple[str, ...]) -> Site | str:
        """The site for ``node`` over input ``x``, with the scale and bias that follow; a text when it is none."""
        inner = between(graph, node, [x])
        stray = [n for n in inner if n is not node]
        used = shared(graph, [o for n in stray for o in graph.outputs_of(n)], inner)
        if used is not None:
            return f"{used} inside the normalization has another user"
        axes = trailing(graph, self.reduction) or []
        shape = graph.shape(x)[axes[0] :]
        if not all(isinstance(d, int) for d in shape):
            return f"the normalized dimensions {shape} must be known"
        chain = _affine(graph, str(graph.outputs_of(node)[0]), shape, affine)
        found = {"x": x, "axis": axes[0], "epsilon": self.epsilon, "shape": shape, "operands": [v for _, v in chain]}
        return Site(graph, (node, *(n for n, _ in chain)), found)


def parts_of(graph: Graph, node: Any) -> Normalization | None:
    """Read ``node`` as a normalization; None when it is not one."""
    found = ratio(graph, node)
    total = made_by(graph, found[1], "Add") if found else None
    if found is None or total is None:
        return None
    shifted = with_scalar(graph, total)
    reduction = find_mean(graph, shifted[0]) if shifted else None
    if shifted is None or reduction is None:
        return None
    squared = squares(graph, graph.producer(str(graph.inputs_of(reduction)[0])))
    return None if squared is None else Normalization(found[0], squared, reduction, shifted[1])


def find_mean(graph: Graph, name: str | None) -> Any | None:
    """The ReduceMean that writes ``name``."""
    return made_by(graph, name, "ReduceMean")


def _affine(graph: Graph, name: str, shape: Shape, op_types: tuple[str, ...]) -> list[tuple[Any, str]]:
    """The multiplication and addition by vectors that follow ``name``, as far as they stand there."""
    chain: list[tuple[Any, str]] = []
    for op_type in op_types:
        found = scaled_by_vector(graph, name, op_type, shape)
        if found is None:
            return chain
        chain.append(found)
        name = str(graph.outputs_of(found[0])[0])
    return chain


def apply_normalization(site: Site, op_type: str) -> None:
    """Put one ``op_type`` operator in place of the nodes of ``site``; a scale of ones when the model has none."""
    graph, x = site.graph, site["x"]
    output = graph.outputs_of(site.nodes[-1])[0]
    operands = list(site["operands"])
    if not operands:
        operands = [graph.add_constant("ones", np.ones(site["shape"], types.to_numpy(graph.dtype(x))))]
    sources = [graph.producer(n) for n in graph.inputs_of(site.nodes[0]) if n is not None]
    for node in reversed(site.nodes):
        graph.remove(node)
    attributes = {"axis": site["axis"], "epsilon": site["epsilon"]}
    graph.add_operator(op_type, [x, *operands], [output], attributes)
    sweep(graph, sources)
