"""Times of single kernels: the shortest of several runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from daceopt.explore.report.built_program import BuiltProgram, Times

if TYPE_CHECKING:
    import torch

    from daceopt.programs.compiled import CompiledPair

RUNS = 7


def profile(pair: CompiledPair, inputs: Mapping[int, torch.Tensor], runs: int = RUNS) -> list[Times]:
    """The shortest seconds of every node over ``runs`` calls: of the forward, then of the backward program if any.

    ``inputs``: contiguous tensors by position in the trace; gradients of the outputs are ones. A node is named by the
    first array that it writes. Raises what a run raises.
    """
    return shortest(BuiltProgram.of(pair), inputs, runs)


def shortest(program: BuiltProgram, inputs: Mapping[int, torch.Tensor], runs: int = RUNS) -> list[Times]:
    """The shortest seconds of every node of a program over ``runs`` calls."""
    best: list[Times] = []
    for _ in range(runs):
        times = program.times(inputs)
        best = best or [{} for _ in times]
        for now, least in zip(times, best, strict=True):
            least.update({name: min(t, least.get(name, t)) for name, t in now.items()})
    return best
