"""The gradient of kernels: the stage's scalar code is differentiated, reads become writes and writes become reads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import dace
import sympy

from daceopt.autodiff import gathers, reductions
from daceopt.autodiff.partials import Pullback, equal_values, needed_assignments, pull_back
from daceopt.autodiff.placement import place
from daceopt.autodiff.results import tell_from_results
from daceopt.autodiff.rules import Contributions, Grads, adjoint
from daceopt.errors import Unsupported
from daceopt.ir.access.dataflow import is_bijective
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.affine import same
from daceopt.ir.scalar.dims import Dim


@dataclass
class GradientTarget:
    """One read whose gradient is wanted: the array, where it was read, and the scalar gradient at each iteration."""

    array: str
    index: tuple[Dim | None, ...]
    value: sympy.Expr


@adjoint(KernelNode)
def kernel_adjoint(b: Builder, node: KernelNode, grads: Grads, wrt: Collection[str]) -> Contributions:
    """One backward stage per set of reduced parameters, over the forward stage's own domain."""
    kernel = node.kernel
    if len(kernel.stages) != 1 or kernel.locals:
        raise Unsupported(
            f"kernel {kernel.label} has {len(kernel.stages)} stages; split it with autodiff.splitting first"
        )
    return StageAdjoint(b, kernel, kernel.stages[0], grads, wrt).build()


