"""What makes a legal fusion of two kernels slow: loops that are lost, and memory walked with a stride."""

from __future__ import annotations

from math import prod

from daceopt.ir.dataflow import address
from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Kernel

SMALL = 16384  # elements; below this a kernel runs on one thread and needs no parallel loop


def why_slower(graph: Graph, first: Kernel, second: Kernel, merged: Kernel) -> str | None:
    """Why ``merged`` would run slower than ``first`` and then ``second``, or None. Locals are in the form of
    :func:`daceopt.ir.fusion.expand_locals`."""
    return lost_loops(first, second, merged) or unprofitable(graph, merged)


def same_space(second: Kernel, merged: Kernel) -> bool:
    """Do all loops of the merged kernel, or those that the second one shares, stay shared and parallel?"""
    return len(merged.outer) == len(merged.extents) or merged.outer == second.outer


def lost_loops(first: Kernel, second: Kernel, merged: Kernel) -> str | None:
    """A small map (a vector per row, say) must not take its reader's parallel loops away; a reduction may."""
    before = second.outer or tuple(second.extents)
    small = all(set(s.params) == set(first.extents) for s in first.stages) and not any(a.wcr for a in first.writes())
    if small and len(merged.outer) < len(before) and len(first.extents) < len(second.extents):
        return f"{first.label} runs over fewer parameters than {second.label}"
    return None


def unprofitable(graph: Graph, kernel: Kernel) -> str | None:
    """Why the merged loops would run slower than the separate ones, or None."""
    inner = [p for p in kernel.extents if p not in kernel.outer]
    if not inner:
        return None
    total, shared = prod(kernel.extents.values()), prod(kernel.extents[p] for p in kernel.outer)
    if isinstance(shared, int) and shared < 4 and not (isinstance(total, int) and total <= SMALL):
        return f"only {shared} parallel iterations would remain"
    across, along = 0, 0
    for stage in kernel.stages:
        if all(p in kernel.outer for p in stage.params):
            continue
        for access in [*stage.reads.values(), *stage.writes.values()]:
            where = None if access.array in kernel.locals else address(graph, access)
            if where is None or all(p in kernel.outer for p, _ in where.terms):
                continue
            unit = next((p for p, c in where.terms if c == 1), None)
            across += unit in kernel.outer
            along += unit is not None and unit not in kernel.outer
    return "the inner loops would walk memory with a stride" if across > along else None
