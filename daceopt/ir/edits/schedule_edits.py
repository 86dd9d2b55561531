"""Edits of schedules: small functions, tree -> tree.

Each works on every loop over the named parameter, keeps what is computed, and may give a tree that is not legal; only
``attempt`` decides that.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import replace
from typing import Any

import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir.legality.microkernels import PRODUCT
from daceopt.ir.scalar.digits import digit
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.functions import pymod
from daceopt.ir.scalar.symbols import Parameter
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.conditions import relation
from daceopt.ir.schedule.loop_form import loop_over
from daceopt.ir.schedule.schedule import (
    KINDS,
    Alloc,
    Call,
    Do,
    Guard,
    Loop,
    Param,
    Sequence,
    Tree,
    chain,
    guarded_chain,
    map_tree,
    nest_guarded_loops,
    substitute,
)


def rescope(tree: Tree, array: str, scope: str) -> Tree:
    """Let a local live elsewhere.

    before:  local row in thread: f
    after:   local row in shared: f

    Raises IllegalSchedule where there is no such local.
    """
    if not any(isinstance(n, Alloc) and n.array == array for n, _ in schedule.walk(tree)):
        raise IllegalSchedule(f"there is no local {array}")
    return map_tree(tree, lambda n: replace(n, scope=scope) if isinstance(n, Alloc) and n.array == array else n)


def _each(tree: Tree, param: Param | str, change: Any) -> Tree:
    loop_over(tree, param)
    return map_tree(tree, lambda n: change(n) if isinstance(n, Loop) and str(n.param) == str(param) else n)


def split(tree: Tree, param: Param | str, size: int, name: str = "block") -> Tree:
    """Cut a loop into tiles; the last one may be partial.

    before:  for p < n: f(p)
    after:   for p_block < (n + size - 1) // size: for p < size, n - size*p_block: f(size*p_block + p)

    Raises IllegalSchedule where a loop is called like the blocks already.
    """
    blocks = f"{param}_{name}"
    if any(str(loop.param) == blocks for loop in schedule.loops(tree)):
        raise IllegalSchedule(f"there is a loop over {blocks} already; give these tiles another name")

    def change(loop: Loop) -> Tree:
        outer, inner, mapping = split_loop(loop, size, name)
        return replace(outer, body=replace(inner, body=substitute(loop.body, mapping)))

    return _each(tree, param, change)


def split_loop(loop: Loop, size: int, name: str = "block") -> tuple[Loop, Loop, dict[sympy.Symbol, sympy.Expr]]:
    """The two loops of :func:`split`, and what stands for ``loop.param`` in what they hold.

    Raises IllegalSchedule for a size below 1.
    """
    if size < 1:
        raise IllegalSchedule(f"tiles of {size} iterations of {loop.param}; expected at least 1")
    full = loop.extent
    block = Parameter(f"{loop.param}_{name}")
    blocks = -(-full // size) if isinstance(full, int) else dim(sympy.floor((full + size - 1) / size))
    inner = replace(loop, extent=min(size, full) if isinstance(full, int) else size, rest=_rest(loop, size, block))
    return Loop(block, blocks, loop.body), inner, {loop.param: size * block + loop.param}


def _rest(loop: Loop, size: int, block: Param) -> Dim | None:
    """What the loop leaves to its tile ``block``; None where tiles are never partial."""
    even = isinstance(loop.extent, int) and (loop.extent % size == 0 or loop.extent < size)
    if loop.rest is None:
        return None if even else dim(loop.extent - size * block)
    iterations = loop.rest if even else sympy.Min(loop.extent, loop.rest, evaluate=False)
    return dim(iterations - size * block)


def tile(tree: Tree, sizes: dict[Param | str, int]) -> Tree:
    """Split several loops directly inside one another, and let all their blocks go outside of all their tiles.

    before:  for p: for q: f(p, q)
    after:   for p_block: for q_block: for p < size_p: for q < size_q: f(...)
    """
    for param, size in sizes.items():
        tree = split(tree, param, size)
    names = [str(p) for p in sizes]
    return reorder(tree, [*(f"{n}_block" for n in names), *names])


def reorder(tree: Tree, params: Several[Param | str]) -> Tree:
    """Give loops directly inside one another the order ``params``; others of the chain keep their places.

    before:  for p: for q: f(p, q)
    after:   for q: for p: f(p, q)

    Guards between them go into the loops that they name, and no further.
    """
    names = [str(p) for p in params]
    return _reorder_chains(tree, names, lambda loops: [loops[n] for n in names])


def _reorder_chains(tree: Tree, names: Several[str], order: Any) -> Tree:
    """In each chain that has loops over all ``names``: those, in their places, as ``order`` gives them."""
    if isinstance(tree, Loop):
        loops, condition, body = guarded_chain(tree)
        by_name = {str(loop.param): loop for loop in loops if str(loop.param) in names}
        if len(by_name) == len(names):
            new = iter(order(by_name))
            return nest_guarded_loops(
                [next(new) if str(loop.param) in by_name else loop for loop in loops], condition, body
            )
        if by_name:
            missing = next((n for n in names if n not in by_name), None)
            reason = f"the loop over {missing} does not stand directly inside of the others"
            raise IllegalSchedule(reason if missing else f"the order {', '.join(names)} names a loop twice")
    below = [_reorder_chains(c, names, order) for c in schedule.children(tree)]
    return schedule.with_children(tree, below)


def merge(tree: Tree, outer: Param | str, inner: Param | str) -> Tree:
    """Make one loop of two directly inside one another.

    before:  for p < m: for q < n: f(p, q)
    after:   for q < m*n: f(q // n, q % n)
    """
    first, second = loop_over(tree, outer), loop_over(tree, inner)
    if first.body is not second or first.rest is not None or second.rest is not None:
        raise IllegalSchedule(f"{inner} does not stand directly inside of {outer}, or one of them has partial tiles")
    merged, mapping = merged_loop(first, second)
    return _each(tree, outer, lambda loop: replace(merged, body=substitute(second.body, mapping)))


def merged_loop(first: Loop, second: Loop) -> tuple[Loop, dict[sympy.Symbol, sympy.Expr]]:
    """The loop of :func:`merge`, and what stands for both parameters in what it holds."""
    extent = second.extent
    mapping = {
        first.param: digit(second.param, extent, None),
        second.param: digit(second.param, 1, extent),
    }
    return replace(second, extent=dim(first.extent * extent)), mapping


def fuse_loops(tree: Tree, param: Param | str) -> Tree:
    """Let neighbouring loops over ``param`` be one.

    before:  for p: f(p)    for p: g(p)
    after:   for p: { f(p)  g(p) }
    """

    def change(node: Tree) -> Tree:
        if not isinstance(node, Sequence):
            return node
        children: list[Tree] = []
        for child in node.children:
            last = children[-1] if children else None
            if isinstance(last, Loop) and isinstance(child, Loop) and _alike(last, child, param):
                children[-1] = replace(last, body=schedule.sequence([last.body, child.body]))
            else:
                children.append(child)
        return schedule.sequence(children)

    return map_tree(tree, change)


def _alike(a: Loop, b: Loop, param: Param | str) -> bool:
    return str(a.param) == str(param) and replace(a, body=b.body) == b


def distribute(tree: Tree, param: Param | str) -> Tree:
    """Give each part of a loop's body a loop of its own.

    before:  for p: { f(p)  g(p) }
    after:   for p: f(p)    for p: g(p)
    """

    def change(loop: Loop) -> Tree:
        return schedule.sequence([replace(loop, body=part) for part in schedule.parts(loop.body)])

    return map_tree(_each(tree, param, change), _flatten)


def _flatten(node: Tree) -> Tree:
    return schedule.sequence(node.children) if isinstance(node, Sequence) else node


def bind(tree: Tree, param: Param | str, kind: str, when: sympy.Basic | None = None) -> Tree:
    """Run a loop by other hardware: one of ``schedule.KINDS``.

    before:  for p < n: f(p)
    after:   vector for p < n: f(p)
    """
    if kind not in KINDS:
        raise IllegalSchedule(f"a {kind} loop; expected one of {', '.join(KINDS)}")
    return _each(tree, param, lambda loop: replace(loop, kind=kind, when=when))


def unroll(tree: Tree, param: Param | str) -> Tree:
    """Write out the iterations of a loop of known extent.

    before:  for p < 4: f(p)
    after:   unroll for p < 4: f(p)
    """
    loop = loop_over(tree, param)
    if not isinstance(loop.extent, int):
        raise IllegalSchedule(f"the extent of {param} is {loop.extent}; expected a number to unroll")
    return bind(tree, param, "unroll")


def rename(tree: Tree, param: Param | str, name: str) -> Tree:
    """Call a loop like another one, with which it is to be fused.

    before:  for p: f(p)
    after:   for q: f(q)

    Raises IllegalSchedule where it is inside of a loop over that name, or around one.
    """
    new = Parameter(name)

    def change(loop: Loop) -> Tree:
        if any(inner.param == new for inner in schedule.loops(loop.body)):
            raise IllegalSchedule(f"there is a loop over {name} inside of the one over {param}")
        return replace(loop, param=new, body=substitute(loop.body, {loop.param: new}))

    renamed = _each(tree, param, change)
    for node, around in schedule.walk(renamed):
        if isinstance(node, Loop) and any(isinstance(n, Loop) and n.param == node.param for n in around):
            raise IllegalSchedule(f"the loop over {param} stands inside of one over {name}")
    return renamed


def stretch(tree: Tree, param: Param | str, factor: int, extent: Dim | None = None) -> Tree:
    """Let a loop run ``factor`` times as often, and do its work in the last of each ``factor`` iterations.

    before:  for p < n: f(p)
    after:   for p < 2*n: if (p + 1) % 2 == 0: f(p // 2)

    ``extent``: of the new loop, where that is not ``factor`` times the old one: at least that, and less than ``factor``
    more, so that it is as long as another loop, with which ``fuse_loops`` joins it (loop scaling: APOLLO, Zhao et al.,
    MLSys 2022, section 4.1). Raises IllegalSchedule for a factor below 1, and where the loop has partial tiles.
    """
    if factor < 1:
        raise IllegalSchedule(f"{param} stretched by {factor}; expected at least 1")

    def change(loop: Loop) -> Tree:
        if loop.rest is not None:
            raise IllegalSchedule(f"{param} has partial tiles, which cannot be stretched")
        p = loop.param
        body = substitute(loop.body, {p: digit(p, factor, None)})
        longer = dim(loop.extent * factor) if extent is None else extent
        last = relation(pymod(p + 1, factor), "==", 0)
        return replace(loop, extent=longer, body=Guard((last,), body))

    return _each(tree, param, change)


def shift(tree: Tree, param: Param | str, by: int, extent: Dim | None = None) -> Tree:
    """Let a loop do its work some iterations later (loop shifting).

    before:  for p < n: f(p)
    after:   for p < n + 1: if 1 <= p: f(p - 1)

    ``extent``: of the new loop, where it is longer than that. Raises IllegalSchedule for a shift below 0 and where the
    loop has partial tiles.
    """
    if by < 0:
        raise IllegalSchedule(f"{param} shifted by {by}; expected 0 or more: shift the others")

    def change(loop: Loop) -> Tree:
        if loop.rest is not None:
            raise IllegalSchedule(f"{param} has partial tiles, which cannot be shifted")
        p, end = loop.param, dim(loop.extent + by)
        first = [relation(by, "<=", p)] if by else []
        last = [] if extent is None else [relation(p, "<", end)]
        body = substitute(loop.body, {p: p - by})
        return replace(loop, extent=end if extent is None else extent, body=schedule.add_guard([*first, *last], body))

    return _each(tree, param, change)


def side_by_side(trees: Several[Tree], name: str = "block") -> Loop:
    """Loops that have nothing to do with one another as one: each does its work in iterations of its own.

    before:  for p < m: f(p)    for q < n: g(q)
    after:   for block < m + n: { if block < m: f(block)    if m <= block < m + n: g(block - m) }

    The new loop is of the kind of the first one. Raises IllegalSchedule for a tree that is no loop, and for partial
    tiles.
    """
    block, first = Parameter(name), sympy.S.Zero
    guards: list[Tree] = []
    for tree in trees:
        if not isinstance(tree, Loop) or tree.rest is not None:
            raise IllegalSchedule("only whole loops, without partial tiles, can stand side by side")
        end = first + tree.extent
        one, bounds = tree.extent == 1, ((first, "<=", block),) if guards else ()
        condition = [relation(*c) for c in (((block, "==", first),) if one else (*bounds, (block, "<", end)))]
        guards.append(Guard(tuple(condition), substitute(tree.body, {tree.param: block - first})))
        first = end
    head = trees[0]
    assert isinstance(head, Loop)
    return replace(head, param=block, extent=dim(first), body=Sequence(tuple(guards)))


def call(tree: Tree, statement: int, params: Several[Param | str], microkernel: str = PRODUCT) -> Tree:
    """Let a micro-kernel do the innermost loops, over ``params``, around a statement: a product of tiles.

    before:  for m < 32: for n < 64: for k < 80: s0(m, n, k)
    after:   call product: for m < 32: for n < 64: for k < 80: s0(m, n, k)

    Raises IllegalSchedule where these are not the innermost loops, directly inside one another.
    """
    names = sorted(map(str, params))

    def change(node: Tree) -> Tree:
        loops, body = chain(node)
        own = isinstance(body, Do) and body.statement == statement
        return Call(microkernel, node) if own and sorted(str(p.param) for p in loops) == names else node

    new = map_tree(tree, change)
    if new == tree:
        raise IllegalSchedule(f"the innermost loops around s{statement} are not those over {', '.join(names)}")
    return new
