"""What simple rules make of a step: where a search begins, and what it is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from daceopt.distributed.search.fusion_state import FusionProblem, FusionState, Move

DDP_BYTES = 25 << 20
"""The size at which PyTorch's DistributedDataParallel closes a bucket."""
_FIRST_BYTES = 1 << 20  # and the one of its first bucket

NO_FUSION, OPERATORS, TENSORS, BOTH = "no fusion", "operator fusion", "tensor fusion", "both"


def baselines(problem: FusionProblem, groups: Iterable[Sequence[int]], cap: int = DDP_BYTES) -> dict[str, list[Move]]:
    """The moves of each baseline. ``groups``: what a recipe's own fusion makes one kernel."""
    fused = group_moves(problem, groups)
    return {
        NO_FUSION: [],
        OPERATORS: fused,
        TENSORS: bucket_moves(FusionState(problem), cap),
        BOTH: fused + bucket_moves(apply_moves(problem, fused), cap),
    }


def apply_moves(problem: FusionProblem, moves: Iterable[Move]) -> FusionState:
    """The state that possible ones of the moves lead to."""
    state = FusionState(problem)
    for move in moves:
        state.apply(move)
    return state


def group_moves(problem: FusionProblem, groups: Iterable[Sequence[int]]) -> list[Move]:
    """Moves that make each group one kernel, or few where that is not possible."""
    state, moves = FusionState(problem), []
    for group in groups:
        progress = True
        while progress:
            leaders = list(dict.fromkeys(state.clusters.leader(k) for k in group))
            pairs = (Move("fuse", a, b) for k, b in enumerate(leaders) for a in reversed(leaders[:k]))
            possible = next((move for move in pairs if state.apply(move) is None), None)
            progress = possible is not None
            moves += [possible] if possible is not None else []
    return moves


def bucket_moves(state: FusionState, cap: int) -> list[Move]:
    """Gradients in the order in which they are ready, in buckets that close when they reach ``cap`` bytes, the first
    one at a megabyte (Li et al., PyTorch Distributed, 2020, section 4.2)."""
    moves: list[Move] = []
    first, size, limit = None, 0, min(cap, _FIRST_BYTES)
    for gradient in (g for bucket in state.ready_order() for g in bucket):
        if first is None or state.problem.graph.gradients[first].dtype != state.problem.graph.gradients[gradient].dtype:
            first, size = gradient, 0
        else:
            moves.append(Move("combine", first, gradient))
        size += state.problem.graph.gradients[gradient].bytes
        if size >= limit:
            first, size, limit = None, 0, cap
    return moves


def one_bucket_bound(state: FusionState) -> float:
    """Full overlap with the fewest calls: the longer of computing as ``state`` does and of one reduction."""
    graph = state.problem.graph
    whole = state.problem.reduction.seconds(sum(g.bytes for g in graph.gradients)) if graph.gradients else 0.0
    return max(state.time.computation, whole)