class StageAdjoint:
    """Builds the backward computation of one stage."""

    def __init__(self, b: Builder, kernel: Kernel, stage: Stage, grads: Grads, wrt: Collection[str]):
        self.b, self.label = b, kernel.label
        self.extents: dict[sympy.Symbol, Dim] = {p: kernel.extents[p] for p in stage.params}
        self.stage, self.loads = gathers.name_loads(b.graph, stage, wrt)
        self.grads, self.wrt = grads, wrt
        self.reads = dict(self.stage.reads)

    def build(self) -> Contributions:
        """Emit the backward kernels; pairs of (array read, its contribution)."""
        inputs = {
            c: self.b.graph.dtype(a.array) for c, a in self.reads.items() if a.array in self.wrt and None not in a.index
        }
        inputs |= {name: load.dtype for name, load in self.loads.items()}
        seeds = {c: self._seed(c, a) for c, a in self.stage.writes.items() if a.array in self.grads}
        pulled = pull_back(self.stage.assignments, seeds, inputs, {*self.reads, *map(str, self.extents)})
        contributions: Contributions = []
        for targets in self._by_reduction(self._targets(pulled)).values():
            contributions += self._emit(targets, pulled)
        for name, load in self.loads.items():
            if name in pulled.gradients:
                contributions.append((load.array, self._scatter(load, pulled, pulled.gradients[name])))
        return contributions

    # ---------------------------------------------------------------- incoming gradients

    def _read(self, stem: str, array: str, index: tuple[Dim, ...]) -> sympy.Symbol:
        """A new read connector and its symbol."""
        names_in_use = {*self.reads, *self.stage.writes, *(str(a.symbol) for a in self.stage.assignments)}
        name = next(n for k in range(len(names_in_use) + 1) if (n := f"{stem}{k}") not in names_in_use)
        self.reads[name] = Access(array, index)
        return scalar.symbol(name, self.b.graph.dtype(array))

    def _seed(self, conn: str, access: Access) -> sympy.Expr:
        """Gradient of the value that the stage computes for ``conn`` at one iteration."""
        g = self._read("g", self.grads[access.array], access.index)
        if access.wcr in (None, "sum") or not self._reduced_parameters(access.params()):
            return g
        value = next(a.symbol for a in self.stage.assignments if str(a.symbol) == conn)
        parts = reductions.statistics(self.b, self.label, self.extents, self.stage, conn)
        symbols = [self._read("s", array, access.index) for array in parts]
        return reductions.share(access.wcr, value, g, symbols)

    # ---------------------------------------------------------------- outgoing gradients

    def _targets(self, pulled: Pullback) -> list[GradientTarget]:
        """Reads of the same element share one gradient."""
        merged: dict[tuple[str, tuple[Dim | None, ...]], GradientTarget] = {}
        for conn, value in pulled.gradients.items():
            if conn in self.loads:
                continue
            access = self.reads[conn]
            key = (access.array, access.index)
            previous = merged.get(key)
            total = value if previous is None else previous.value + value
            merged[key] = GradientTarget(access.array, access.index, total)
        return list(merged.values())

    def _reduced_parameters(self, named: Collection[sympy.Symbol]) -> tuple[sympy.Symbol, ...]:
        return tuple(p for p, n in self.extents.items() if p not in named and not same(n, 1))

    def _by_reduction(self, targets: list[GradientTarget]) -> dict[tuple[sympy.Symbol, ...], list[GradientTarget]]:
        groups: dict[tuple[sympy.Symbol, ...], list[GradientTarget]] = {}
        for t in targets:
            groups.setdefault(self._reduced_parameters(Access(t.array, t.index).params()), []).append(t)
        return groups

    def _emit(self, targets: list[GradientTarget], pulled: Pullback) -> Contributions:
        """One kernel with one output for targets that are alike; partial reads are put in their place afterwards."""
        writes, results, finish = {}, [], []
        for k, alike in enumerate(self._alike(targets, pulled)):
            access, complete = self._destination(alike[0])
            conn = f"dx{k}"
            writes[conn] = access
            dtype = self.b.graph.dtype(alike[0].array)
            results.append(Assignment(scalar.symbol(conn, dtype), alike[0].value, dtype))
            finish.append(([t.array for t in alike], complete))
        self._emit_stage(writes, results, pulled)
        return [(array, gradient) for arrays, complete in finish for gradient in [complete()] for array in arrays]

    def _alike(self, targets: list[GradientTarget], pulled: Pullback) -> list[list[GradientTarget]]:
        """Targets of one gradient together: terms of a sum that are read at the same place, of one shape and type."""
        graph, groups = self.b.graph, dict[Any, list[GradientTarget]]()
        reads = {scalar.symbol(c, graph.dtype(a.array)): graph.dtype(a.array) for c, a in self.reads.items()}
        names = equal_values(pulled.assignments, reads)
        for t in targets:
            dtype, shape = graph.dtype(t.array), tuple(graph.shape(t.array))
            groups.setdefault((t.value.xreplace(names), t.index, shape, dtype), []).append(t)
        return list(groups.values())

    def _destination(self, t: GradientTarget) -> tuple[Access, Any]:
        """Where the stage writes the gradient, and the step that brings it to the shape of the array read."""
        graph = self.b.graph
        shape, dtype = graph.shape(t.array), graph.dtype(t.array)
        named = Access(t.array, t.index).params()
        wcr = "sum" if self._reduced_parameters(named) else None
        if is_bijective(t.index, shape, self.extents):
            out = graph.add_array(f"d_{self.label}", shape, dtype)
            return Access(out, t.index, wcr), lambda: out
        order = tuple(p for p in self.extents if p in named)
        compact = graph.add_array(f"d_{self.label}", [self.extents[p] for p in order], types.compute_type(dtype))
        return Access(compact, order, wcr), lambda: place(self.b, compact, order, self.extents, t.index, shape)

    def _emit_stage(self, writes: dict[str, Access], results: list[Assignment], pulled: Pullback) -> None:
        gradient = (*pulled.assignments, *results)
        symbols = [r.symbol for r in results]
        code, reads = tell_from_results(self.b.graph, self.stage, self.reads, self.extents, gradient, symbols)
        stage = Stage(tuple(self.extents), reads, writes, code)
        self.b.graph.add_kernel(Kernel(self.b.label, dict(self.extents), [stage]))

    def _scatter(self, load: gathers.Load, pulled: Pullback, value: sympy.Expr) -> str:
        """Emit the gradient of each loaded element and the index it was loaded from; join them by IndexAdd."""
        plan = gathers.plan(self.b.graph, load, self.extents)
        if self._varies_along_rows(plan):
            plan = gathers.flat(self.b.graph, load, self.extents)
        rows = self.b.graph.add_array(f"d_{self.label}", [self.extents[p] for p in plan.order], load.dtype)
        self._emit_stage(
            {"dx0": Access(rows, plan.order)}, [Assignment(scalar.symbol("dx0", load.dtype), value, load.dtype)], pulled
        )
        index = self._emit_index(plan)
        return gathers.scatter(self.b, load, plan, index, rows)

    def _varies_along_rows(self, plan: gathers.GatherPlan) -> bool:
        code, reads = self._index_code(plan)
        depends = {p for a in reads.values() for p in a.params()} | {p for a in code for p in a.expr.free_symbols}
        return any(p in depends for p in self.extents if p not in plan.spread)

    def _emit_index(self, plan: gathers.GatherPlan) -> str:
        code, reads = self._index_code(plan)
        name = self.b.graph.add_array("scatter_index", [self.extents[p] for p in plan.spread], dace.int64)
        stage = Stage(plan.spread, reads, {"dx0": Access(name, plan.spread)}, code)
        self.b.graph.add_kernel(Kernel(self.b.label, {p: self.extents[p] for p in plan.spread}, [stage]))
        return name

    def _index_code(self, plan: gathers.GatherPlan) -> tuple[tuple[Assignment, ...], dict[str, Access]]:
        result = Assignment(scalar.symbol("dx0", dace.int64), plan.index, dace.int64)
        code, used = needed_assignments((*self.stage.assignments, result), [result.symbol])
        return tuple(code), {c: a for c, a in self.reads.items() if c in used}
