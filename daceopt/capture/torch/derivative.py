"""The derivative of an ATen operator by PyTorch's own formula: traced as a graph and imported like any other.

An operator that stays whole (domain ``aten``) is lowered by the rules of ``aten/`` after differentiation. Its gradient
rule traces ``torch.autograd.grad`` of that one call; a custom ``autograd.Function`` brings its backward graph itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch import guards
from daceopt.capture.torch.calls import AtenCall, Item, Operand
from daceopt.capture.torch.custom_gradient import NumberSlot
from daceopt.capture.torch.foreign import has_derivative
from daceopt.capture.torch.functional import DynamoInterpreter, trace
from daceopt.capture.torch.lines import note_line
from daceopt.capture.torch.numbers import holder_of, stand_for_number, symbols_in
from daceopt.capture.torch.strides import dense_order
from daceopt.capture.torch.translation import DOMAIN, Importer, Translation
from daceopt.errors import Unsupported
from daceopt.ir.graph.operands import require
from daceopt.ir.graph.operator import Operator
from daceopt.ir.nodes.builder import Builder
from daceopt.libs import aten_call
from daceopt.ops.core import registry
from daceopt.ops.families.elementwise import alias
from daceopt.torch_internals.pytree import tree_leaves

Names = list["str | None"]

_NO_DERIVATIVE = re.compile("derivative|differentiable")  # what PyTorch says where it has none


def _copy(self: torch.Tensor, src: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    return src.to(self.dtype).expand(self.shape)


def _by_parts(scatter: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """PyTorch has no derivative of ``scatter`` for complex tensors, but of their real and imaginary parts."""

    def differentiate(self: torch.Tensor, src: torch.Tensor, dim: int, *rest: object) -> torch.Tensor:
        if not self.is_complex():
            return scatter(self, src, dim, *rest)
        both = scatter(torch.view_as_real(self), torch.view_as_real(src), dim % self.dim(), *rest)
        return torch.view_as_complex(both)

    return differentiate


def _filled_where(self: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """PyTorch's derivative by the value counts each place once by ``unique``, whose size only the data decide."""
    rank = self.dim()
    sizes = [n if k == dim % rank else 1 for k, n in enumerate(self.shape)] if rank else []
    count = self.shape[dim] if rank else 1
    places = torch.zeros(count, dtype=torch.int8, device=self.device).index_fill(0, index, 1).reshape(sizes)
    return torch.where(places != 0, value.to(self.dtype), self)


class _HalfSpectrum(torch.autograd.Function):
    """``_fft_r2c`` of one side. PyTorch's derivative transforms both sides, of which one is zeros; this one takes the
    half: each frequency between the ends stands for two."""

    @staticmethod
    def forward(ctx: Any, self: torch.Tensor, dim: list[int], normalization: int) -> torch.Tensor:
        ctx.dim, ctx.normalization, ctx.size = dim, normalization, self.shape[dim[-1]]
        return torch.ops.aten._fft_r2c.default(self, dim, normalization, True)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        places = torch.arange(grad.shape[ctx.dim[-1]], device=grad.device)
        ends = (places == 0) | (2 * places == ctx.size)
        shares = torch.where(ends, 1.0, 0.5).to(grad.real.dtype)
        following = grad.dim() - 1 - ctx.dim[-1] % grad.dim()
        scaled = grad * shares.reshape(-1, *[1] * following)
        return torch.ops.aten._fft_c2r.default(scaled, ctx.dim, ctx.normalization, ctx.size), None, None


def _spectrum(self: torch.Tensor, dim: list[int], normalization: int, onesided: bool) -> torch.Tensor:
    if onesided and dim:
        return _HalfSpectrum.apply(self, dim, normalization)
    return torch.ops.aten._fft_r2c.default(self, dim, normalization, onesided)


