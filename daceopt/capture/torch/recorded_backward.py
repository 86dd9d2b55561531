"""The backward of a custom function as autograd records it, to be differentiated in its turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import fx

from daceopt.capture.torch.backward_switches import ONCE, RECORDED
from daceopt.capture.torch.derivative import fresh
from daceopt.capture.torch.functional import DynamoInterpreter, Functional, functional, on_fakes
from daceopt.capture.torch.writes import SEQUENCE, WRITES, note
from daceopt.errors import Unsupported
from daceopt.torch_internals import autograd_engine


@torch.library.custom_op("daceopt::differentiated_once", mutates_args=())
def differentiate_once(results: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """``results`` as they are, which depend on ``gradients`` in a way that has no derivative."""
    return [r.clone() for r in results]


@differentiate_once.register_fake
def _(results: Any, gradients: object) -> list[torch.Tensor]:
    return [torch.empty_like(r) for r in results]


def _refuse(ctx: object, *grads: object) -> NoReturn:
    raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")


differentiate_once.register_autograd(_refuse)


def is_once_differentiable(graph: fx.GraphModule) -> bool:
    """Whether the backward has been marked so."""
    return any(n.meta.get(ONCE) for n in graph.graph.nodes)


def once(graph: fx.GraphModule, incoming: int, values: Sequence[object]) -> list[Any]:
    """What a backward that is differentiable once gives for ``values``, the first of them ``incoming`` gradients."""
    with torch.no_grad():
        results = DynamoInterpreter(graph)(*values)
    tensors = [f for f in results if isinstance(f, torch.Tensor)]
    marked = iter(torch.ops.daceopt.differentiated_once(tensors, list(values[:incoming])))
    return [next(marked) if isinstance(f, torch.Tensor) else f for f in results]


def record(graph: fx.GraphModule, inputs: Sequence[object]) -> Functional:
    """The functional graph of a backward on fake ``inputs``, all of which may require a gradient, with what its own
    code detaches, computes where it switches gradients off, or writes behind autograd's back. Raises Unsupported where
    that code asks whether gradients are on."""
    own = _with_own_switches(graph)
    values = [_as_result(x) for x in map(fresh, inputs)]
    with on_fakes(values), torch.enable_grad():
        _Noting(own).run(*values)
    _detach_results(own.graph)
    own.recompile()
    return functional(own, [*map(fresh, inputs)])


def _with_own_switches(graph: fx.GraphModule) -> fx.GraphModule:
    body = fx.Graph()
    body.output(body.graph_copy(graph.graph, {}))
    for node in body.nodes:
        if node.target is autograd_engine.set_grad_enabled:
            recorded = node.meta.get(RECORDED, True)
            if recorded is None:
                raise Unsupported("a gradient of a gradient where a backward asks whether gradients are on")
            node.args = (recorded,)
    return fx.GraphModule(graph, body)


def _detach_results(graph: fx.Graph) -> None:
    """A result that requires no gradient says so, even where nothing in the graph requires one."""
    output = graph.output_node()
    for node in output.all_input_nodes:
        value = node.meta["example_value"]
        if isinstance(value, torch.Tensor) and not value.requires_grad:
            with graph.inserting_before(output):
                detached = graph.call_method("detach", (node,))
            detached.meta["example_value"] = value.detach()
            output.replace_input_with(node, detached)


def _as_result(value: object) -> object:
    """A value as what autograd has computed, into which it may be written."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    with torch.enable_grad():
        return value.requires_grad_().clone()


class _Noting(fx.Interpreter):
    """Keeps with each node what Dynamo does: its value, and what it writes into."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.garbage_collect_values = False

    def run_node(self, n: fx.Node) -> object:
        for key in (WRITES, SEQUENCE):
            n.meta.pop(key, None)
        value = n.meta["example_value"] = note(lambda: super(_Noting, self).run_node(n), n)
        return value
