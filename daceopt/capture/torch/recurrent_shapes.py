"""What recurrent layers give, without their steps: PyTorch's shape rules go through them, and fix the length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from daceopt.torch_internals import torch_operators
from daceopt.torch_internals.pytree import tree_leaves

RECURRENT = tuple(getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))

FUNCTIONS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
"""What layers call. With a sixth operand, lengths, they are other operators."""

_KEYS = (torch_operators.AUTOGRAD, torch_operators.COMPOSITE)


def whole_layer(
    x: torch.Tensor,
    states: Any,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Fake results, in memory as they are by the steps, that autograd connects with all operands."""
    own = [states] if isinstance(states, torch.Tensor) else list(states)
    nothing = sum(t.reshape(-1)[:0].sum() for t in (x, *own, *params))
    steps, batch = x.shape[:2][:: -1 if batch_first else 1]
    rows = x.new_empty((steps, batch, own[0].shape[-1] * (1 + bidirectional))) + nothing
    return (rows.transpose(0, 1) if batch_first else rows), *(s.new_empty(s.shape) + nothing for s in own)


def are_of_one_type(args: Sequence[object]) -> bool:
    """Whether a layer's operands are: else PyTorch rounds some of them, by rules of its own."""
    tensors = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
    return len({t.dtype for t in tensors}) == 1 and not torch.is_autocast_enabled(tensors[0].device.type)


@contextmanager
def whole_layers() -> Iterator[None]:
    """PyTorch's forms of recurrent layers in Python are replaced by what knows their shapes alone."""
    before = {op: dict(op.py_kernels) for op in RECURRENT}
    for op in RECURRENT:
        _replace(op, dict.fromkeys(_KEYS, whole_layer))
    try:
        yield
    finally:
        for op, kernels in before.items():
            _replace(op, kernels)


def _replace(op: Any, kernels: dict[Any, Any]) -> None:
    op.py_kernels.update(kernels)
    torch_operators.forget_kernels(op)