def _layer_norm(self: torch.Tensor, shape: Sequence[int], weight: object, bias: object, eps: float) -> tuple[Any, ...]:
    result, *own = torch.ops.aten.native_layer_norm.default(self, shape, weight, bias, eps)
    return result, *_statistics(self, range(self.dim() - len(shape), self.dim()), eps, own)


def _batch_norm(self: torch.Tensor, *arguments: Any) -> tuple[Any, ...]:
    if arguments[-3] is not True:  # then it normalizes by what it is given
        return tuple(torch.ops.aten._native_batch_norm_legit_functional.default(self, *arguments))
    result, *own, mean, var = torch.ops.aten._native_batch_norm_legit_functional.default(self, *arguments)
    return result, *_statistics(self, _but_channels(self), arguments[-1], own), mean, var


def _batch_norm_of_its_own(self: torch.Tensor, *arguments: Any) -> tuple[Any, ...]:
    result, *own = torch.ops.aten._native_batch_norm_legit.no_stats(self, *arguments)
    return result, *_statistics(self, _but_channels(self), arguments[-1], own)


def _but_channels(self: torch.Tensor) -> list[int]:
    return [k for k in range(self.dim()) if k != 1]


def _statistics(
    self: torch.Tensor, axes: Iterable[int], eps: float, own: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and inverse deviation, which a derivative reads from memory. PyTorch has no derivative of ``own``, the
    operator's: one of the derivative would not see that they depend on the operand."""
    wide, over = self.to(own[0].dtype), list(axes)
    inverse = (wide.var(over, correction=0) + eps).rsqrt()
    return wide.mean(over).view(own[0].shape), inverse.view(own[1].shape)


# what PyTorch calls where nothing needs a gradient, or instead of changing in place -> the same that has a derivative;
# or one whose derivative costs less
WITH_DERIVATIVE: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._embedding_bag_forward_only.default: torch.ops.aten._embedding_bag.default,
    torch.ops.aten.native_layer_norm.default: _layer_norm,
    torch.ops.aten._native_batch_norm_legit_functional.default: _batch_norm,
    torch.ops.aten._native_batch_norm_legit.no_stats: _batch_norm_of_its_own,
    torch.ops.aten._fft_r2c.default: _spectrum,
    torch.ops.aten.copy.default: _copy,
    torch.ops.aten.index_fill.int_Tensor: _filled_where,
    torch.ops.aten.slice_scatter.default: _by_parts(torch.slice_scatter),
    torch.ops.aten.select_scatter.default: _by_parts(torch.select_scatter),
}


def op_type(call: AtenCall) -> str:
    """The operator type of whole nodes of this call, with its rules registered."""
    name = str(call.target)
    if not registry.has_lowering(name, DOMAIN):
        registry.lowering(name, types=registry.ANY, domain=DOMAIN)(_lower)
        registry.gradient(name, domain=DOMAIN)(_gradient)
    return name


