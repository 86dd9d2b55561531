"""Which of many sets of kernels become one kernel each, so that the most is saved: a weighted packing of sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from daceopt.passes.integer_program import solver
from daceopt.transformations.local._fusion_space import FusionCandidate, bits

Selection: TypeAlias = Callable[[Sequence[FusionCandidate], Sequence[float]], list[int]]

NODES = 10_000  # of the branch and bound tree: a count, for with a time the result would depend on the machine


def rank(candidates: Sequence[FusionCandidate], saved: Sequence[float]) -> list[int]:
    """Positions of disjoint candidates, those that save most first (DaCeML, section 5.2: ranking)."""
    covered, chosen = 0, []
    for k in sorted(range(len(candidates)), key=lambda k: (-saved[k], candidates[k].mask)):
        if saved[k] > 0 and not candidates[k].mask & covered:
            covered |= candidates[k].mask
            chosen.append(k)
    return chosen


def pack(candidates: Sequence[FusionCandidate], saved: Sequence[float]) -> list[int]:
    """Positions of the disjoint candidates that together save most, by an integer program; never less than ranked.

    Raises DaceoptError where HiGHS is not installed.
    """
    start = rank(candidates, saved)
    useful = [k for k in range(len(candidates)) if saved[k] > 0]
    if len(start) == len(useful):
        return start
    best = _solve([candidates[k].mask for k in useful], [saved[k] for k in useful])
    better = [useful[k] for k in best]
    return better if sum(saved[k] for k in better) > sum(saved[k] for k in start) else start


def _solve(masks: Sequence[int], saved: Sequence[float]) -> list[int]:
    """Maximise what is saved, each node in one set at most."""
    highs = solver("selection='ranked'", mip_max_nodes=NODES)
    chosen = [highs.addBinary() for _ in masks]
    holders: dict[int, list[Any]] = {}
    for variable, mask in zip(chosen, masks):
        for k in bits(mask):
            holders.setdefault(k, []).append(variable)
    for variables in holders.values():
        if len(variables) > 1:
            highs.addConstr(sum(variables) <= 1)
    scale = max(saved)
    highs.maximize(sum(s / scale * v for s, v in zip(saved, chosen)))
    values = highs.getSolution().col_value
    covered, positions = 0, []
    for k, mask in enumerate(masks):
        if values and values[chosen[k].index] > 0.5 and not mask & covered:
            covered |= mask
            positions.append(k)
    return positions
