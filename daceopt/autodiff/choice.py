"""The gradient of a choice is a choice: each branch computes its own part again, and the gradients of what it read."""

from __future__ import annotations

from collections.abc import Collection

from daceopt.autodiff.differentiate import extend
from daceopt.autodiff.rules import Contributions, Grads, adjoint
from daceopt.autodiff.sums import total
from daceopt.ir.control.region import CONDITION, Conditional, drop_operands
from daceopt.ir.control.region_builder import Body, ChoiceBuilder
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types


@adjoint(Conditional)
def choice(b: Builder, node: Conditional, grads: Grads, wrt: Collection[str]) -> Contributions:
    """Arrays that one branch does not read get zeros from it."""
    graph, reads = b.graph, b.graph.reads(node)
    arrays = sorted(n for n in set(reads.values()) & set(wrt) if types.is_float(graph.dtype(n)))
    backward = ChoiceBuilder(graph, f"{node.label}_backward", reads[CONDITION])
    for which, branch in enumerate(backward.bodies):
        _fill(graph, node, which, branch, grads, arrays)
    results = [graph.add_array("choice_grad", graph.shape(n), graph.dtype(n)) for n in arrays]
    backward_choice = backward.finish(results)
    for body in backward_choice.bodies:
        body.prune()
    drop_operands(graph, backward_choice)
    return list(zip(arrays, results))


def _fill(graph: Graph, node: Conditional, which: int, branch: Body, grads: Grads, arrays: list[str]) -> None:
    """Make ``branch`` compute the gradients of ``arrays``."""
    reads, writes = graph.reads(node), graph.writes(node)
    body, captured = node.bodies[which].copy(), node.captures[which]
    places = {name: grads[writes[f"Out{k}"]] for k, name in enumerate(body.outputs) if writes.get(f"Out{k}") in grads}
    inner = [n for n, c in captured.items() if reads[c] in arrays]
    seeds, sums = extend(body, list(places), inner)
    body.outputs = []
    branch.adopt_graph(body, {n: reads[c] for n, c in captured.items()})
    for output, seed in seeds.items():
        body.inputs.remove(seed)
        branch.bind(seed, places[output])
    parts = {n: [str(sums[i]) for i in inner if reads[captured[i]] == n and sums[i] is not None] for n in arrays}
    branch.declare_outputs(
        [
            total(branch.b, p, graph.dtype(n)) if p else branch.b.full(graph.shape(n), 0, graph.dtype(n))
            for n, p in parts.items()
        ]
    )
