"""Take apart kernels that the blocks of an accelerator cannot run on their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from daceopt.autodiff import splitting
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.kernel.tasklet import Assignment, free_symbols, fresh, fuse, symbol_like
from daceopt.ir.legality.hardware import CUDA
from daceopt.ir.scalar import scalar, types
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Alloc, Param
from daceopt.passes.transform import NearMiss, Site, Transformation

_SHARED = CUDA.shared // 2  # bytes of locals of a block: what collective operations exchange takes up to 8 KiB each
_FEW = 512  # iterations that statements share


@dataclass(frozen=True)
class KernelFission(Transformation):
    """Give a statement a kernel of its own where blocks would wait for one another; all, where locals do not fit.

    before:  for i: { for j: s += x[i, j];  for j: { t = x[i, j] / s;  y[i, j] = f(t);  g[j] += t } }
    after:   for i: { for j: s += x[i, j];  for j: { t = x[i, j] / s;  y[i, j] = f(t);  u[i, j] = t } }
             for i: for j: g[j] += u[i, j]

    A sum over the loops that the statements share needs all blocks; what it reads of their locals goes through memory.
    Such sums over the same loops are one kernel. Sums over different loops of one statement become two kernels.

    So do statements that share less than 512 iterations of ``long`` elements or more each, as the channels of a
    batch normalization: their blocks would not fill a device, nor could ``grid-reduction`` cut what they reduce.
    """

    level: ClassVar[str] = "hardware"
    sites_are_independent: ClassVar[bool] = True

    long: int = 8192

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        for node in graph.kernels():
            kernel = node.kernel
            apart = _hands_on(kernel) or self._is_large(kernel) or self._is_narrow(kernel)
            if apart or _waiting(kernel) or len(_reduced_sets(kernel)) > 1:
                yield Site(graph, (node,), {"apart": apart})

    def apply(self, site: Site) -> None:
        graph, node = site.graph, site.nodes[0]
        kernel = node.kernel
        if site["apart"]:
            parts, _ = splitting.split(graph, node, _small_runs(kernel))
        elif _waiting(kernel):
            graph.remove(node)
            parts = [graph.add_kernel(other) for other in _detach(graph, kernel)]
        else:
            parts = [node]
        for part in parts:
            _split_sums(graph, part)

    def _is_narrow(self, kernel: Kernel) -> bool:
        """Do statements share a few iterations, each with much to do?"""
        if not kernel.outer or kernel.is_tiled:
            return False
        shared = prod(kernel.extents[p] for p in kernel.outer)
        most = max(prod(kernel.extents[p] for p in s.params if p not in kernel.outer) for s in kernel.stages)
        return isinstance(shared, int) and isinstance(most, int) and shared < _FEW and most >= self.long

    def _is_large(self, kernel: Kernel) -> bool:
        places = [n for n, _ in schedule.walk(schedule.schedule_of(kernel)) if isinstance(n, Alloc)]
        locals_ = [kernel.locals[n.array] for n in places if n.scope != "register"]
        sizes = [prod(shape) * types.itemsize(dtype) for dtype, shape in locals_]
        return not all(isinstance(n, int) for n in sizes) or sum(sizes) > _SHARED


def _small_runs(kernel: Kernel) -> list[list[int]]:
    """The statements, those in turn together that have no loops of their own, unless one reads of another what a third
    elsewhere reads as well, which has to be in memory."""
    small = [set(stage.params) <= set(kernel.outer) for stage in kernel.stages]
    runs: list[list[int]] = []
    for k in range(len(small)):
        if small[k] and runs and small[runs[-1][0]]:
            runs[-1].append(k)
        else:
            runs.append([k])
    return [part for run in runs for part in _without_exchange(kernel, run)]


def _without_exchange(kernel: Kernel, run: list[int]) -> list[list[int]]:
    for at, k in enumerate(run):
        outside = {a.array for o, s in enumerate(kernel.stages) if o not in run for a in s.reads.values()}
        results = {a.array for o in run[:at] for a in kernel.stages[o].writes.values()}
        if any(a.array in results & outside for a in kernel.stages[k].reads.values()):
            return [*_without_exchange(kernel, run[:at]), *_without_exchange(kernel, run[at:])]
    return [run]


# ---------------------------------------------------------------- sums over what statements share


def _hands_on(kernel: Kernel) -> bool:
    """Do statements read what others of the kernel write to memory, and no schedule says how?"""
    return kernel.schedule is None and bool(kernel.forwarded_arrays())


def _waiting(kernel: Kernel) -> dict[int, list[str]]:
    """Statement -> its writes to memory that are reduced over loops which several statements share."""
    shared = set(kernel.outer) if len(kernel.stages) > 1 or kernel.locals else set()
    by_statement = {
        k: [c for c, a in s.writes.items() if a.array not in kernel.locals and shared & set(s.reduced_params(c))]
        for k, s in enumerate(kernel.stages)
    }
    return {k: connectors for k, connectors in by_statement.items() if connectors}


def _detach(graph: Graph, kernel: Kernel) -> list[Kernel]:
    """The kernel without the statements that wait, and a kernel for each of these."""
    waiting = _waiting(kernel)
    reads = (a.array for k in waiting for a in kernel.stages[k].reads.values())
    around = [kernel.extents[p] for p in kernel.outer]
    names = {}
    for local in dict.fromkeys(a for a in reads if a in kernel.locals):
        dtype, shape = kernel.locals[local]
        names[local] = graph.add_array(local, (*around, *shape), dtype)
    stages = []
    for k, stage in enumerate(kernel.stages):
        writes = {c: a for c, a in stage.writes.items() if c not in waiting.get(k, ())}
        if writes:
            stages += _left_in_memory(kernel, replace(stage, writes=writes), names)
    rest = _without_unread(replace(kernel, stages=stages, schedule=None))
    alone = [_alone(kernel, k, connectors, names) for k, connectors in waiting.items()]
    return [*([rest] if rest.stages else []), *_by_loops(alone)]


def _left_in_memory(kernel: Kernel, stage: Stage, names: dict[str, str]) -> list[Stage]:
    """The statement, and what it gives to the locals ``names`` in memory as well: where it is reduced, behind it."""
    both = [stage]
    for c, access in stage.writes.items():
        if access.array not in names:
            continue
        dtype = kernel.locals[access.array][0]
        target = Access(names[access.array], (*kernel.outer, *access.index))
        value = scalar.symbol(f"{c}_kept", dtype)
        if not access.wcr:
            code = (*both[0].assignments, Assignment(value, scalar.symbol(c, dtype), dtype))
            both[0] = replace(both[0], writes={**both[0].writes, str(value): target}, assignments=code)
            continue
        params = tuple(p for p in stage.params if p not in stage.reduced_params(c))
        code = (Assignment(value, scalar.symbol("whole", dtype), dtype),)
        both.append(Stage(params, {"whole": replace(access, wcr=None)}, {str(value): target}, code))
    return both


def _without_unread(kernel: Kernel) -> Kernel:
    """Without statements whose results nothing reads."""
    while True:
        read = {a.array for s in kernel.stages for a in s.reads.values()}
        arrays = {
            n for s in kernel.stages for a in s.writes.values() if (n := a.array) not in kernel.locals or n in read
        }
        useful = [s for s in kernel.stages if any(a.array in arrays for a in s.writes.values())]
        if len(useful) == len(kernel.stages):
            names = read | {a.array for s in useful for a in s.writes.values()}
            return replace(kernel, locals={n: local for n, local in kernel.locals.items() if n in names})
        kernel = replace(kernel, stages=useful)


def _alone(kernel: Kernel, k: int, connectors: list[str], names: dict[str, str]) -> Kernel:
    stage = kernel.stages[k]
    reads = {
        c: Access(names[a.array], (*kernel.outer, *a.index)) if a.array in names else a for c, a in stage.reads.items()
    }
    params = tuple(dict.fromkeys((*kernel.outer, *stage.params)))
    own = Stage(params, reads, {c: stage.writes[c] for c in connectors}, stage.assignments)
    return Kernel(kernel.label, {p: kernel.extents[p] for p in params}, [own])


def _by_loops(kernels: list[Kernel]) -> list[Kernel]:
    """Sums over the same loops in one kernel, which reads once what several of them need."""
    by_key: dict[Node, Kernel] = {}
    for kernel in kernels:
        (stage,) = kernel.stages
        key = (stage.params, frozenset(frozenset(stage.reduced_params(c)) for c in stage.writes))
        first = by_key.get(key)
        by_key[key] = kernel if first is None else replace(first, stages=[_both(first.stages[0], stage)])
    return list(by_key.values())


def _both(first: Stage, second: Stage) -> Stage:
    """One statement that does what two with the same parameters do."""
    connectors = {access: c for c, access in first.reads.items()}
    reads, symbols = dict(first.reads), {str(s): s for s in free_symbols(second.assignments)}
    wiring = {}
    names = {*first.reads, *(str(a.symbol) for a in (*first.assignments, *second.assignments)), *symbols}
    for c, access in second.reads.items():
        name = connectors.get(access) or fresh(c, names)
        reads[name] = access
        names.add(name)
        if c in symbols and name != c:
            wiring[symbols[c]] = symbol_like(symbols[c], name)
    code, renaming = fuse(first.assignments, second.assignments, wiring, names)
    became = {str(old): str(new) for old, new in renaming.items()}
    writes = {**first.writes, **{became[c]: a for c, a in second.writes.items()}}
    return Stage(first.params, reads, writes, code)


# ---------------------------------------------------------------- sums over different loops


def _reduced_sets(kernel: Kernel) -> set[frozenset[Param]]:
    """Of a kernel of one statement: the loops over which its writes are reduced, where they are."""
    if len(kernel.stages) > 1 or kernel.locals:
        return set()
    (stage,) = kernel.stages
    return {frozenset(stage.reduced_params(c)) for c in stage.writes} - {frozenset()}


def _split_sums(graph: Graph, node: KernelNode) -> None:
    """A kernel for each set of reduced loops, the first with all that is not reduced."""
    kernel = node.kernel
    different = sorted(_reduced_sets(kernel), key=lambda loops: sorted(map(str, loops)))
    if len(different) < 2:
        return
    (stage,) = kernel.stages
    graph.remove(node)
    for k, params in enumerate(different):
        sets = [params, frozenset()] if k == 0 else [params]
        writes = {c: a for c, a in stage.writes.items() if frozenset(stage.reduced_params(c)) in sets}
        graph.add_kernel(replace(kernel, stages=[replace(stage, writes=writes)], schedule=None))
