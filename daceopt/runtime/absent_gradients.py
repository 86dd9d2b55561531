"""What an absent gradient of one of several outputs means: that output has no part in what is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch


def has_spread(
    read: Iterable[int],
    later: Mapping[int, frozenset[int]],
    grads: Sequence[torch.Tensor | None],
    own: Sequence[torch.Tensor | None],
) -> bool:
    """Whether the zero that stands for an absent gradient may have met an infinite derivative in a program that reads
    those of the outputs ``read``. ``later``: per output those that are computed from it. Where one of these has a
    gradient, zero is only added to what comes from there, as of a model that returns its loss and the logits."""
    present = {k for k, g in enumerate(grads) if g is not None}
    if all(k in present or not present.isdisjoint(later.get(k, ())) for k in read):
        return False
    gradients = [g for g in own if g is not None]
    if not gradients or not torch.stack([g.sum() for g in gradients]).isnan().any():  # a sum reads once, writes nothing
        return False
    return any(bool(torch.isnan(g).any()) for g in gradients)


def settle(
    connected: Mapping[int, frozenset[int]] | None,
    operands: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    needs_grad: Sequence[bool],
    gradients: list[torch.Tensor | None],
) -> None:
    """As in PyTorch: zero where the results with a gradient depend on an input, None where they do not."""
    present = {k for k, g in enumerate(grads) if g is not None}
    for k, outputs in (connected or {}).items():
        if not needs_grad[k] or present.isdisjoint(outputs):
            gradients[k] = None
        elif gradients[k] is None:
            gradients[k] = torch.zeros_like(operands[k])
