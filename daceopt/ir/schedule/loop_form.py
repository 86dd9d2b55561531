"""A kernel whose statements are written in the loops of its schedule: each loop is a parameter, and each statement runs
once for each of their iterations.

What a schedule splits or merges is then split or merged in the kernel, so that statements and locals can be added to
some of its loops: ``daceopt.ir.edits.kernel_edits``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.symbols import Parameter
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import (
    Alloc,
    Call,
    Do,
    Guard,
    Loop,
    Param,
    Sequence,
    Tree,
    substitute,
    walk,
    with_children,
)


def in_loops(kernel: Kernel, tree: Tree, outer: list[Loop]) -> Kernel:
    """``kernel`` in the loops of ``tree``, each a parameter; ``outer``: the loops of which each iteration has locals of
    its own, around everything. Statements that are not in ``tree`` stay as they are.

    before:  s0(i < n)           for b: for t < 8, n - 8*b: s0(8*b + t)
    after:   s0(b, t < min(8, n - 8*b))    for b: for t < 8, n - 8*b: s0(b, t)

    Raises IllegalSchedule for guards, calls and serial loops, which have no such form, and where a local lives in
    other iterations.
    """
    odd = next((n for n, _ in walk(tree) if isinstance(n, (Guard, Call))), None)
    if odd is not None or kernel.serial:
        what = "a serial loop" if odd is None else f"a {type(odd).__name__.lower()}"
        raise IllegalSchedule(f"schedule of {kernel.label}: {what}, in which no statement can be added")
    _check_locals(kernel, tree, {loop.param for loop in outer})
    tree = _rename_conflicts(tree, {loop.param: loop for loop in outer})
    stages = list(kernel.stages)
    extents: dict[sympy.Symbol, Dim] = {}
    dos: dict[int, Do] = {}
    for node, around in walk(tree):
        if isinstance(node, Loop):
            extents[node.param] = _extent(node)
        elif isinstance(node, Do):
            params = tuple(n.param for n in around if isinstance(n, Loop))
            stage = stages[node.statement]
            stages[node.statement] = stage.subs(dict(zip(stage.params, node.index, strict=True)), params)
            dos[node.statement] = Do(node.statement, params)
    unscheduled = {p for k, s in enumerate(kernel.stages) if k not in dos for p in s.params}
    extents |= {p: kernel.extents[p] for p in kernel.extents if p in unscheduled}
    shared = tuple(loop.param for loop in outer)
    written = schedule.map_tree(tree, lambda n: dos[n.statement] if isinstance(n, Do) else n)
    return Kernel(kernel.label, extents, stages, shared, kernel.locals, written)


def _extent(loop: Loop) -> Dim:
    return loop.extent if loop.rest is None else sympy.Min(loop.extent, loop.rest, evaluate=False)


def _check_locals(kernel: Kernel, tree: Tree, outer: set[Param]) -> None:
    """What a local belongs to one iteration of, the loops ``outer`` say."""
    if not kernel.locals:
        return
    for do in schedule.dos(tree):
        for p, value in zip(kernel.stages[do.statement].params, do.index):
            inside = sympy.sympify(value).free_symbols - outer
            if p in kernel.outer and inside:
                loop = min(map(str, inside))
                raise IllegalSchedule(f"locals of {kernel.label} live in one iteration of the loop over {loop}")


def _rename_conflicts(tree: Tree, loops: dict[Param, Loop]) -> Tree:
    """Loops of other extents have names of their own."""
    if isinstance(tree, Sequence):
        return Sequence(tuple(_rename_conflicts(c, loops) for c in tree.children))
    if not isinstance(tree, Loop):
        return with_children(tree, [_rename_conflicts(c, loops) for c in schedule.children(tree)])
    first = loops.setdefault(tree.param, tree)
    if (first.extent, first.rest) != (tree.extent, tree.rest):
        param = fresh(f"{tree.param}", loops)
        tree = replace(tree, param=param, body=substitute(tree.body, {tree.param: param}))
        loops[param] = tree
    return replace(tree, body=_rename_conflicts(tree.body, loops))


def fresh(name: str, used: Collection[Param]) -> Param:
    """A parameter called ``name``, or so with a number behind it, that is none of ``used``."""
    names = {str(p) for p in used}
    unused, count = name, 1
    while unused in names:
        count += 1
        unused = f"{name}_{count}"
    return Parameter(unused)


def loop_over(tree: Tree, param: Param | str) -> Loop:
    """The first loop over ``param``. Raises IllegalSchedule where there is none."""
    first = next((loop for loop in schedule.loops(tree) if str(loop.param) == str(param)), None)
    if first is None:
        names = ", ".join(dict.fromkeys(str(loop.param) for loop in schedule.loops(tree)))
        raise IllegalSchedule(f"there is no loop over {param}; the loops are over {names or 'nothing'}")
    return first


def down_to(tree: Tree, param: Param | str) -> tuple[list[Loop], Loop]:
    """The loops from the top of ``tree`` down to the one over ``param``, around all statements; and that one.

    Raises IllegalSchedule, with a statement that is outside of it, where there is no such loop.
    """
    loops: list[Loop] = []
    node = tree
    while isinstance(node, (Loop, Alloc)):
        if isinstance(node, Loop):
            loops.append(node)
            if str(node.param) == str(param):
                return loops, node
        node = node.body
    within = {do.statement for do in schedule.dos(loop_over(tree, param))}
    outside = [do.statement for do in schedule.dos(tree) if do.statement not in within]
    who = f"s{outside[0]} stands outside of it" if outside else "a guard stands around it"
    raise IllegalSchedule(f"the loop over {param} is not around all statements: {who}")


def renumber(tree: Tree, numbers: dict[int, int]) -> Tree:
    """The same statements under other numbers."""
    return schedule.map_tree(tree, lambda n: replace(n, statement=numbers[n.statement]) if isinstance(n, Do) else n)


def with_body(tree: Tree, loop: Loop, body: Tree) -> Tree:
    """``tree`` with another body of its ``loop``."""
    return schedule.map_tree(tree, lambda n: replace(n, body=body) if isinstance(n, Loop) and n == loop else n)
