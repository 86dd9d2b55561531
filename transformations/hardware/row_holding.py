"""Let the threads of a block hold the elements that they access again, in registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from daceopt.ir.edits.loops import KernelLoops, Nest
from daceopt.ir.edits.schedule_edits import rescope
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.legality.spread import elements, held_loops, objection, own_loops
from daceopt.ir.scalar import scalar, types
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.loop_form import fresh, renumber
from daceopt.ir.schedule.schedule import Alloc, Do, Loop, Param, Tree
from daceopt.transformations.hardware._scheduling import KernelStep

_WORD = 4  # bytes of a register


@dataclass(frozen=True)
class RowHolding(KernelStep):
    """Load what several loops of a block read once, into registers; and keep locals that threads share there, where
    each element is one thread's alone.

    before:  warp for j < 32: s += x[i, j]       warp for j < 32: y[i, j] = x[i, j] / s
    after:   spread h:   warp for j < 32: { h[j] = x[i, j];  s += h[j] }   warp for j < 32: y[i, j] = h[j] / s

    It is behind the steps that give loops to threads: the loops must be the same, iteration by iteration. A row is
    then read once, and variances are summed over differences from a mean at no cost in reads (the persistent row
    kernels of Rausch et al., DaCeML, section 5.4; APOLLO, MLSys 2022, stitches so). ``registers``: of 4 bytes that a
    thread gives to it at most. What is the same in all rows stays in the caches. Loops whose elements are held are
    unrolled: registers have no addresses.
    """

    changes_dataflow: ClassVar[bool] = True

    registers: int = 64

    def edit(self, form: KernelLoops) -> Kernel | None:
        if len(form.nests) < 2 or not _runs_on_threads(form):
            return None
        new, room = _with_spread_locals(form, self.registers)
        new = _with_held_reads(new, room)
        return None if new is form else replace(new.kernel, schedule=_unroll(new))


def _runs_on_threads(form: KernelLoops) -> bool:
    return any(loop.kind in ("block", "warp") for nest in form.nests for loop in nest.loops)


def _words(form: KernelLoops, array: str, loops: Iterable[Loop]) -> int:
    """Registers of a thread for a local with these own loops."""
    return elements(tuple(loops)) * -(-types.itemsize(form.kernel.locals[array][0]) // _WORD)


# ---------------------------------------------------------------- locals


def _with_spread_locals(form: KernelLoops, room: int) -> tuple[KernelLoops, int]:
    """Locals that threads share and need not, spread over them; and how many registers are left."""
    for alloc in form.locals:
        if alloc.scope != "shared":
            continue
        tree = schedule.add_accumulators(form.tree, form.kernel)
        if objection(tree, form.bodies, alloc.array) is not None:
            continue
        needed = _words(form, alloc.array, held_loops(schedule.paths(tree), form.bodies, alloc.array))
        if needed <= room:
            form, room = form.on(rescope(form.tree, alloc.array, "spread")), room - needed
    return form, room


# ---------------------------------------------------------------- what is read again


@dataclass(frozen=True)
class _Read:
    """The read ``connector`` of ``statement`` in nest ``nest``; ``inner``: its parameters that the element depends on
    and other statements do not share."""

    nest: int
    statement: int
    connector: str
    inner: tuple[Param, ...]


def _with_held_reads(form: KernelLoops, room: int) -> KernelLoops:
    """What nests read again, held from the first of them on, as far as there is room."""
    by_key: dict[Node, list[_Read]] = {}
    for key, read in _reads(form):
        by_key.setdefault(key, []).append(read)
    groups = [reads for reads in by_key.values() if len({r.nest for r in reads}) > 1]
    # those that most loops read first
    for reads in sorted(groups, key=lambda reads: -len({r.nest for r in reads})):
        access = form.kernel.stages[reads[0].statement].reads[reads[0].connector]
        dtype = types.compute_type(form.graph.dtype(access.array))
        loops = own_loops(_loops(form.nests[reads[0].nest]), form.bodies[reads[0].statement].reads[reads[0].connector])
        needed = elements(loops) * -(-types.itemsize(dtype) // _WORD)
        if needed <= room:
            return _with_held_reads(_hold(form, reads, dtype), room - needed)
    return form


def _loops(nest: Nest) -> tuple[Loop, ...]:
    """The nest's loops, with the one over neighbours that a thread has."""
    return (*nest.loops, nest.body) if isinstance(nest.body, Loop) else nest.loops


