"""Kernels of small extents, and random edits of their schedules, of which many are not legal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import dace
import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.conditions import relation
from daceopt.ir.schedule.schedule import (
    Accumulate,
    Alloc,
    Guard,
    Loop,
    Sequence,
    Tree,
    chain,
    children,
    walk,
    with_children,
)
from tests.ir.carried import logsumexp, recurrence
from tests.ir.edits.test_schedule_edits import copy, total, two_stages
from tests.ir.guarded import neighbours
from tests.ir.pooled import pooled, sink_guards
from tests.ir.tiled_products import tiled_product

F = dace.float32
ROW, COLUMN, DEPTH = (param(k) for k in range(3))
Made = tuple[Graph, Any]


def _stage(params: Any, read: dict[str, Access], write: Access, expr: Callable[..., Any]) -> Stage:
    out = scalar.symbol("o", F)
    return Stage(params, read, {"o": write}, (Assignment(out, expr(*(scalar.symbol(n, F) for n in read)), F),))


def _kernel(shapes: Any, outer: Any, stages: Callable[[str, str], list[Stage]], local: Any) -> Made:
    """One that reads an array of the first shape and writes one of the second."""
    graph = Graph("test")
    x, y = graph.add_input("x", shapes[0], F), graph.add_array("y", shapes[1], F)
    extents = dict(zip((ROW, COLUMN, DEPTH), shapes[0]))
    graph.add_kernel(Kernel("drawn", extents, stages(x, y), outer, local))
    graph.add_output(y)
    return graph, graph.kernels()[0]


def softmax() -> Made:
    """Two reductions to locals, and a local row between them."""
    both, row = (ROW, COLUMN), Access("e", (COLUMN,))

    def stages(x: str, y: str) -> list[Stage]:
        return [
            _stage(both, {"v": Access(x, both)}, Access("m", (), "max"), lambda v: v + 0),
            _stage(both, {"v": Access(x, both), "m": Access("m", ())}, row, lambda v, m: sympy.exp(v - m)),
            _stage(both, {"e": row}, Access("s", (), "sum"), lambda e: e + 0),
            _stage(both, {"e": row, "s": Access("s", ())}, Access(y, both), lambda e, s: e / s),
        ]

    return _kernel(((5, 6), (5, 6)), (ROW,), stages, {"m": (F, ()), "e": (F, (6,)), "s": (F, ())})


def turned() -> Made:
    """A local of two dimensions, read in another order than written."""
    every = (ROW, COLUMN, DEPTH)

    def stages(x: str, y: str) -> list[Stage]:
        tile = Access("tile", (COLUMN, DEPTH))
        write = _stage(every, {"v": Access(x, every)}, tile, lambda v: v + 1)
        return [write, _stage(every, {"v": tile}, Access(y, (ROW, DEPTH, COLUMN)), lambda v: v + 1)]

    return _kernel(((4, 3, 5), (4, 5, 3)), (ROW,), stages, {"tile": (F, (3, 5))})


def column_sums() -> Made:
    """A local row of sums."""
    every = (ROW, COLUMN, DEPTH)

    def stages(x: str, y: str) -> list[Stage]:
        write = _stage(every, {"v": Access(x, every)}, Access("row", (DEPTH,), "sum"), lambda v: v + 1)
        return [write, _stage(every, {"v": Access("row", (DEPTH,))}, Access(y, (ROW, DEPTH, COLUMN)), lambda v: v + 1)]

    return _kernel(((4, 3, 5), (4, 5, 3)), (ROW,), stages, {"row": (F, (5,))})


def sum_over_two() -> Made:
    graph = Graph("test")
    x = graph.add_input("x", (3, 4, 5), F)
    graph.add_output(Builder(graph).reduce("sum", None, x, axes=(0, 2)))
    return graph, graph.kernels()[0]


def _size() -> Any:
    return dace.symbolic.symbol("n", dace.int64)


KERNELS: dict[str, Callable[[], Made]] = {
    "copy": lambda: copy((6, 7)),
    "rows of a size": lambda: copy((_size(), 6)),
    "columns of a size": lambda: copy((6, _size())),
    "sum": lambda: total((6, 7)),
    "sum over two": sum_over_two,
    "local": two_stages,
    "shifted local": lambda: two_stages(shifted=True),
    "reduced local": lambda: two_stages(reduced=True),
    "softmax": softmax,
    "turned tile": turned,
    "column sums": column_sums,
    "carried states": lambda: recurrence(4, 3),
    "carried sums": lambda: logsumexp(2, 7, 3),
    "neighbours": lambda: neighbours((3, 4, 5))[:2],
    "sum and pool": lambda: pooled(5, 4)[:2],
    "tiles of a product": lambda: tiled_product(5, 4, 3, size=2),
}


# ---------------------------------------------------------------- edits


def _replaced(tree: Tree, old: Tree, new: Tree) -> Tree:
    return new if tree is old else with_children(tree, [_replaced(c, old, new) for c in children(tree)])


def _pick(random: Random, tree: Tree, kind: type) -> Any:
    found = [node for node, _ in walk(tree) if isinstance(node, kind)]
    return random.choice(found) if found else None


def _turned_out(tree: Tree, outer: Any, inner: Any) -> Tree:
    """``outer`` around ``inner`` becomes ``inner`` around ``outer``."""
    return _replaced(tree, outer, replace(inner, body=replace(outer, body=inner.body)))


def _split(random: Random, tree: Tree, p: str) -> Tree:
    return edits.split(tree, p, random.choice([1, 2, 3, 4, 5, 7, 8, 16]), random.choice(["block", "part"]))


def _reorder(random: Random, tree: Tree, p: str) -> Tree:
    names = [str(loop.param) for loop in chain(edits.loop_over(tree, p))[0]]
    return edits.reorder(tree, random.sample(names, len(names)))


def _merge(random: Random, tree: Tree, p: str) -> Tree:
    inner = edits.loop_over(tree, p).body
    return edits.merge(tree, p, inner.param) if isinstance(inner, Loop) else tree


def _fuse(random: Random, tree: Tree, p: str) -> Tree:
    return edits.fuse_loops(tree, p)


def _distribute(random: Random, tree: Tree, p: str) -> Tree:
    return edits.distribute(tree, p)


def _bind(random: Random, tree: Tree, p: str) -> Tree:
    return edits.bind(tree, p, random.choice(list(schedule.KINDS)))


def _hoist(random: Random, tree: Tree, p: str) -> Tree:
    """A local lives longer."""
    for node, _ in walk(tree):
        if isinstance(node, (Loop, Alloc)) and isinstance(node.body, Alloc) and random.random() < 0.7:
            return _turned_out(tree, node, node.body)
    return tree


def _sink(random: Random, tree: Tree, p: str) -> Tree:
    """A local lives for a part of the time."""
    node = _pick(random, tree, Alloc)
    inside = node is not None and isinstance(node.body, (Loop, Alloc))
    return _turned_out(tree, node, node.body) if inside else tree


def _shuffle(random: Random, tree: Tree, p: str) -> Tree:
    node = _pick(random, tree, Sequence)
    return (
        tree
        if node is None
        else _replaced(tree, node, Sequence(tuple(random.sample(node.children, len(node.children)))))
    )


def _rescope(random: Random, tree: Tree, p: str) -> Tree:
    node = _pick(random, tree, Alloc)
    return tree if node is None else _replaced(tree, node, replace(node, scope=random.choice(schedule.SCOPES)))


def _miscount(random: Random, tree: Tree, p: str) -> Tree:
    loop = _pick(random, tree, Loop)
    if loop is None or not isinstance(loop.extent, int):
        return tree
    return _replaced(tree, loop, random.choice([replace(loop, extent=loop.extent + 1), replace(loop, rest=None)]))


def _apart(random: Random, tree: Tree, p: str) -> Tree:
    """A loop around a local and its statements becomes one around each, inside of the local."""
    loop = _pick(random, tree, Loop)
    if loop is None or not isinstance(loop.body, Alloc) or not isinstance(loop.body.body, Sequence):
        return tree
    parts = tuple(replace(loop, body=part) for part in loop.body.body.children)
    return _replaced(tree, loop, replace(loop.body, body=Sequence(parts)))


def _stretch(random: Random, tree: Tree, p: str) -> Tree:
    factor = random.choice([1, 2, 3])
    extent = edits.loop_over(tree, p).extent
    more = random.choice([0, 0, 1, 2])
    return edits.stretch(tree, p, factor, dim(extent * factor + more) if more else None)


def _shift(random: Random, tree: Tree, p: str) -> Tree:
    by = random.choice([0, 1, 2])
    more = random.choice([None, None, 1, 3])
    return edits.shift(tree, p, by, None if more is None else dim(edits.loop_over(tree, p).extent + by + more))


def _sink_guards(random: Random, tree: Tree, p: str) -> Tree:
    return sink_guards(tree, p)


def _rename(random: Random, tree: Tree, p: str) -> Tree:
    return edits.rename(tree, p, random.choice(schedule.loops(tree)).param.name)


def _side_by_side(random: Random, tree: Tree, p: str) -> Tree:
    node = _pick(random, tree, Sequence)
    return tree if node is None else _replaced(tree, node, edits.side_by_side(node.children))


def _misguard(random: Random, tree: Tree, p: str) -> Tree:
    """Another bound or remainder."""
    node = _pick(random, tree, Guard)
    if node is None:
        return tree
    k, by = random.randrange(len(node.condition)), random.choice([-1, 1])
    wrong = relation(node.condition[k].lhs + by, node.condition[k].rel_op, node.condition[k].rhs)
    return _replaced(tree, node, Guard((*node.condition[:k], wrong, *node.condition[k + 1 :]), node.body))


_GUARDING = (_stretch, _shift, _sink_guards, _side_by_side, _rename, _fuse)
_OFTEN = (_split, _reorder, _merge, _fuse, _distribute, _bind, _hoist, _sink, _apart)
_EDITS = (*_OFTEN, *_OFTEN, *_GUARDING, *_GUARDING, _shuffle, _rescope, _miscount, _misguard)


def edited(random: Random, tree: Tree) -> Tree:
    """``tree`` after up to six edits; those that do not fit are left out."""
    for _ in range(random.randint(1, 6)):
        names = [str(loop.param) for loop in schedule.loops(tree)]
        try:
            tree = random.choice(_EDITS)(random, tree, random.choice(names))
        except IllegalSchedule:
            continue
    return tree


def miscollected(random: Random, tree: Tree) -> Tree:
    """``tree`` with an accumulator left out, shared or private, further inside or outside; often just as it was."""
    node = _pick(random, tree, Accumulate)
    way = random.randint(0, 7)
    if node is None or way > 3:
        return tree
    if way == 0:
        return _replaced(tree, node, node.body)
    if way == 1:
        return _replaced(tree, node, replace(node, private=not node.private))
    if way == 2:
        return _turned_out(tree, node, node.body) if isinstance(node.body, Loop) else tree
    return _collecting_more(tree, node)


def _collecting_more(tree: Tree, node: Accumulate) -> Tree:
    """The accumulator around what it stands directly in."""
    above = next((n for n, _ in walk(tree) if any(c is node for c in children(n))), None)
    if above is None:
        return tree
    inside = with_children(above, [node.body if c is node else c for c in children(above)])
    return _replaced(tree, above, replace(node, body=inside))
