"""The driver of all edits of kernels: what an edit makes of a kernel, if that is legal.

Edits (``schedule_edits``, ``kernel_edits``) keep what is computed, and may give loops that are not legal; only this
decides that, because a few edits together may be legal where one alone is not. Exo (Ikarashi et al., PLDI 2022) keeps
schedules and their legality apart in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.edits.loops import KernelLoops, loops_of
from daceopt.ir.edits.schedule_edits import rescope
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.scopes import puts
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.schedule.schedule import Tree, without_accumulators

Edited: TypeAlias = "KernelLoops | Kernel | Tree | str | None"
Edit: TypeAlias = Callable[[KernelLoops], Edited]


def attempt(loops: KernelLoops, edit: Edit) -> KernelLoops | str | None:
    """The kernel in its loops after ``edit``. None: nothing changes; a text: the dependence, the loop or the element
    that forbids it, or what the edit says.

    ``edit`` takes the kernel in its loops and gives other loops, another kernel with its loops, None, a text, or what
    an attempt gave; it may raise IllegalSchedule or Unsupported.
    """
    try:
        result = edit(loops)
        if result is None or isinstance(result, (str, KernelLoops)):
            return None if result is loops else result
        after = _after(loops, result)
        return None if after.kernel == loops.kernel else _check(after)
    except (IllegalSchedule, Unsupported) as error:
        return str(error)


def after_those_that_are_legal(loops: KernelLoops, edits: Iterable[Edit]) -> KernelLoops:
    """The kernel after one edit and then the next: what is not legal is left out."""
    for edit in edits:
        after = attempt(loops, edit)
        loops = after if isinstance(after, KernelLoops) else loops
    return loops


def commit(graph: Graph, node: KernelNode, after: Kernel | Tree) -> KernelNode:
    """Give a kernel other loops, or put another kernel with its loops in its place; returns its node.

    Raises IllegalSchedule, and changes nothing, with the dependence, the loop or the element that forbids it.
    """
    return exchange(graph, node, _check(_after(loops_of(graph, node), after)))


def _after(before: KernelLoops, after: Kernel | Tree) -> KernelLoops:
    return KernelLoops(before.graph, after) if isinstance(after, Kernel) else before.on(without_accumulators(after))


def _check(loops: KernelLoops) -> KernelLoops:
    """Raises IllegalSchedule."""
    check(loops.graph, loops.kernel, loops.placed.schedule, loops.bodies)
    return loops


def exchange(graph: Graph, node: KernelNode, after: KernelLoops) -> KernelNode:
    """Put what :func:`attempt` gave in the place of a kernel; returns its node."""
    if after.kernel.stages is node.kernel.stages:
        node.kernel = after.placed
        node.loops = after
        return node
    graph.take_out([node])
    return graph.add_kernel(after.placed, as_it_is=True)


@puts
def put_local(graph: Graph, node: KernelNode, array: str, scope: str) -> None:
    """Let a local of a kernel live elsewhere: ``graph.scope[array] = scope``.

    Raises IllegalSchedule, and changes nothing, where it cannot.
    """
    commit(graph, node, rescope(loops_of(graph, node).tree, array, scope))
