"""Results from which other results are computed: what has to pass through them when gradients are asked for by them.

A program computes all results at once. Autograd has to see those that others depend on between these and the arguments,
as in eager PyTorch; see :mod:`daceopt.runtime.stages`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import fx

from daceopt.capture.torch import custom_gradient
from daceopt.capture.torch.connection import carries
from daceopt.capture.torch.derivative import fresh, like
from daceopt.capture.torch.functional import Functional, functional
from daceopt.capture.torch.plan import Plan
from daceopt.runtime.binding import ResultStage

if TYPE_CHECKING:
    from daceopt.capture.torch.traced import Traced

Held = tuple[str, int]


def stages(body: Functional, planned: Plan, differentiable: Sequence[bool]) -> tuple[ResultStage, ...]:
    """The outputs that are computed from results, in the order in which these are there.

    ``differentiable``: per result, whether it requires a gradient.
    """
    points = _points(body, planned, differentiable)
    if not points:
        return ()
    reached = _reach(body.graph.graph, points)
    outputs = {k: n for k, n in enumerate(planned.nodes) if planned.outputs[k].differentiable}
    held = {k: {points[n] for n in reached[node] if n is not node} for k, node in outputs.items()}
    levels = _levels(planned, {k: behind for k, behind in held.items() if behind})
    found_levels = sorted(set(levels.values()))
    members = [[k for k in levels if levels[k] == level] for level in found_levels]
    return tuple(ResultStage(tuple(m), tuple(sorted(set().union(*(held[k] for k in m))))) for m in members)


def _points(body: Functional, planned: Plan, differentiable: Sequence[bool]) -> dict[fx.Node, Held]:
    """What may be between others and the arguments: results, and new values of arguments, that autograd sees."""
    points: dict[fx.Node, Held] = {}
    for argument, k in planned.mutations:
        if planned.outputs[k].differentiable:
            points[planned.nodes[k]] = ("argument", argument)
    values = body.graph.graph.output_node().args[0][: body.results]
    for k, (value, result, flag) in enumerate(zip(values, planned.results, differentiable, strict=True)):
        if flag and result.kind in ("output", "input") and value.op != "placeholder":
            points.setdefault(value, ("result", k))
    return points


def _reach(graph: fx.Graph, points: Collection[fx.Node]) -> dict[fx.Node, frozenset[fx.Node]]:
    """Per node the points from which it is computed differentiably, itself included."""
    reached: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in graph.nodes:
        sources = [reached[n] for n in node.all_input_nodes if reached[n]] if carries(node) else []
        own = [node] if node in points else []
        reached[node] = frozenset(own).union(*sources)
    return reached


def _levels(planned: Plan, held: Mapping[int, set[Held]]) -> dict[int, int]:
    """Per output that is computed from points how many of them are one behind the other before it."""
    written = dict(planned.mutations)
    levels: dict[int, int] = {}

    def level(output: int | None) -> int:
        if output is None or output not in held:
            return 0
        if output not in levels:
            levels[output] = 1 + max(level(source(point)) for point in held[output])
        return levels[output]

    def source(point: Held) -> int | None:
        kind, k = point
        if kind == "result" and planned.results[k].kind == "output":
            return planned.results[k].index
        return written.get(planned.results[k].index if kind == "result" else k)

    for k in held:
        level(k)
    return levels


def segment(traced: Traced, stage: ResultStage, outputs: Sequence[int]) -> Traced:
    """The graph from the arguments, and behind them what the stage holds, to these outputs of it."""
    inputs = tuple(map(fresh, traced.inputs))
    body = functional(traced.graph, inputs)
    planned = Plan(traced, body)
    graph = body.graph.graph
    held = [_node_of(point, body, planned) for point in stage.held]
    results = [planned.nodes[k] for k in outputs]
    numbers = {n: k for k, n in enumerate(filter(_draws, graph.nodes))}
    _cut(graph, held)
    _return(graph, results)
    body.graph.recompile()
    body.graph.meta[custom_gradient.BACKWARDS] = body.backwards
    added = len(held)
    return replace(
        traced,
        graph=body.graph,
        inputs=(*inputs, *(like(n.meta["val"]) for n in held)),
        names=(*traced.names, *(f"result{k}" for k in range(added))),
        requires_grad=(*traced.requires_grad, *[True] * added),
        results=(True,) * len(results),
        changed=(False,) * (len(inputs) + added),
        is_state=(*traced.is_state, *[False] * added),
        draws=tuple(numbers[n] for n in graph.nodes if n in numbers),
    )


def _node_of(point: Held, body: Functional, planned: Plan) -> fx.Node:
    kind, k = point
    if kind == "argument":
        return planned.nodes[dict(planned.mutations)[k]]
    node: fx.Node = body.graph.graph.output_node().args[0][k]
    return node


def _cut(graph: fx.Graph, held: Sequence[fx.Node]) -> None:
    """Let arguments stand for these nodes."""
    last = next((n for n in reversed(graph.nodes) if n.op == "placeholder"), graph._root)
    for k, node in enumerate(held):
        with graph.inserting_after(last):
            last = graph.placeholder(f"result{k}")
        last.meta = {"val": like(node.meta["val"])}
        node.replace_all_uses_with(last)


def _return(graph: fx.Graph, results: Sequence[fx.Node]) -> None:
    """Let the graph give copies of these, and nothing else."""
    end = graph.output_node()
    with graph.inserting_before(end):
        copies = [graph.call_function(torch.ops.aten.clone.default, (n,)) for n in results]
    for copy, node in zip(copies, results):
        copy.meta = dict(node.meta)
    end.args = (copies,)
    graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))


def _draws(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
