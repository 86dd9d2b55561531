"""Give a reduction an accumulator of its own, so that nothing in memory is updated in place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import sympy

from daceopt.ir.access.dataflow import address
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar, types
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class ReductionLowering(Transformation):
    """Turn a write-conflict reduction over the inner dimensions into a sequential loop with a register.

    before:  for i,j:   s[i] (sum)= f(x[i,j])
    after:   for i: { acc = 0;  for j: acc (sum)= f(x[i,j]);  s[i] = acc }

    Reductions whose kept dimension lies innermost in memory stay: walking it with a stride would be slower than the
    partial sums per thread that the code generator makes of them.
    """

    level: ClassVar[str] = "local"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not isinstance(node, KernelNode):
            return
        kernel = node.kernel
        if len(kernel.stages) != 1 or kernel.locals or kernel.is_tiled or not _reduces_all(kernel.stages[0]):
            return
        stage = kernel.stages[0]
        kept_params = tuple(p for p in stage.params if p not in stage.reduced_params(next(iter(stage.writes))))
        if not kept_params:
            return
        if _kept_is_innermost(graph, stage, kept_params):
            yield NearMiss(node, "the kept dimension is innermost in memory")
            return
        yield Site(graph, (node,), {"kernel": _with_accumulators(graph, kernel, kept_params)})

    def apply(self, site: Site) -> None:
        site.graph.remove(site.nodes[0])
        site.graph.add_kernel(site["kernel"])


def _reduces_all(stage: Stage) -> bool:
    """Are all results reductions over the same parameters?"""
    reduced = {stage.reduced_params(c) for c in stage.writes}
    return len(reduced) == 1 and reduced != {()}


def _kept_is_innermost(graph: Graph, stage: Stage, params: tuple[sympy.Symbol, ...]) -> bool:
    addresses = [address(graph, a) for a in stage.reads.values()]
    units = [p for where in addresses if where is not None for p, c in where.terms if c == 1]
    return sum(p in params for p in units) > sum(p not in params for p in units)


def _with_accumulators(graph: Graph, kernel: Kernel, params: tuple[sympy.Symbol, ...]) -> Kernel:
    stage = kernel.stages[0]
    local = {c: f"{a.array}_acc" for c, a in stage.writes.items()}
    own = {c: types.compute_type(graph.dtype(a.array)) for c, a in stage.writes.items()}
    first = replace(stage, writes={c: Access(local[c], (), a.wcr) for c, a in stage.writes.items()})
    last = Stage(
        params,
        {f"in_{c}": Access(local[c], ()) for c in stage.writes},
        {c: replace(a, wcr=None) for c, a in stage.writes.items()},
        tuple(Assignment(scalar.symbol(c, t), scalar.symbol(f"in_{c}", t), t) for c, t in own.items()),
    )
    return Kernel(kernel.label, kernel.extents, [first, last], params, {local[c]: (own[c], ()) for c in local})
