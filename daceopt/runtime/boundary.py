"""What PyTorch knows of a program's inputs and outputs beyond their arrays, and whom its node of autograd asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from daceopt.runtime.binding import ResultStage
from daceopt.runtime.result_forms import ResultForm


class Higher(Protocol):
    """Gradients as differentiable functions of the program's inputs and of the gradients of its outputs.

    ``changed``: positions of inputs that are not what they were in the call. Raises RuntimeError where it reads one.
    """

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor | None],
        wanted: Sequence[bool],
        changed: frozenset[int],
    ) -> list[torch.Tensor | None]: ...


class Present(Protocol):
    """Gradients of a call by a program in which only the outputs that have one take part; the call is made again from
    what it was given, with its ``seed``. ``changed``: as for ``Higher``.
    """

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor | None],
        wanted: Sequence[bool],
        changed: frozenset[int],
        seed: int | None,
    ) -> list[torch.Tensor | None]: ...


class Apart(Protocol):
    """Gradients of a stage's outputs by the program's inputs, apart from what goes through the results that the stage
    holds, and gradients by these (see :mod:`daceopt.runtime.stages`); differentiable where gradients are recorded.

    ``grads``: per output of the stage. ``wanted``: per input; ``changed``, ``changed_held``: positions of inputs, and
    of results, that are not what they were in the call, which had this ``seed``.
    """

    def __call__(
        self,
        stage: ResultStage,
        tensors: Sequence[torch.Tensor],
        held: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor | None],
        wanted: Sequence[bool],
        changed: frozenset[int],
        changed_held: frozenset[int],
        seed: int | None,
    ) -> list[torch.Tensor | None]: ...


@dataclass(frozen=True)
class TensorBoundary:
    """What PyTorch knows of a program's inputs and outputs beyond their arrays.

    ``forms``: per output how it stands in memory (None: in rows). ``differentiable``: outputs that autograd sees (None:
    those with a gradient). ``mutations``: (input, output) pairs, new values of inputs; those whose output is
    differentiable are left to the caller. ``connected``: per input that requires a gradient the outputs that depend on
    it (None: not known). ``complex_inputs`` are complex tensors, whose arrays have both parts along one more axis.
    ``unversioned``: changed inputs whose versions stay; ``exchanged``: those that get memory of their own.
    ``higher``: gradients that can be differentiated (None: there is a first derivative only). ``present``: asked where
    the zero that stands for an absent gradient meets an infinite derivative (None: their product, NaN, stays).
    ``apart``: asked where a gradient by a result from which others are computed is wanted (None: it is refused).
    """

    forms: Sequence[ResultForm] | None = None
    differentiable: frozenset[int] | None = None
    mutations: Sequence[tuple[int, int]] = ()
    connected: Mapping[int, frozenset[int]] | None = None
    complex_inputs: frozenset[int] = frozenset()
    unversioned: frozenset[int] = frozenset()
    exchanged: frozenset[int] = frozenset()
    higher: Higher | None = None
    present: Present | None = None
    apart: Apart | None = None
