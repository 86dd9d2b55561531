"""How many steps an optimizer has counted, where it counts them on a device."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from daceopt.torch_internals import torch_operators


class StepCounts:
    """The numbers in tensors that count steps. One on a device is read once: reading it again in each call would have
    the host wait for the device. Whoever writes it in the meantime (its version tells) has it read again.
    """

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()  # tensor of a device -> its version, its number

    def value(self, step: torch.Tensor) -> float:
        """The number in ``step``."""
        if self._is_near(step):
            return float(step.item())
        version, number = self._known.get(step, (None, 0.0))
        if version != step._version:
            number = float(step.item())
            self._known[step] = step._version, number
        return float(number)

    def advance(self, steps: list[torch.Tensor]) -> None:
        """Add one to each."""
        before = [(step, self.value(step)) for step in self._far(steps)]
        torch_operators.foreach_add(steps, _ONE, alpha=1.0)
        for step, number in before:
            self._known[step] = step._version, number + 1

    def _far(self, steps: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        return [step for step in steps if not self._is_near(step)]

    @staticmethod
    def _is_near(step: torch.Tensor) -> bool:
        return step.device.type == "cpu"


_ONE = torch.tensor(1.0, device="cpu")  # a number would become a tensor for each that it is added to
