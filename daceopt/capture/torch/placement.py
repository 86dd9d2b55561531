"""How results are in memory whose operators place them otherwise than PyTorch's shape rules say.

The shape rules are often compositions in Python (``copysign`` as a ``where`` that reads the sign first), whose results
stand as those of the last step; the operator is one loop over its operands, or fills memory that is contiguous.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from daceopt.capture.torch.strides import layout
from daceopt.torch_internals import torch_operators
from daceopt.torch_internals.decompositions import (
    compute_elementwise_output_logical_to_physical_perm,
    compute_elementwise_output_strides,
    suggest_memory_format,
)

Placement = Callable[..., torch.Tensor]

_SPACES = (torch, functional, torch.special, *torch_operators.NAMESPACES, torch.Tensor, torch.ops.aten, operator)


def place(target: object, result: object, args: Sequence[object], kwargs: dict[str, Any]) -> object:
    """``result`` of the function or method ``target``, standing in memory as the operator's."""
    name = _name(target)
    placement = _PLACEMENTS.get(name, _in_rows if _is_one_loop(name, args) else None)
    if placement is None or kwargs.get("out") is not None:
        return result
    first = result[0] if isinstance(result, tuple) else result
    if not isinstance(first, torch.Tensor) or first.dim() < 2:
        return result
    named = {k: v for k, v in kwargs.items() if k not in ("input", "self")}
    source, *rest = args or (kwargs.get("input", kwargs.get("self")),)
    placed = placement(first, source, *rest, **named)
    return (placed, *result[1:]) if isinstance(result, tuple) else placed


