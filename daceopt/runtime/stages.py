"""Results of a call from which other results are computed, as autograd sees them: between these and the arguments.

One program computes them all, and one node of autograd stands for it. An output that is computed from results hangs on
a node of its own, whose edges lead to these results and to the program's node. In an ordinary backward that node hands
its gradient on to the program's, which computes all gradients at once. Where a gradient by one of the results is asked
for, or a hook waits there, it computes that gradient, and adds the direct part to what the program's node finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from daceopt.runtime import batched, engine, result_hooks
from daceopt.runtime.binding import ResultStage
from daceopt.torch_internals.autograd_engine import current_task
from daceopt.torch_internals.frame_evaluation import never_compile

Gradients = list["torch.Tensor | None"]


class _Stage(torch.autograd.Function):
    """The node on which outputs hang that are computed from other results."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        base: torch.autograd.function.FunctionCtx,
        stage: ResultStage,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        count = len(stage.outputs)
        ctx.base, ctx.stage, ctx.held = base, stage, tensors[count:]
        ctx.versions = [t._version for t in ctx.held]
        ctx.set_materialize_grads(False)
        return tuple([t.detach() for t in tensors[:count]])

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *grads: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        if not torch.is_grad_enabled() and not _are_observed(ctx.held):
            return (None, None, *grads, *[None] * len(ctx.held))
        if all(g is None for g in grads):
            return (None,) * (2 + len(grads) + len(ctx.held))
        return (None, None, *[None] * len(grads), *_through(ctx, grads))


result_hooks.install(_Stage)


# ``_Stage.apply`` without its looks at every argument; no transform of torch.func is active where it is called
_apply = super(torch.autograd.Function, _Stage).apply


# A backward that some forward calls is no code for Dynamo to look at, nor is what it calls in its turn.
never_compile(_Stage.backward.__code__)


def attach(stage: ResultStage, outputs: list[torch.Tensor], held: Sequence[torch.Tensor]) -> None:
    """Hang the stage's outputs of a call, which are among ``outputs`` as the program's node gave them, on ``held``."""
    tensors = [outputs[k] for k in stage.outputs]
    for k, tensor in zip(stage.outputs, _apply(tensors[0].grad_fn, stage, *tensors, *held)):
        outputs[k] = tensor


def with_direct(base: torch.autograd.function.FunctionCtx, gradients: Gradients) -> Gradients:
    """The gradients by the inputs that the node of a program has found, with what stages have found beside it."""
    if not base.direct:
        return gradients
    for outputs, direct in base.direct.pop(current_task(), ()):
        for k, gradient in enumerate(direct):
            if gradient is not None:
                gradients[k] = gradient if gradients[k] is None else gradients[k] + gradient
        _add_zeros(base, outputs, gradients)
    return gradients


def _add_zeros(base: torch.autograd.function.FunctionCtx, outputs: set[int], gradients: Gradients) -> None:
    """What is connected with these outputs has a gradient."""
    for k, of in (base.program.boundary.connected or {}).items():
        if gradients[k] is None and base.needs_input_grad[k + 1] and not outputs.isdisjoint(of):
            gradients[k] = torch.zeros_like(base.operands[k])


def _through(ctx: torch.autograd.function.FunctionCtx, grads: Sequence[torch.Tensor | None]) -> Gradients:
    """The gradients by what the stage holds; those by the inputs of the program are left to its node."""
    base, stage = ctx.base, ctx.stage
    is_needed = _is_needed(base)
    changed = frozenset(k for k, (t, then) in enumerate(zip(ctx.held, ctx.versions)) if t._version != then)

    def to_gradients(one: Sequence[torch.Tensor | None]) -> Gradients:
        return base.program.apart(base, stage, ctx.held, changed, one, is_needed)

    gradients = batched.each(to_gradients, grads) if batched.is_batched(grads) else to_gradients(grads)
    count = base.program.input_count
    if is_needed:
        outputs = {k for k, g in zip(stage.outputs, grads) if g is not None}
        base.direct.setdefault(current_task(), []).append((outputs, gradients[:count]))
    return gradients[count:]


def _is_needed(base: torch.autograd.function.FunctionCtx) -> bool:
    """Whether the backward that runs wants a gradient by what the program was given, or by what that comes from."""
    return any(engine.gradients_wanted(base, base.operands))


def _are_observed(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether somebody sees the gradient by one of these on its way."""
    return any(t.retains_grad or t._backward_hooks for t in tensors) or _are_wanted(tensors)


def _are_wanted(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the backward that runs in this thread may be one by these tensors."""
    inputs = engine.inputs()
    if inputs is None:
        return True
    edges = {_edge(x) for x in inputs}
    return any(_edge(t) in edges for t in tensors)


def _edge(value: torch.Tensor) -> tuple[Any, int]:
    """Where a gradient by a tensor, or by an edge of the graph, is collected."""
    return (value.grad_fn, value.output_nr) if isinstance(value, torch.Tensor) else (value.node, value.output_nr)
