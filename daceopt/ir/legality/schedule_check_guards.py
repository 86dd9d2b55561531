"""Whether guards are where they may, and which locals need isl's word because of them (see ``schedule_check``)."""

from __future__ import annotations

from collections.abc import Sequence as Several

import sympy

from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.schedule_check_hardware import refuse
from daceopt.ir.schedule.guards import conditions_in
from daceopt.ir.schedule.schedule import Do, Guard, Loop, Tree, collects, reduced_loops, walk
from daceopt.ir.schedule.schedule_text import line_of


def check_guards(kernel: Kernel, tree: Tree) -> None:
    """Raise IllegalSchedule for a condition on what is not known there, or one inside of accumulators that are stored
    whether it holds or not."""
    for node, around in walk(tree):
        if isinstance(node, Guard):
            _check_names(kernel, node, around)
        elif isinstance(node, Do):
            _check_stored(kernel, node, around)


def _check_names(kernel: Kernel, guard: Guard, around: Several[Tree]) -> None:
    inside = {n.param for n in around if isinstance(n, Loop)}
    sizes = {s for e in kernel.extents.values() for s in getattr(e, "free_symbols", ())}
    sizes |= {s for n in around if isinstance(n, Loop) for s in getattr(n.extent, "free_symbols", ())}
    named = {s for c in guard.condition for s in c.free_symbols}
    if unknown := named - inside - (sizes - set(kernel.extents)):
        names = ", ".join(sorted(map(str, unknown)))
        refuse(kernel, f"{line_of(guard)!r} names {names}, no loop around it and no size of the kernel")


def _check_stored(kernel: Kernel, do: Do, around: Several[Tree]) -> None:
    stage = kernel.stages[do.statement]
    for connector in stage.writes:
        inside = [k for k, n in enumerate(around) if collects(n, do.statement, connector)]
        if not inside:
            continue
        reduced = {loop.param for loop in reduced_loops(stage, connector, do, around)}
        loops = {n.param for n in around if isinstance(n, Loop)}
        for guard in (n for n in around[inside[0] :] if isinstance(n, Guard)):
            names = sorted(str(s) for c in guard.condition for s in c.free_symbols & loops - reduced)
            if names:
                name = f"s{do.statement}.{connector}"
                reason = f"{line_of(guard)!r} stands inside of the accumulators of {name}, which are stored for each"
                refuse(kernel, f"{reason} {names[0]}; expected it around them")


def part_ways(one: Several[Tree], other: Several[Tree]) -> bool:
    """Do guards let two statements run in different iterations of loops that both are in? ``one``, ``other``: what
    is around each."""
    common = {n.param for n in one if isinstance(n, Loop) and any(n is m for m in other)}
    first, second = ({c for c in conditions_in(around) if c.free_symbols & common} for around in (one, other))
    own: set[sympy.Symbol] = {n.param for around in (one, other) for n in around if isinstance(n, Loop)} - common
    return first != second or any(c.free_symbols & own for c in first)