def _name(target: object) -> str:
    """``xlogy`` of ``torch.xlogy``, ``torch.special.xlogy``, ``torch.ops.aten.xlogy.Tensor`` and ``Tensor.xlogy``; none
    of what is not PyTorch's, whatever it is called."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if isinstance(target, torch_operators.OpOverload):
        name = name.partition(".")[0] if target.namespace == "aten" else ""
    elif not isinstance(target, str) and all(getattr(space, name, None) is not target for space in _SPACES):
        return ""
    name = name.removeprefix("special_")
    return name.strip("_") if name.startswith("__") else name


def _is_one_loop(name: str, args: Sequence[object]) -> bool:
    """Whether a call is a loop over its tensors; a number is mostly another tensor, of no axes."""
    overloads = _pointwise(name)
    takes_numbers = "default" in overloads or name in _BY_NUMBERS
    return bool(overloads) and (takes_numbers or all(isinstance(x, torch.Tensor) for x in args))


@cache
def _pointwise(name: str) -> frozenset[str]:
    """The overloads of an operator that work element by element, into new memory."""
    is_new = name.isidentifier() and not name.endswith("_") and name not in _AS_THEIR_OPERAND
    packet = getattr(torch.ops.aten, name, None) if is_new else None
    overloads = packet.overloads() if isinstance(packet, torch_operators.OpOverloadPacket) else []
    return frozenset(o for o in overloads if torch.Tag.pointwise in getattr(packet, o).tags)


def _in_rows(result: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    """A loop over operands in rows gives rows. Where an axis has one element, strides may tell of another layout, too,
    which is the one that the shape rules see.
    """
    operands = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if not any(isinstance(n, int) and n == 1 for n in result.shape) or any(x is result for x in operands):
        return result
    if any(x.shape != result.shape or not x.is_contiguous() for x in operands) or not result.is_contiguous():
        return result
    return _rows(result)


def _first_in_rows(result: torch.Tensor, source: object, *args: object, **kwargs: object) -> torch.Tensor:
    return _in_rows(result, source, **kwargs)


def _by_operands(result: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    """As one loop over all operands gives it; those without axes have no say."""
    values = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and x.dim()]
    operands = [x.expand(result.shape) for x in values]
    if not operands or result.stride() == compute_elementwise_output_strides(*operands):
        return result
    order, _ = compute_elementwise_output_logical_to_physical_perm(*operands)
    return result.permute(order).contiguous().permute([order.index(k) for k in range(len(order))])


def _as_first(result: torch.Tensor, source: Any, *args: object, **kwargs: object) -> torch.Tensor:
    return _by_operands(result, source) if result.shape == source.shape else result


def _rows(result: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    rows = result.contiguous()
    is_told_so = not layout(rows, range(rows.dim()))
    return rows if is_told_so else rows.clone(memory_format=torch.contiguous_format)


def _unless_in_place(result: torch.Tensor, *args: object, inplace: bool = False, **kwargs: object) -> torch.Tensor:
    """``F.rrelu``, whose fifth argument says so."""
    return result if inplace or args[4:5] == (True,) else _rows(result)


def _by_labels(result: torch.Tensor, source: object, target: Any, *args: object, **kwargs: object) -> torch.Tensor:
    """Losses of labels, not of probabilities, are contiguous."""
    return result if target.is_floating_point() else result.contiguous()


def _rows_of_number(result: torch.Tensor, source: object, *args: object, **kwargs: object) -> torch.Tensor:
    """Powers of a number are contiguous."""
    return _in_rows(result, source, *args) if isinstance(source, torch.Tensor) else result.contiguous()


def _divide(result: torch.Tensor, *args: object, rounding_mode: object = None, **kwargs: object) -> torch.Tensor:
    return _by_operands(result, *args, **kwargs) if rounding_mode == "floor" else result


def _scale(result: torch.Tensor, source: object, other: object) -> torch.Tensor:
    """The product with powers of a number."""
    return _by_operands(result, source, other.contiguous() if isinstance(other, torch.Tensor) else other)


def _in_memory_format(result: torch.Tensor, source: object, *args: object, **kwargs: object) -> torch.Tensor:
    return result.contiguous(memory_format=suggest_memory_format(source))


def _pad(
    result: torch.Tensor, source: object, pad: object, mode: str = "constant", *args: object, **kwargs: object
) -> torch.Tensor:
    return _in_memory_format(result, source) if mode in ("reflect", "replicate") else result


def _roll(result: torch.Tensor, source: Any, shifts: Any, dims: Any = ()) -> torch.Tensor:
    """As concatenation gives it: one of a whole and of nothing is contiguous, like one of all axes in a row."""
    shifts, dims = (x if isinstance(x, Sequence) else (x,) for x in (shifts, dims))
    if not dims or any(by % max(source.shape[axis], 1) == 0 for by, axis in zip(shifts, dims, strict=True)):
        return result.contiguous()
    return _in_memory_format(result, source)


def _pool(result: torch.Tensor, source: object, output_size: object) -> torch.Tensor:
    """Means over planes keep their memory format, which only the strides of axes of size 1 tell."""
    if suggest_memory_format(source) == torch.contiguous_format or any(n != 1 for n in result.shape[2:]):
        return result
    pooled = result.flatten(1)
    for _ in result.shape[2:]:
        pooled = pooled.unsqueeze(1)
    return pooled.movedim(-1, 1)


_BY_NUMBERS = frozenset("pow lerp masked_fill".split())
"""Loops over tensors to which a number is a number."""
_AS_THEIR_OPERAND = frozenset("clone conj_physical deg2rad rad2deg hardtanh relu6 nan_to_num isinf isfinite".split())
_STEPS = "log_softmax layer_norm mse_loss smooth_l1_loss hardswish tanhshrink softsign tril triu index_add"
_ONE_LOOP = "copysign floor_divide floordiv rfloordiv heaviside logaddexp logaddexp2 xlogy xlog1py".split()
_LOGICAL = "logical_and logical_or logical_xor".split()

_PLACEMENTS: dict[str, Placement] = {
    **dict.fromkeys((*_ONE_LOOP, *_LOGICAL), _by_operands),
    **dict.fromkeys(("div", "divide"), _divide),
    "ldexp": _scale,
    **dict.fromkeys(("binary_cross_entropy", "index_fill"), _as_first),
    **dict.fromkeys("poisson normal logsigmoid log_sigmoid rpow nll_loss one_hot".split(), _rows),
    **dict.fromkeys(_STEPS.split(), _first_in_rows),
    "cross_entropy": _by_labels,
    "rrelu": _unless_in_place,
    **dict.fromkeys(("pow", "float_power"), _rows_of_number),
    **dict.fromkeys(("batch_norm", "native_batch_norm", "channel_shuffle"), _in_memory_format),
    "pad": _pad,
    "roll": _roll,
    **dict.fromkeys(("adaptive_avg_pool2d", "adaptive_avg_pool3d"), _pool),
}
