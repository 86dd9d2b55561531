"""The arguments of a graph in a call, from what its program was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from daceopt.capture.torch.traced import Traced
from daceopt.runtime.arithmetic import evaluate


class CallArguments:
    """``inputs``: what each input of the program is, as its binding says."""

    def __init__(self, traced: Traced, inputs: Sequence[tuple[str, int]]) -> None:
        self._traced, self._inputs = traced, [k for _, k in inputs]
        position = {k: at for at, (kind, k) in enumerate(inputs) if kind == "tensor"}
        self._places = [position.get(k) for k in range(len(traced.inputs))]
        self._are_tensors = None not in self._places

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """``tensors``: the inputs of the program in the call."""
        if self._are_tensors:
            return [tensors[at] for at in self._places]  # type: ignore[index]
        sizes = self._sizes(tensors)
        return [
            tensors[at] if at is not None else x if isinstance(x, int) else evaluate(str(x), sizes)
            for at, x in zip(self._places, self._traced.inputs)
        ]

    def _sizes(self, tensors: Sequence[Any]) -> dict[str, int]:
        """What the symbols were, from the sizes of the tensors."""
        sizes: dict[str, int] = {}
        for k, tensor in zip(self._inputs, tensors):
            traced = self._traced.inputs[k]
            shape = traced.shape if isinstance(traced, torch.Tensor) else (0, traced)  # of the array that is as long
            sizes.update((str(name), size) for name, size in zip(shape, tensor.shape))
        return sizes
