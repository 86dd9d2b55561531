"""What makes a legal fusion of two kernels slow: loops that are lost, and memory walked with a stride."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

import sympy

from daceopt.ir.access.dataflow import Address, address
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel
from daceopt.ir.scalar.dims import Dim, hint

SMALL = 16384  # elements; below this a kernel runs on one thread and needs no parallel loop


def why_slower(graph: Graph, first: Kernel, second: Kernel, merged: Kernel) -> str | None:
    """Why ``merged`` would run slower than ``first`` and then ``second``, or None. Locals are in the form of
    :func:`daceopt.ir.fusion.fusion.expand_locals`."""
    return lost_loops(first, second, merged) or unprofitable(graph, merged) or lost_tiles(graph, first, second, merged)


def same_space(second: Kernel, merged: Kernel) -> bool:
    """Do all loops of the merged kernel, or those that the second one shares, stay shared and parallel?"""
    return _shares_all(merged) or merged.outer == second.outer


def lost_loops(first: Kernel, second: Kernel, merged: Kernel) -> str | None:
    """A small map (a vector per row, say) must not take its reader's parallel loops away; a reduction may."""
    before = second.outer or tuple(second.extents)
    small = all(set(s.params) == set(first.extents) for s in first.stages) and not any(a.wcr for a in first.writes())
    if small and len(merged.outer) < len(before) and len(first.extents) < len(second.extents):
        return f"{first.label} runs over fewer parameters than {second.label}"
    return None


def unprofitable(graph: Graph, kernel: Kernel) -> str | None:
    """Why the merged loops would run slower than the separate ones, or None."""
    if _shares_all(kernel):
        return None
    total, shared = prod(kernel.extents.values()), prod(kernel.extents[p] for p in kernel.outer)
    if isinstance(shared, int) and shared < 4 and not (isinstance(total, int) and total <= SMALL):
        return f"only {shared} parallel iterations would remain"
    across = [unit in kernel.outer for unit, _ in _walked_accesses(graph, kernel, kernel.outer).values()]
    return "the inner loops would walk memory with a stride" if 2 * sum(across) > len(across) else None


def lost_tiles(graph: Graph, first: Kernel, second: Kernel, merged: Kernel) -> str | None:
    """A kernel whose loops are all parallel runs in tiles, so that it may turn an array round; a row that is reduced
    does not: it would write a large array element by element, each in a line of its own."""
    if _runs_in_tiles(merged):
        return None
    before = {a.array for k in (first, second) if not _runs_in_tiles(k) for a in _across(graph, k)}
    for access, extents in _across(graph, merged).items():
        whole = len(extents) == len(merged.extents) and not is_small(prod(extents))
        if whole and access.array not in before:
            return f"rows are reduced, and {access.array} would be walked across them"
    return None


def _runs_in_tiles(kernel: Kernel) -> bool:
    return _shares_all(kernel) and not any(a.wcr for a in kernel.writes())


def _shares_all(kernel: Kernel) -> bool:
    outer = kernel.outer or (tuple(kernel.extents) if len(kernel.stages) == 1 else ())  # one stage need not say so
    return len(outer) == len(kernel.extents)


def is_small(elements: Dim) -> bool:
    """Are there surely at most :data:`SMALL` of them?"""
    return isinstance(elements, int) and elements <= SMALL


def _across(graph: Graph, kernel: Kernel) -> dict[Access, list[Dim]]:
    """The accesses whose neighbours in memory lie along another loop than most elements' do, with their extents."""
    accesses = _walked_accesses(graph, kernel, ())
    extents = {access: [kernel.extents[p] for p, _ in where.terms] for access, (_, where) in accesses.items()}
    elements: Counter[Access] = Counter()
    for access, (unit, _) in accesses.items():
        elements[unit] += prod(map(hint, extents[access]))
    loop = max(elements, key=elements.__getitem__, default=None)
    return {access: extents[access] for access, (unit, _) in accesses.items() if unit != loop}


def _walked_accesses(
    graph: Graph, kernel: Kernel, outer: Sequence[sympy.Symbol]
) -> dict[Access, tuple[sympy.Symbol, Address]]:
    """Accesses in loops inside of the ``outer`` ones, with the loop along which their neighbours in memory lie."""
    strides = {}
    for stage in kernel.stages:
        if all(p in outer for p in stage.params):
            continue
        for access in [*stage.reads.values(), *stage.writes.values()]:
            where = None if access.array in kernel.locals else address(graph, access)
            if where is None or all(p in outer for p, _ in where.terms):
                continue
            unit = next((p for p, c in where.terms if c == 1), None)
            if unit is not None:
                strides[access] = unit, where
    return strides
