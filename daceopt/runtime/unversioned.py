"""New values of inputs, and those among them of which autograd is not told: what forward writes by ``.data``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from daceopt.runtime.boundary import TensorBoundary
from daceopt.runtime.bulk_copies import write

HIDDEN = -1
"""The version, in the eyes of who computes a call again, of what a write by ``.data`` has changed."""
_CHANGED = (
    "A tensor that backward needs has been changed by .data in a later call of the module. Call backward before that."
)


class NewValues:
    """Gives inputs their new values, (input, output) pairs ``mutations``, and counts how often some were hidden."""

    def __init__(self, mutations: Sequence[tuple[int, int]], boundary: TensorBoundary) -> None:
        self._exchanges = [(i, k) for i, k in mutations if i in boundary.exchanged]
        self._copies = [(i, k) for i, k in mutations if i not in boundary.exchanged]
        self._unversioned = boundary.unversioned
        self._hidden = [(i, k) for i, k in mutations if i in boundary.unversioned]
        self.count = 0

    def assign(self, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Write the outputs into the inputs, or give these memory of their own that holds them."""
        for i, k in self._exchanges:
            tensors[i].data = outputs[k].clone()  # exactly as large as it is, which memory of a pool is not
        if self._copies:
            places = [tensors[i].data if i in self._unversioned else tensors[i] for i, _ in self._copies]
            write(places, [outputs[k] for _, k in self._copies])
        self.count += bool(self._hidden)

    def check(
        self, inputs: Sequence[torch.Tensor], own_outputs: Iterable[tuple[int, torch.Tensor]], count: int
    ) -> None:
        """Raise RuntimeError where calls since have hidden a change of what backward reads: eager PyTorch would take
        some of it as it was, and some as it is. ``own_outputs``: of a call, after which ``count`` was noted."""
        if count == self.count:
            return
        outputs = dict(own_outputs)
        if not all(_is_close(inputs[i].detach(), outputs[k]) for i, k in self._hidden if k in outputs):
            raise RuntimeError(_CHANGED)


def _is_close(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors differ by no more than the rounding of a few operations."""
    try:
        torch.testing.assert_close(tensor, other, equal_nan=True, check_stride=False)
    except AssertionError:
        return False
    return True
