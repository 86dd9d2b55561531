"""What PyTorch knows of a program's inputs and outputs beyond their arrays, and whom its node of autograd asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from daceopt.runtime.binding import Output, ResultStage


class FurtherGradients(Protocol):
    """Gradients of an earlier call that its backward program does not compute.

    ``tensors``: the inputs of the call; ``grads``: gradients of its outputs; ``needs_grad``: per input. ``changed``:
    positions of inputs that are not what they were in the call. Raises RuntimeError where it reads one. ``seed``: that
    of the call.
    """

    def higher_gradients(
        self,
        tensors: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor | None],
        needs_grad: Sequence[bool],
        changed: frozenset[int],
    ) -> list[torch.Tensor | None]:
        """Gradients as differentiable functions of the program's inputs and of the gradients of its outputs."""

    def present_gradients(
        self,
        tensors: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor | None],
        needs_grad: Sequence[bool],
        changed: frozenset[int],
        seed: int | None,
    ) -> list[torch.Tensor | None]:
        """Gradients by a program in which only the outputs that have one take part: asked where the zero that stands
        for an absent gradient meets an infinite derivative (where nobody can be asked, their product, NaN, stays). The
        call is made again from what it was given."""

    def stage_gradients(
        self,
        stage: ResultStage,
        tensors: Sequence[torch.Tensor],
        held: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor | None],
        needs_grad: Sequence[bool],
        changed: frozenset[int],
        changed_held: frozenset[int],
        seed: int | None,
    ) -> list[torch.Tensor | None]:
        """Gradients of a stage's outputs (``grads``: per output of the stage) by the program's inputs, apart from what
        goes through the results that the stage holds, and gradients by these (see :mod:`daceopt.runtime.stages`), of
        which those at ``changed_held`` are not what they were; differentiable where gradients are recorded."""


@dataclass(frozen=True)
class TensorBoundary:
    """What PyTorch knows of a program's inputs and outputs beyond their arrays.

    ``outputs``: how each is in memory, and whether autograd sees it (None: in rows, and those with a gradient are
    seen). ``mutations``: (input, output) pairs, new values of inputs; those whose output is
    differentiable are left to the caller. ``connected``: per input that requires a gradient the outputs that depend on
    it (None: not known); ``later``: per output those that are computed from it. ``complex_inputs`` are complex tensors,
    whose arrays have both parts along one more axis.
    ``unversioned``: changed inputs whose versions stay; ``exchanged``: those that get memory of their own.
    ``further``: whom the program's node of autograd asks for gradients that its backward program does not compute
    (None: there is a first derivative only).
    """

    outputs: Sequence[Output] | None = None
    mutations: Sequence[tuple[int, int]] = ()
    connected: Mapping[int, frozenset[int]] | None = None
    later: Mapping[int, frozenset[int]] = field(default_factory=dict)
    complex_inputs: frozenset[int] = frozenset()
    unversioned: frozenset[int] = frozenset()
    exchanged: frozenset[int] = frozenset()
    further: FurtherGradients | None = None
