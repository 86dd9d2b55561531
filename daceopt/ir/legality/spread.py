"""Locals that are spread over the threads of a block: each thread has the elements that its own iterations access.

So they are in registers, and no thread waits for another one. They are a local of the kernel like others, of its
whole shape; what a thread has of it are the iterations of the loops that the thread runs by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Several
from math import prod

import sympy

from daceopt.ir.access.references import Reference, StatementInstance, same_element
from daceopt.ir.legality.hardware import Threads
from daceopt.ir.schedule.schedule import HARDWARE, Alloc, Loop, Paths, Tree, paths


def own_loops(around: Several[Tree], reference: Reference) -> tuple[Loop, ...]:
    """Of the loops around an access those by which a thread tells apart what it has, outermost first."""
    loops = (n for n in around if isinstance(n, Loop) and n.kind not in HARDWARE)
    return tuple(loop for loop in loops if reference.step(loop.param))


def held_loops(to: Paths, bodies: Mapping[int, StatementInstance], array: str) -> tuple[Loop, ...]:
    """The own loops of ``array``, which are those of each access; none where nothing accesses it. ``to``: the paths of
    the schedule."""
    return next((own_loops(inside, reference) for reference, inside in _accesses(to, bodies, array)), ())


def elements(loops: Several[Loop]) -> int:
    """What a thread has of a local with these own loops."""
    return prod(int(loop.extent) for loop in loops)


def objection(tree: Tree, bodies: Mapping[int, StatementInstance], array: str) -> str | None:
    """Why ``array`` cannot be spread over the threads of ``tree``: some element is not one thread's alone. None: it
    can."""
    threads, first = Threads(tree), None
    for reference, inside in _accesses(paths(tree), bodies, array):
        loops = [n for n in inside if isinstance(n, Loop)]
        if reference.whole or reference.wcr or not all(reference.step(loop.param) for loop in loops):
            return "is not accessed one element in each iteration"
        if not reference.params() <= {loop.param for loop in loops}:
            return "is accessed at positions that loops around it tell"
        if any(not isinstance(loop.extent, int) or loop.rest is not None for loop in own_loops(loops, reference)):
            return "has elements of a thread whose number is not known"
        place = reference, [_place(threads, loop) for loop in loops]
        first = first or place
        if not same_element(first[0], reference) or first[1] != place[1]:
            return "is accessed by other threads than those that write it"
    return None


def _place(threads: Threads, loop: Loop) -> tuple[sympy.Expr, ...]:
    """What tells which thread runs an iteration of ``loop``, and when."""
    where = threads.place(loop) if loop.kind == "block" else None
    return loop.param, loop.kind, loop.extent, loop.rest, where


def _accesses(
    to: Paths, bodies: Mapping[int, StatementInstance], array: str
) -> Iterator[tuple[Reference, tuple[Tree, ...]]]:
    """Every access of the local with what is around it, from where it lives."""
    for statement, path in to.items():
        home = next((k for k, n in enumerate(path) if isinstance(n, Alloc) and n.array == array), len(path))
        for reference in bodies[statement].references() if home < len(path) else ():
            if reference.buffer.local and reference.buffer.array == array:
                yield reference, path[home:]