def _reads(form: KernelLoops) -> Iterator[tuple[Any, _Read]]:
    """What may be held, under a key that is equal where threads read the same elements in the same loops."""
    kernel = form.kernel
    written = {a.array for a in kernel.writes()}
    rows = {loop.param for loop in form.shared}
    for n, nest in enumerate(form.nests):
        loops = _loops(nest)
        if any(loop.rest is not None for loop in loops if loop.kind not in schedule.HARDWARE):
            continue
        place = tuple((loop.param, loop.kind, loop.extent, loop.rest) for loop in loops)
        for do in schedule.dos(nest.body):
            stage = kernel.stages[do.statement]
            values = dict(zip(stage.params, do.index))
            for connector, access in stage.reads.items():
                reference = form.bodies[do.statement].reads[connector]
                if access.array in written or reference.buffer.local or reference.whole or not loops:
                    continue
                if not all(reference.step(loop.param) for loop in loops) or not rows & reference.params():
                    continue
                if not all(isinstance(loop.extent, int) for loop in loops):
                    continue
                inner = tuple(p for p in stage.params if p in access.params() and p not in kernel.outer)
                same = {p: fresh(f"held_{k}", kernel.extents) for k, p in enumerate(inner)}
                key = (access.subs(same), tuple(values[p] for p in inner), place)
                yield key, _Read(n, do.statement, connector, inner)


def _hold(form: KernelLoops, reads: list[_Read], dtype: types.DType) -> KernelLoops:
    """The kernel with a local for the elements of ``reads``, which is given them before the first one."""
    kernel, first = form.kernel, reads[0]
    stage = kernel.stages[first.statement]
    access = stage.reads[first.connector]
    local = form.graph.fresh_name(access.array)
    value, result = scalar.symbol("value", dtype), scalar.symbol("result", dtype)
    params = tuple(p for p in stage.params if p in kernel.outer or p in first.inner)
    load = Stage(params, {"value": access}, {"result": Access(local, first.inner)}, (Assignment(result, value, dtype),))
    stages = list(kernel.stages)
    for read in reads:
        old = stages[read.statement]
        stages[read.statement] = replace(old, reads={**old.reads, read.connector: Access(local, read.inner)})
    stages.insert(first.statement, load)
    shape = tuple(kernel.extents[p] for p in first.inner)
    numbers = {k: k if k < first.statement else k + 1 for k in range(len(kernel.stages))}
    do = next(n for n in schedule.dos(form.nests[first.nest].body) if n.statement == first.statement)
    loading = Do(first.statement, tuple(dict(zip(stage.params, do.index))[p] for p in params))
    nests = [replace(nest, body=renumber(nest.body, numbers)) for nest in form.nests]
    nests[first.nest] = _after(loading, nests[first.nest])
    tree = form.with_nests(nests, locals_=(*form.locals, Alloc(local, "spread", loading)))
    kernel = replace(kernel, stages=stages, locals={**kernel.locals, local: (dtype, shape)}, schedule=tree)
    return replace(form, kernel=kernel)


def _after(do: Do, nest: Nest) -> Nest:
    """The nest, each iteration of which does ``do`` first."""
    if isinstance(nest.body, Loop):
        return replace(nest, body=replace(nest.body, body=schedule.sequence([do, nest.body.body])))
    return replace(nest, body=schedule.sequence([do, nest.body]))


# ---------------------------------------------------------------- registers have no addresses


def _unroll(form: KernelLoops) -> Tree:
    """The serial loops of nests that access what is spread over threads, unrolled."""
    spread = {a.array for a in form.locals if a.scope == "spread"}
    nests = []
    for nest in form.nests:
        arrays = {r.buffer.array for body in form.bodies_of(nest) for r in body.references() if r.buffer.local}
        loops = [replace(n, kind="unroll") if n.kind == "serial" else n for n in nest.loops]
        nests.append(replace(nest, loops=tuple(loops)) if arrays & spread else nest)
    return form.with_nests(nests)