def _lower(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    call: AtenCall = node.attributes["call"]
    results = Translation(b.graph, call.context).apply(call, [str(n) for n in inputs])
    for result, out in zip(results, outputs):
        if out is not None and result is not None:
            alias(b, result, out)


def _gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    call: AtenCall = node.attributes["call"]
    try:
        if call.backward is not None:
            return _custom(b, call, inputs, grads_out, needs_grad)
        return _trace(b, call, inputs, outputs, grads_out, needs_grad)
    except Unsupported as error:
        note_line(error, call.line)
        raise


def _trace(
    b: Builder, call: AtenCall, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    present = [k for k, g in enumerate(grads_out) if g is not None]
    by = [k for k, w in enumerate(needs_grad) if w and _has_gradient(call.operands[k])]
    if not present or not by:
        return [None] * len(inputs)
    if not has_derivative(call.target):
        raise Unsupported(
            f"{call.target} has no derivative of its own; expected one by torch.library.register_autograd"
        )

    numbers = symbols_in(call.traced)
    grads = [call.results[k] for k in present]
    try:
        fakes = [*_operands_like(call), *(like(g) for g in grads if g is not None)]
        with guards.note_assumptions(fakes, call.context.assumed):
            traced = trace(
                _vjp(call, len(inputs), present, by), [*fakes, *(holder_of(n, call.operands) for n in numbers)]
            )
    except RuntimeError as error:
        if _NO_DERIVATIVE.search(str(error)) is None:  # the formula needs what only data tell, say
            raise Unsupported(f"the derivative of {call.target}, by PyTorch's formula: {error}") from error
        return _refuse(b, inputs, by, str(error))
    importer = Importer(Translation(b.graph, call.context), traced.graph, traced.backwards)
    _reuse_results(importer, call, outputs)
    gradients = importer.run([*inputs, *(grads_out[k] for k in present), *[None] * len(numbers)])
    return _by_position(gradients, by, len(inputs))


def _vjp(
    call: AtenCall, count: int, present: Sequence[int], by: Sequence[int]
) -> Callable[..., list[torch.Tensor | None]]:
    """Of ``count`` operands, the gradients of the results ``present`` and holders of numbers: the gradients ``by``
    these operands."""

    def vjp(*values: torch.Tensor) -> list[torch.Tensor | None]:
        for holder in values[count + len(present) :]:
            holder.item()  # so that the trace knows the number
        operands = list(values[:count])
        for k in by:
            operands[k] = operands[k].detach().requires_grad_()
        with torch.enable_grad():
            results = _invoke(call, operands)
        pairs = [(results[k], g) for k, g in zip(present, values[count:]) if results[k].requires_grad]
        if not pairs:  # none depends on these operands
            return [None] * len(by)
        of, grads = zip(*pairs)
        return list(torch.autograd.grad(of, [operands[k] for k in by], grads, allow_unused=True))

    return vjp


def _refuse(b: Builder, inputs: Names, by: Sequence[int], reason: str) -> Names:
    """Where PyTorch has no derivative, its error comes when the backward pass runs, not when a model is compiled."""
    message = reason.strip().splitlines()[0]
    promises = [(b.graph.shape(require(inputs, k)), b.graph.dtype(require(inputs, k))) for k in by]
    return _by_position(aten_call.refusal(b.graph, message, promises), by, len(inputs))


def _invoke(call: AtenCall, operands: Sequence[torch.Tensor]) -> list[Any]:
    arguments = {name: _fill(value, operands) for name, value in call.traced.items()}
    schema = call.target._schema.arguments
    positional = [arguments[a.name] for a in schema if not a.kwarg_only]
    target = WITH_DERIVATIVE.get(call.target, call.target)
    result = target(*positional, **{a.name: arguments[a.name] for a in schema if a.kwarg_only})
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _operands_like(call: AtenCall) -> list[torch.Tensor]:
    numbers = {int(x) for x in tree_leaves(list(call.arguments.values())) if isinstance(x, Item)}
    fakes = [like(x) for x in call.operands]
    memos = [getattr(x, "item_memo", None) for x in call.operands]
    return [stand_for_number(f, like=m) if k in numbers else f for k, (f, m) in enumerate(zip(fakes, memos))]


def _fill(value: object, operands: Sequence[torch.Tensor]) -> object:
    if isinstance(value, Item):
        return operands[value].item()
    if isinstance(value, Operand):
        return operands[value]
    return [_fill(v, operands) for v in value] if isinstance(value, list) else value


def _reuse_results(importer: Importer, call: AtenCall, outputs: Names) -> None:
    """The formula's own forward call is the node itself, whose results are there already: what it drew at random, too.

    Raises Unsupported where something random is left that is not the node's own.
    """
    placeholders = [n for n in importer.module.graph.nodes if n.op == "placeholder"]
    numbers = {int(a) for a in call.arguments.values() if isinstance(a, Item)}
    operands = [n for k, n in enumerate(placeholders[: len(call.operands)]) if k not in numbers]
    for node in importer.module.graph.nodes:
        # of the same operands: a formula may call the operator on the gradient, too
        if node.target is call.target and _tensor_operands(node) == operands and None not in outputs:
            importer.known[node] = tuple(outputs) if len(outputs) > 1 else outputs[0]
            break
    for node in importer.module.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags and node not in importer.known:
            raise Unsupported(f"the derivative of {call.target} by PyTorch draws random numbers of its own")


def _tensor_operands(node: fx.Node) -> list[fx.Node]:
    """The tensors that a call reads, in order, each as it was before it was detached."""
    nodes: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), nodes.append)
    tensors = [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    return [n.args[0] if n.target is torch.ops.aten.detach.default else n for n in tensors]


def _custom(b: Builder, call: AtenCall, inputs: Names, grads_out: Names, needs_grad: list[bool]) -> Names:
    backward = call.backward
    assert backward is not None
    lengths = [len(call.arguments[name]) for name in ("results", "operands", "saved")]
    operands = call.operands[lengths[0] : lengths[0] + lengths[1]]
    results, saved = inputs[: lengths[0]], inputs[lengths[0] + lengths[1] :]
    present = [k for k, g in enumerate(grads_out) if g is not None]
    by = [k for k in range(lengths[1]) if needs_grad[lengths[0] + k] and _has_gradient(operands[k])]

    numbers = symbols_in(backward.saved)

    def rule(*values: torch.Tensor) -> list[torch.Tensor | None]:
        grads, rest = dict(zip(present, values)), values[len(present) :]
        own, saved_values = rest[: lengths[0]], rest[lengths[0] : lengths[0] + lengths[2]]
        for holder in rest[lengths[0] + lengths[2] :]:
            holder.item()  # so that the trace knows the number
        incoming = [grads[k] if k in grads else torch.zeros_like(r) for k, r in enumerate(own)]
        gradients = DynamoInterpreter(backward.graph)(*backward.arguments(incoming, own, saved_values))
        return [_fit(gradients[backward.operands[k]], operands[k]) for k in by]

    fakes = [call.results[k] for k in present] + [
        *call.operands[: lengths[0]],
        *call.operands[lengths[0] + lengths[1] :],
    ]
    read = [like(f) for f in fakes if f is not None]
    for slot in (s for s in backward.saved if isinstance(s, NumberSlot)):
        stand_for_number(read[len(present) + lengths[0] + slot])
    traced = trace(rule, [*read, *(holder_of(n, read) for n in numbers)])
    importer = Importer(Translation(b.graph, call.context), traced.graph, traced.backwards)
    gradients = importer.run([*(grads_out[k] for k in present), *results, *saved, *[None] * len(numbers)])
    return _by_position(gradients, [lengths[0] + k for k in by], len(inputs))


def _fit(grad: torch.Tensor | None, operand: torch.Tensor) -> torch.Tensor | None:
    """As autograd's engine takes what a custom function returns: summed to the operand's shape, in its type."""
    if grad is None:
        return None
    return grad.sum_to_size(operand.shape).to(operand.dtype)


def _by_position(arrays: Sequence[Any], positions: Sequence[int], count: int) -> Names:
    result: Names = [None] * count
    for position, array in zip(positions, arrays, strict=True):
        result[position] = array
    return result


def _has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def like(fake: torch.Tensor) -> torch.Tensor:
    """A fake tensor of the same kind that no trace has seen yet; dense, as what host calls get."""
    mode = getattr(fake, "fake_mode", None)
    if mode is None:
        return fake.detach()
    with mode:
        if dense_order(fake) is None:
            return torch.empty(fake.shape, dtype=fake.dtype, device=fake.device)
        return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)


def fresh(value: object) -> object:
    """An argument of a graph for another trace of it."""
    is_number = getattr(value, "item_memo", None) is not None  # known to the trace by itself
    return like(value) if isinstance(value, torch.Tensor) and not is_number else value
