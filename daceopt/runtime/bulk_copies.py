"""Many tensors copied at once: on a device each copy of its own costs the host as much as a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from daceopt.torch_internals import torch_operators

HOST = "cpu"  # where a copy of its own costs less than a list


def write(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy all values into ``tensors``, of the same shapes."""
    if any(t.is_conj() or t.is_neg() for t in tensors):  # PyTorch has no list of those
        for tensor, value in zip(tensors, values):
            tensor.copy_(value)
    elif len({t.dtype for t in tensors}) < 2:
        torch_operators.foreach_copy(tensors, values)
    else:  # lists of several types are copied one by one
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            own = [k for k, t in enumerate(tensors) if t.dtype == dtype]
            torch_operators.foreach_copy([tensors[k] for k in own], [values[k] for k in own])


def copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A copy of each of the tensors, which have no gaps."""
    if len(tensors) < 2 or tensors[0].device.type == HOST:
        return [t.clone() for t in tensors]
    new = [torch.empty_like(t) for t in tensors]
    write(new, tensors)
    return new
