"""Derivatives of derivatives: the gradients of a graph as a graph of their own, to be compiled and differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from daceopt.capture.torch import custom_gradient
from daceopt.capture.torch.calls import by_name
from daceopt.capture.torch.custom_gradient import Backward
from daceopt.capture.torch.derivative import WITH_DERIVATIVE, fresh, like
from daceopt.capture.torch.functional import DynamoInterpreter, Functional, functional, trace
from daceopt.capture.torch.plan import Plan
from daceopt.capture.torch.recorded_backward import is_once_differentiable, once, record
from daceopt.capture.torch.traced import Traced
from daceopt.errors import Unsupported


def gradient_of(traced: Traced, wrt: Sequence[int], present: Sequence[int]) -> Traced:
    """The graph from the arguments of ``traced``, and gradients of those differentiable outputs of its program that
    ``present`` counts, to the gradients of the arguments ``wrt``.

    Raises Unsupported, with the node, for graphs that draw random numbers: they would draw others here.
    """
    body_graph = functional(traced.graph, [fresh(x) for x in traced.inputs])
    _refuse_random(body_graph.graph)
    outputs = _differentiable(traced, body_graph, present)
    body = _Differentiable(body_graph.graph, body_graph.backwards)
    examples = [*map(fresh, traced.inputs), *(like(n.meta["val"]) for n in outputs)]
    gradients = trace(lambda *values: body.gradients(outputs, wrt, values, len(traced.inputs)), examples)
    gradients.graph.meta[custom_gradient.BACKWARDS] = gradients.backwards
    _drop_detached(gradients.graph)
    return _of_gradients(traced, gradients.graph, examples)


def _differentiable(traced: Traced, traced_body: Functional, present: Sequence[int]) -> list[fx.Node]:
    """Those differentiable outputs of the program that ``present`` counts."""
    planned = Plan(traced, traced_body)
    outputs = [n for n, o in zip(planned.nodes, planned.outputs) if o.differentiable]
    return [outputs[k] for k in present]


def _of_gradients(traced: Traced, graph: fx.GraphModule, examples: Sequence[object]) -> Traced:
    """``graph`` with the arguments of ``traced`` and behind them gradients, of which ``examples`` are."""
    before, added = len(traced.inputs), len(examples) - len(traced.inputs)
    floats = [isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()) for x in examples]
    return replace(
        traced,
        graph=graph,
        inputs=tuple(map(fresh, examples)),
        names=(*traced.names, *(f"gradient{k}" for k in range(added))),
        requires_grad=tuple(f and (k >= before or traced.requires_grad[k]) for k, f in enumerate(floats)),
        results=tuple(isinstance(r, fx.Node) for r in graph.graph.output_node().args[0]),
        changed=(False,) * len(examples),
        is_state=(*traced.is_state, *[False] * added),
    )


def _refuse_random(graph: fx.GraphModule) -> None:
    for node in graph.graph.nodes:
        if _is_random(node):
            raise Unsupported(f"a gradient of a gradient through {node.target}, which draws random numbers")


def _is_random(node: fx.Node) -> bool:
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    arguments = by_name(node.target, node.args, node.kwargs)
    names = (
        ("dropout_p", "dropout", "p") if "train" in arguments else ("dropout_p", "dropout")
    )  # p is no share elsewhere
    probability = next((arguments[name] for name in names if name in arguments), 1)
    return bool(probability != 0 and arguments.get("train", True) is not False)


def _drop_detached(graph: fx.GraphModule) -> None:
    """Autograd detaches what it saves; through these values the gradients of gradients go on."""
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()  # so that the arguments say what is read
    graph.recompile()


class _Differentiable(DynamoInterpreter):
    """Runs a functional graph so that autograd sees the rules of custom functions."""

    def __init__(self, graph: fx.GraphModule, backwards: Sequence[Backward]) -> None:
        super().__init__(graph)
        self.backwards = backwards
        self._again = {k: _record(backwards[k], n) for n, k in _markers(graph)}

    def gradients(
        self, outputs: Sequence[fx.Node], wrt: Sequence[int], values: Sequence[Any], count: int
    ) -> list[torch.Tensor | None]:
        """Of the arguments ``wrt``: ``values`` are ``count`` arguments, then a gradient for each of ``outputs``."""
        arguments = list(values[:count])
        for k in wrt:
            arguments[k] = arguments[k].detach().requires_grad_()
        # the fused attention's decomposition returns other statistics than its derivative reads
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            results = self.values_of(outputs, arguments)
        live = [(r, g) for r, g in zip(results, values[count:]) if r.requires_grad]
        if not live:
            return [None] * len(wrt)
        of, by, grads = [r for r, _ in live], [arguments[k] for k in wrt], [g for _, g in live]
        # some formulas read what has no derivative (the factors of a solution), unless they are differentiated
        gradients = torch.autograd.grad(of, by, grads, allow_unused=True, create_graph=True)
        return [g if g is None else g.detach() for g in gradients]

    def values_of(self, nodes: Sequence[fx.Node], arguments: Sequence[object]) -> list[torch.Tensor]:
        """The values of ``nodes`` for these arguments."""
        self.garbage_collect_values = False
        self.run(*arguments)
        return [self.env[n] for n in nodes]

    def call_function(self, target: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if target is torch.ops.daceopt.with_gradient.default:
            results, operands, saved, number = args
            return _custom(self.backwards[number], self._again[number], results, operands, saved)
        if target in (torch.ops.aten.detach.default, torch.ops.daceopt.stop_gradient.default):
            return torch.ops.daceopt.stop_gradient(args[0].detach())
        if target is torch.ops.aten.copy.default:  # of functionalization; PyTorch has no derivative of it
            return args[1].to(args[0].dtype).expand_as(args[0]).clone()
        return super().call_function(WITH_DERIVATIVE.get(target, target), args, kwargs)


def _markers(graph: fx.GraphModule) -> list[tuple[fx.Node, int]]:
    """The markers of custom functions in a functional graph, with their numbers."""
    nodes = [n for n in graph.graph.nodes if n.target is torch.ops.daceopt.with_gradient.default]
    return [(n, n.args[3]) for n in nodes]


def _record(backward: Backward, marker: fx.Node) -> Callable[..., list[Any]]:
    """The gradients that ``backward`` computes, of its arguments, as autograd differentiates them in their turn."""
    if is_once_differentiable(backward.graph):
        return lambda *values: once(backward.graph, len(backward.others), values)
    results, _, saved, _ = fx.map_arg(marker.args, lambda n: n.meta["val"])
    functional = record(backward.graph, backward.arguments(results, results, saved))
    body = _Differentiable(functional.graph, functional.backwards)
    return lambda *values: body(*values)[: functional.results]


def _custom(
    backward: Backward,
    again: Callable[..., list[Any]],
    results: Sequence[Any],
    operands: Sequence[Any],
    saved: Sequence[Any],
) -> list[Any]:
    """The marker for autograd, ``again`` its backward that autograd records; it stays in the trace, so that this can be
    differentiated in its turn."""
    count, last = len(results), len(results) + len(operands)

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            own = tuple(custom_gradient.mark(values[:count], values[count:last], values[last:], backward))
            ctx.save_for_backward(*own, *values[last:])
            return own

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
            own, saved_values = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
            gradients = again(*backward.arguments(grads, own, saved_values))
            return (*[None] * count, *(gradients[k] for k in backward.operands), *[None] * len(saved))

    return list(Custom.apply(*[r.detach() for r in results], *operands, *saved))
