"""Whether a schedule can run on an accelerator: its loops fit blocks and warps, lanes that reduce collect together, and
each thread reads of its own memory what it has itself.

Raises ``IllegalSchedule`` with the size or the dependence that forbids it.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from math import prod
from typing import NoReturn

from daceopt.errors import IllegalSchedule
from daceopt.ir.access.references import StatementInstance
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.hardware import LANES, TargetLimits, Threads, shared_bytes
from daceopt.ir.legality.spread import elements, held_loops, objection
from daceopt.ir.scalar import types
from daceopt.ir.schedule.schedule import (
    HARDWARE,
    Accumulate,
    Alloc,
    Do,
    Guard,
    Loop,
    Paths,
    Sequence,
    Tree,
    collective,
    collects,
    paths,
    reduced_loops,
    walk,
)

_NODES = (Loop, Sequence, Do, Accumulate, Alloc, Guard)


def check_hardware(kernel: Kernel, tree: Tree, bodies: dict[int, StatementInstance], limits: TargetLimits) -> None:
    """Raise IllegalSchedule unless the grid, block and warp loops of ``tree`` can run; ``bodies``: its accesses."""
    used = [n for n, _ in walk(tree) if isinstance(n, Loop) and n.kind in HARDWARE]
    if not used:
        _check_no_sharing(kernel, tree)
        return
    for node, around in walk(tree):
        if type(node) not in _NODES:
            refuse(kernel, f"a {type(node).__name__.lower()}, which an accelerator does not run")
        if isinstance(node, Do):
            _check_reduced(kernel, node, around)
    to = paths(tree)
    for node, around in walk(tree):
        if isinstance(node, Loop):
            _check_place(kernel, node, around)
        elif isinstance(node, Alloc) and node.scope == "shared":
            _check_shared(kernel, node, around, any(loop.kind == "warp" for loop in used))
        elif isinstance(node, Accumulate):
            _check_collective(kernel, to, node, around)
        elif isinstance(node, Guard):
            _check_alike(kernel, tree, node, around)
    _check_own_memory(kernel, tree, limits.own)
    _check_spread(kernel, tree, to, bodies, limits.own)
    threads = Threads(tree)
    if threads.count > limits.threads:
        refuse(kernel, f"a block of {threads.count} threads; expected at most {limits.threads}")
    if (size := shared_bytes(kernel, tree, bodies)) > limits.shared:
        refuse(kernel, f"its threads share {size} bytes; expected at most {limits.shared}")


def refuse(kernel: Kernel, reason: str) -> NoReturn:
    """Raise IllegalSchedule for a schedule of ``kernel``."""
    raise IllegalSchedule(f"schedule of {kernel.label}: {reason}")


def _check_no_sharing(kernel: Kernel, tree: Tree) -> None:
    for node, _ in walk(tree):
        if isinstance(node, Alloc) and node.scope in ("shared", "spread"):
            refuse(kernel, f"the local {node.array} is {node.scope}, but there are no threads of a block to share it")
        if isinstance(node, Accumulate) and node.across:
            refuse(kernel, f"accumulators across a {node.across} outside of one")


def _check_place(kernel: Kernel, loop: Loop, around: Several[Tree]) -> None:
    """A loop is where its hardware is: a grid of blocks of warps of lanes."""
    kinds = [n.kind for n in around if isinstance(n, Loop)]
    if "parallel" in loop.kind or (loop.kind in HARDWARE and loop.when is not None):
        refuse(kernel, f"the {loop.kind} loop over {loop.param} is one of a CPU's threads")
    if loop.kind == "grid" and not all(isinstance(n, Loop) and n.kind == "grid" for n in around):
        refuse(kernel, f"the grid loop over {loop.param} does not stand outside of everything else")
    if loop.kind in ("block", "warp") and "warp" in kinds:
        refuse(kernel, f"the {loop.kind} loop over {loop.param} stands inside of a lane")
    if loop.kind == "warp" and not (isinstance(loop.extent, int) and loop.extent <= LANES):
        refuse(kernel, f"the warp loop over {loop.param} has {loop.extent} iterations; expected at most {LANES} lanes")


def _check_alike(kernel: Kernel, tree: Tree, guard: Guard, around: Several[Tree]) -> None:
    """Threads that must meet take the same way."""
    own = {n.param: n for n in around if isinstance(n, Loop) and n.kind in ("block", "warp")}
    named = next((own[s] for c in guard.condition for s in sorted(c.free_symbols, key=str) if s in own), None)
    meet = any(isinstance(n, Alloc) and n.scope == "shared" for n, _ in walk(tree))
    meet |= any(isinstance(n, Accumulate) and n.across for n, _ in walk(guard.body))
    if named is not None and meet:
        reason = f"a condition on the {named.kind} loop over {named.param} parts threads that wait for one another"
        refuse(kernel, reason)


def _check_shared(kernel: Kernel, node: Alloc, around: Several[Tree], has_lanes: bool) -> None:
    """Each iteration of the loops around has an instance of its own, which more than one thread must know."""
    alone = ("warp",) if has_lanes else ("block", "warp")
    inside = next((n for n in around if isinstance(n, Loop) and n.kind in alone), None)
    if inside is not None:
        reason = f"the local {node.array} is shared, but each iteration of {inside.param} is one thread"
        refuse(kernel, f"{reason}; expected it in thread")


def _check_reduced(kernel: Kernel, do: Do, around: Several[Tree]) -> None:
    for connector in kernel.stages[do.statement].writes:
        for loop in reduced_loops(kernel.stages[do.statement], connector, do, around):
            if loop.kind == "grid":
                reason = f"s{do.statement}.{connector} is reduced over the grid loop {loop.param}"
                refuse(kernel, f"{reason}: blocks do not wait for one another")


def _check_collective(kernel: Kernel, to: Paths, node: Accumulate, around: Several[Tree]) -> None:
    """Lanes and threads that reduce collect together, and no others do: each would add the same once more. ``to``: the
    way to each statement."""
    if node.private:
        refuse(kernel, "private accumulators are for a CPU's threads")
    for partial in node.partials:
        name = f"s{partial.statement}.{partial.connector}"
        *inside, do = to[partial.statement]
        assert isinstance(do, Do)
        reduced = reduced_loops(kernel.stages[partial.statement], partial.connector, do, inside)
        position = next(k for k, n in enumerate(inside) if n is node)
        ends = (k for k, n in enumerate(inside) if k > position and collects(n, partial.statement, partial.connector))
        own = [n for n in inside[position : next(ends, len(inside))] if isinstance(n, Loop) and n in reduced]
        needed = collective(own)
        if needed != node.across:
            kinds = ", ".join(f"the {n.kind} loop {n.param}" for n in own if n.kind in HARDWARE) or "no threads"
            expected = f"accumulators across a {needed}" if needed else "no collective accumulators"
            refuse(kernel, f"{name} is reduced over {kinds}; expected {expected}")
    barred = {"warp": ("warp",), "block": ("block", "warp")}.get(node.across, ())
    within = next((n for n in around if isinstance(n, Loop) and n.kind in barred), None)
    if within is not None:
        refuse(kernel, f"accumulators across a {node.across} stand inside of the {within.kind} loop {within.param}")


# ---------------------------------------------------------------- memory of each thread


def _check_own_memory(kernel: Kernel, tree: Tree, most: int) -> None:
    """What a local of each thread has been given outside of its iteration, every thread was given alike; and it is
    small."""
    for node, around in walk(tree):
        if isinstance(node, Alloc) and node.scope == "thread":
            dtype, shape = kernel.locals[node.array]
            size = prod(shape) * types.itemsize(dtype)
            if not isinstance(size, int) or size > most:
                refuse(kernel, f"each thread has {node.array}, of {size} bytes; expected at most {most}, or it shared")
            for do, inside in ((n, a) for n, a in walk(node.body) if isinstance(n, Do)):
                for connector, access in kernel.stages[do.statement].writes.items():
                    if access.array == node.array:
                        _check_owner(kernel, node, do, connector, (*around, node, *inside))


def _check_spread(kernel: Kernel, tree: Tree, to: Paths, bodies: dict[int, StatementInstance], most: int) -> None:
    """Each element of a local that is spread over threads is one thread's, and no thread has many."""
    for array in (n.array for n, _ in walk(tree) if isinstance(n, Alloc) and n.scope == "spread"):
        if (reason := objection(tree, bodies, array)) is not None:
            refuse(kernel, f"the local {array} {reason}; expected it shared")
        size = elements(held_loops(to, bodies, array)) * types.itemsize(kernel.locals[array][0])
        if size > most:
            refuse(kernel, f"each thread has {size} bytes of {array}; expected at most {most}, or it shared")


def _check_owner(kernel: Kernel, node: Alloc, do: Do, connector: str, around: Several[Tree]) -> None:
    inside = around[around.index(node) :]
    write = (do.statement, connector)
    reduced = reduced_loops(kernel.stages[do.statement], connector, do, around)
    holder = next((k for k, n in enumerate(inside) if collects(n, *write)), len(inside))
    own = [n for k, n in enumerate(inside) if isinstance(n, Loop) and n.kind in ("block", "warp")]
    loose = next((n for n in own if n not in reduced or inside.index(n) < holder), None)
    if loose is not None:
        reason = f"s{do.statement} writes {node.array} in the {loose.kind} loop over {loose.param}"
        refuse(kernel, f"{reason}, so each thread has a part of it only; expected it shared or in a register")
