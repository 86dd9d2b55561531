"""Calls of ATen operators that stay whole until they are differentiated, as text and back.

Only calls whose sizes are known: open ones are symbols of PyTorch's own, which live as long as their trace. A custom
``autograd.Function`` has a graph of its own, and no text either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from daceopt.capture.torch.calls import AtenCall, Context, Item, Operand
from daceopt.errors import Unsupported
from daceopt.ir.text import literal_text
from daceopt.torch_internals.fake_tensors import FakeTensorMode
from daceopt.torch_internals.torch_operators import OpOverload

_PLAIN = (bool, int, float, str, type(None))
_WORDS = (torch.dtype, torch.layout, torch.memory_format)
_TARGET = re.compile(r"([a-z_][A-Za-z0-9_]*)::([A-Za-z_][A-Za-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)")


def write(call: AtenCall) -> list[Any]:
    """The call as lists, numbers and strings. Raises Unsupported where it is of open sizes or has its own backward."""
    if call.backward is not None:
        raise Unsupported(f"no text for {call.target}, which brings its own backward graph")
    schema = call.target._schema
    tensors = [[_tensor(x) for x in side] for side in (call.operands, call.results)]
    arguments = [[name, _encode(value)] for name, value in call.traced.items()]
    return [f"{schema.name}.{schema.overload_name or 'default'}", arguments, *tensors, call.position]


def _tensor(x: torch.Tensor | None) -> list[Any] | None:
    if x is None:
        return None
    layout = [*x.shape, *x.stride()]
    if x.layout is not torch.strided or not all(type(n) is int for n in layout):
        raise Unsupported("no text for a call of ATen with open sizes")
    return [str(x.dtype).removeprefix("torch."), list(x.shape), list(x.stride())]


def _encode(value: object) -> object:
    if isinstance(value, Operand):
        return ["item" if isinstance(value, Item) else "operand", int(value)]
    if isinstance(value, (list, tuple)):
        return ["list", [_encode(v) for v in value]]
    if isinstance(value, _WORDS):
        return ["torch", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device) and value.type == "cpu":
        return ["device", "cpu"]
    if type(value) in _PLAIN:
        return value
    raise Unsupported(f"no text for an argument of type {type(value).__name__} of a call of ATen")


def read(written: Any) -> AtenCall:
    """The call that :func:`write` wrote; its operator has its rules then. Raises Unsupported for anything else."""
    from daceopt.capture.torch import derivative

    try:
        name, pairs, operands, results, position = written
        arguments = {str(key): _decode(value) for key, value in pairs}
        with FakeTensorMode():
            fakes = [_fake(x) for x in operands], [_fake(x) for x in results]
        by_argument: Mapping[str, Any] = arguments
        if None in fakes[0]:
            raise ValueError("an operand is no tensor")
        tensors = tuple(x for x in fakes[0] if x is not None), tuple(fakes[1])
        call = AtenCall(_target(name), by_argument, by_argument, *tensors, Context(), None, int(position))
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise Unsupported(f"expected a call of ATen, found {str(written)[:80]}: {error}") from error
    derivative.op_type(call)
    return call


def _target(name: str) -> OpOverload:
    match = _TARGET.fullmatch(name)
    if match is None:
        raise ValueError(f"{name[:80]!r} is no operator such as aten::roll.default")
    return getattr(getattr(getattr(torch.ops, match[1]), match[2]), match[3])


def _fake(layout: Sequence[Any] | None) -> torch.Tensor | None:
    if layout is None:
        return None
    dtype, shape, strides = layout
    return torch.empty_strided(shape, strides, dtype=_word(dtype), device="cpu")


def _word(name: str) -> object:
    word = getattr(torch, name, None)
    if not isinstance(word, _WORDS):
        raise ValueError(f"{name[:80]!r} is no type or layout of PyTorch")
    return word


def _decode(value: object) -> object:
    if not isinstance(value, list):
        return value
    kind, inner = value
    if kind == "list":
        return [_decode(v) for v in inner]
    if kind == "torch":
        return _word(inner)
    if kind == "device" and inner == "cpu":
        return torch.device("cpu")
    if kind in ("operand", "item"):
        return (Operand if kind == "operand" else Item)(inner)
    raise ValueError(f"an argument of kind {str(kind)[:80]!r}")


literal_text.KINDS["aten"] = literal_text.LiteralKind(AtenCall, write, read)
