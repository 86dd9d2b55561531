"""Times of single kernels, from programs that read a clock between their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from daceopt.explore.report.built_program import BuiltProgram, Times
from daceopt.store.cache import key

if TYPE_CHECKING:
    import torch

    from daceopt.programs.compiled import CompiledPair

RUNS = 7


def profile(pair: CompiledPair, inputs: Mapping[int, torch.Tensor], runs: int = RUNS) -> list[Times]:
    """The shortest seconds of every node over ``runs`` calls: of the forward, then of the backward program if any.

    ``inputs``: contiguous tensors by position in the trace; gradients of the outputs are ones. A node is named by the
    first array that it writes. The programs are built on the first profile of a pair. Raises BuildError, Unsupported
    and what a run raises.
    """
    identity = key("profile", *pair.report["programs"])
    return shortest(BuiltProgram.of(identity, pair.graphs.directions(), profiled=True), inputs, runs)


def shortest(program: BuiltProgram, inputs: Mapping[int, torch.Tensor], runs: int = RUNS) -> list[Times]:
    """The shortest seconds of every node of a profiled program over ``runs`` calls."""
    best: list[Times] = []
    for _ in range(runs):
        times = program.times(inputs)
        best = best or [{} for _ in times]
        for now, least in zip(times, best, strict=True):
            least.update({name: min(t, least.get(name, t)) for name, t in now.items()})
    return best
