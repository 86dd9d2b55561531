"""How the statements of a kernel run: a tree of loops, of which every level is a decision that some step has taken.

The statements (``Kernel.stages``) say what is computed for which values of their parameters; the schedule says in which
order, in which memory and by which hardware. Its nodes map one to one onto isl's schedule trees: ``Loop`` is a band
of one member, ``Sequence`` a sequence of filters, ``Do`` a leaf, ``Guard`` a filter, ``Accumulate`` and ``Alloc``
extension nodes; ``Call`` is a mark above the loops that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

import dace
import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir.kernel.kernel import Kernel, Stage
from daceopt.ir.scalar import types
from daceopt.ir.scalar.digits import in_terms_of
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.schedule import conditions

Param: TypeAlias = sympy.Symbol
Tree: TypeAlias = "Loop | Sequence | Do | Accumulate | Alloc | Call | Guard"

KINDS = ("serial", "parallel", "vector", "parallel vector", "unroll", "grid", "block", "warp")
SCOPES = ("register", "thread", "shared", "spread")
HARDWARE = ("grid", "block", "warp")  # of an accelerator: blocks, the threads of one, the lanes of a warp
COLLECTIVES = ("warp", "block")
MOST_IN_OWN_TYPE = 16  # iterations of a serial loop whose partial sums may be rounded to the type of the result


@dataclass(frozen=True)
class Loop:
    """``for param < extent: body``.

    ``rest``: what a partial last tile leaves, in parameters of loops around; the loop ends at the smaller of both.
    ``kind``: an accelerator's blocks are the iterations of ``grid`` loops, a block's threads those of ``block`` loops;
    where the kernel has ``warp`` loops, whose iterations are lanes, these are its warps. What is outside of such a
    loop happens once for all of them, and what is in turn there, in turn for all of them.
    ``when``: a parallel loop is worth its threads only where this holds (a relation over the sizes); None: always.
    """

    param: Param
    extent: Dim
    body: Tree
    kind: str = "serial"
    rest: Dim | None = None
    when: sympy.Basic | None = None


@dataclass(frozen=True)
class Sequence:
    """The children in turn."""

    children: tuple[Tree, ...]


@dataclass(frozen=True)
class Do:
    """One instance of statement ``statement``; ``index`` has the value of each of its parameters."""

    statement: int
    index: tuple[Dim, ...]


@dataclass(frozen=True)
class Partial:
    """The reduction of one write: what connector ``connector`` of ``statement`` collects; ``wide``: sums and products
    of float32 in float64."""

    statement: int
    connector: str
    wide: bool = True


@dataclass(frozen=True)
class Accumulate:
    """Reductions collect in accumulators of their own while ``body`` runs, and are stored after it.

    An accumulator has an element for each iteration of the loops inside ``body`` that its write keeps. Inside another
    one of the same write it is added to that. ``private``: each thread has one, and they are added up in their order.
    ``across``: each lane (``warp``) or thread (``block``) that it is reduced over has one, which starts from the
    identity, and a collective operation gives all of them the whole.
    """

    partials: tuple[Partial, ...]
    body: Tree
    private: bool = False
    across: str = ""

    def writes(self) -> list[tuple[int, str]]:
        """The (statement, connector) of each reduction."""
        return [(p.statement, p.connector) for p in self.partials]


@dataclass(frozen=True)
class Alloc:
    """The local ``array`` lives while ``body`` runs, in ``scope``: a ``register`` (a value of one iteration), memory of
    each ``thread``, memory ``shared`` by the threads of a block, or ``spread`` over them (``spread.py``)."""

    array: str
    scope: str
    body: Tree


@dataclass(frozen=True)
class Call:
    """One call of a micro-kernel on a tile, which does what the loops of ``body`` say (``microkernels.py``).

    What ``body`` reduces, the call adds up by itself: into the tile, or into the accumulator around the call.
    """

    microkernel: str
    body: Tree


@dataclass(frozen=True)
class Guard:
    """``body`` runs only where all of ``condition`` hold: relations (``conditions.py``) of what is affine in the
    parameters of loops around and the sizes, remainders included.

    One relation, or ``sympy.And`` of several, becomes the tuple of them. Raises IllegalSchedule for anything else.
    """

    condition: tuple[sympy.Basic, ...]
    body: Tree

    def __post_init__(self) -> None:
        object.__setattr__(self, "condition", conditions.conjunction(self.condition))


# ---------------------------------------------------------------- reading a tree


def children(tree: Tree) -> tuple[Tree, ...]:
    """The trees directly below ``tree``."""
    if isinstance(tree, Sequence):
        return tree.children
    return () if isinstance(tree, Do) else (tree.body,)


def parts(tree: Tree) -> tuple[Tree, ...]:
    """What runs in turn at the top of ``tree``: the children of a sequence, or itself."""
    return tree.children if isinstance(tree, Sequence) else (tree,)


def with_children(tree: Tree, new: Several[Tree]) -> Tree:
    """``tree`` over other children, as many as it has."""
    if isinstance(tree, Sequence):
        return Sequence(tuple(new))
    return tree if isinstance(tree, Do) else replace(tree, body=new[0])


def walk(tree: Tree, around: tuple[Tree, ...] = ()) -> Iterator[tuple[Tree, tuple[Tree, ...]]]:
    """Every node with all that is around it, outermost first; parents before children, in execution order."""
    waiting = [(tree, around)]
    while waiting:
        node, above = waiting.pop()
        yield node, above
        if below := children(node):
            inside = (*above, node)
            waiting += [(child, inside) for child in reversed(below)]


def loops(tree: Tree) -> list[Loop]:
    """All loops, outer before inner."""
    return [node for node, _ in walk(tree) if isinstance(node, Loop)]


def dos(tree: Tree) -> list[Do]:
    """All statement instances, in order."""
    return [node for node, _ in walk(tree) if isinstance(node, Do)]


Paths: TypeAlias = dict[int, tuple[Tree, ...]]


def paths(tree: Tree) -> Paths:
    """Statement -> the nodes from the top of ``tree`` down to its ``Do``."""
    return {node.statement: (*around, node) for node, around in walk(tree) if isinstance(node, Do)}


def loops_below(node: Tree, path: Several[Tree]) -> list[Loop]:
    """The loops of a path inside of ``node``. Raises IllegalSchedule where that does not stand on it."""
    start = next((k for k, n in enumerate(path) if n is node), None)
    if start is None:
        raise IllegalSchedule(f"a statement does not stand inside of a {type(node).__name__.lower()} that names it")
    return [n for n in path[start + 1 :] if isinstance(n, Loop)]


def collects(node: Tree, statement: int, connector: str) -> bool:
    """Is it an accumulator of this write?"""
    return isinstance(node, Accumulate) and (statement, connector) in node.writes()


def runs(tree: Tree) -> list[list[Do]]:
    """Statements that run in one iteration directly one after the other."""
    if isinstance(tree, Do):
        return [[tree]]
    if not isinstance(tree, Sequence):
        return [run for child in children(tree) for run in runs(child)]
    return [run for part in in_runs(tree.children) for run in ([part] if isinstance(part, list) else runs(part))]


def in_runs(trees: Several[Tree]) -> list[list[Do] | Tree]:
    """Trees that are one after the other, neighbouring statements put together."""
    runs: list[list[Do] | Tree] = []
    for tree in trees:
        if not isinstance(tree, Do):
            runs.append(tree)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(tree)
        else:
            runs.append([tree])
    return runs


def map_tree(tree: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """``change`` applied to every node, children first."""
    below = children(tree)
    new = tuple(map_tree(c, change) for c in below)
    return change(tree if all(a is b for a, b in zip(below, new)) else with_children(tree, new))


def chain(tree: Tree) -> tuple[list[Loop], Tree]:
    """The loops that are directly inside one another at the top of ``tree``, and what the innermost one holds."""
    loops = []
    while isinstance(tree, Loop):
        loops.append(tree)
        tree = tree.body
    return loops, tree


def nest_loops(headers: Iterable[Loop], body: Tree) -> Tree:
    """``body`` inside loops like ``headers``, outermost first."""
    for header in reversed(list(headers)):
        body = replace(header, body=body)
    return body


def guarded_chain(tree: Tree) -> tuple[list[Loop], list[sympy.Basic], Tree]:
    """Like :func:`chain`, through guards: the loops, what all guards between them demand, and what is inside."""
    loops: list[Loop] = []
    condition: list[sympy.Basic] = []
    while isinstance(tree, (Loop, Guard)):
        if isinstance(tree, Loop):
            loops.append(tree)
        else:
            condition += tree.condition
        tree = tree.body
    return loops, condition, tree


def nest_guarded_loops(headers: Several[Loop], condition: Iterable[sympy.Basic], body: Tree) -> Tree:
    """``body`` inside loops like ``headers``, each relation directly inside of the last loop that it names."""
    conditions = dict.fromkeys(condition)
    for header in reversed(headers):
        here = [c for c in conditions if header.param in c.free_symbols]
        conditions = {c: None for c in conditions if c not in here}
        body = replace(header, body=add_guard(here, body))
    return add_guard(conditions, body)


def add_guard(condition: Iterable[sympy.Basic], body: Tree) -> Tree:
    """``body`` where all of ``condition`` hold; itself where nothing is demanded."""
    relations = tuple(condition)
    return Guard(relations, body) if relations else body


def sequence(trees: Several[Tree]) -> Tree:
    """The trees in turn; a single one is itself, sequences in it become part of this one."""
    flat = [c for t in trees for c in parts(t)]
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


# ---------------------------------------------------------------- parameters of statements


def substitute(tree: Tree, mapping: dict[sympy.Symbol, sympy.Expr]) -> Tree:
    """The values of the statements' parameters, the rests of tiles and the conditions in other loop parameters."""

    def change(node: Tree) -> Tree:
        if isinstance(node, Do):
            return replace(node, index=tuple(in_terms_of(e, mapping) for e in node.index))
        if isinstance(node, Loop) and isinstance(node.rest, sympy.Expr):
            return replace(node, rest=dim(node.rest.xreplace(mapping)))
        if isinstance(node, Guard):
            return replace(node, condition=tuple(conditions.substitute(c, mapping) for c in node.condition))
        return node

    return map_tree(tree, change)


# ---------------------------------------------------------------- the schedule of an unscheduled kernel


def default(kernel: Kernel) -> Tree:
    """Serial loops: those that the stages share, then the stages one after the other, in the kernel's serial loops."""
    outer = kernel.outer if len(kernel.stages) > 1 or kernel.locals else ()
    body = _nests(kernel, range(len(kernel.stages)), outer)
    placed = {n.array for n, _ in walk(body) if isinstance(n, Alloc)}
    for array in (a for a in kernel.locals if a not in placed):
        body = Alloc(array, "thread", body)
    return add_accumulators(nest_loops([loop_of(kernel, p) for p in outer if kernel.extents[p] != 1], body), kernel)


def loop_of(kernel: Kernel, p: Param) -> Loop:
    """The serial loop over a parameter; tiles that may be partial end where the array does."""
    extent, rest = kernel.bounds(p)
    return Loop(p, extent, _NOTHING, rest=rest)


_NOTHING = Do(0, ())


def _nests(kernel: Kernel, statements: Several[int], inside: tuple[Param, ...]) -> Tree:
    """The statements in turn, those that name the same serial loop together in it; ``inside``: the loops around."""
    nests: list[Tree] = []
    for p, group in groupby(statements, lambda k: _serial(kernel, k, inside)):
        members = list(group)
        if p is None:
            nests += [_nest(kernel, k, inside) for k in members]
            continue
        body = _nests(kernel, members, (*inside, p))
        for array in (a for a in kernel.locals if _home(kernel, a) == p):
            if any(array == access.array for k in members for access in kernel.stages[k].writes.values()):
                body = Alloc(array, "thread", body)
        nests.append(replace(loop_of(kernel, p), body=body))
    return sequence(nests)


def _home(kernel: Kernel, array: str) -> Param | None:
    """The innermost serial loop of which each iteration has an ``array`` of its own."""
    users = (s for s in kernel.stages if any(a.array == array for a in s.writes.values()))
    named = next(([p for p in kernel.serial if p in s.params] for s in users), [])
    return named[-1] if named and array not in kernel.kept_locals() else None


def _serial(kernel: Kernel, statement: int, inside: tuple[Param, ...]) -> Param | None:
    """The outermost serial loop of a statement that is still to come."""
    return next((p for p in kernel.serial if p not in inside and p in kernel.stages[statement].params), None)


def _nest(kernel: Kernel, statement: int, inside: tuple[Param, ...]) -> Tree:
    params = kernel.stages[statement].params
    single = {p for p in params if kernel.extents[p] == 1 and p not in kernel.serial}
    loops = [loop_of(kernel, p) for p in params if p not in inside and p not in single]
    return nest_loops(loops, Do(statement, tuple(sympy.S.Zero if p in single else p for p in params)))


def schedule_of(kernel: Kernel) -> Tree:
    """The kernel's own schedule, or the default one."""
    return default(kernel) if kernel.schedule is None else kernel.schedule


# ---------------------------------------------------------------- accumulators


def without_accumulators(tree: Tree) -> Tree:
    """Without the accumulators, which follow from the order of the loops: see :func:`add_accumulators`."""
    return map_tree(tree, lambda node: node.body if isinstance(node, Accumulate) else node)


def add_accumulators(tree: Tree, kernel: Kernel) -> Tree:
    """Give each reduction its accumulators: one around the outermost loop that it reduces over (around all loops that
    threads share, if that is one of them; across the lanes or threads of a block that it reduces over), and one in the
    write's own type, whose values are partial sums, around a vector loop that it reduces over, an unrolled one inside
    of a vector loop, that over the neighbours of an accelerator's thread (whose conversions to float64 are slow), and a
    short one directly inside of another one, where each thread has accumulators of its own.
    """
    return _Placing(kernel, without_accumulators(tree)).tree


_How: TypeAlias = tuple[bool, str]  # of an accumulator: private, across
_ALONE: _How = (False, "")


class _Placing:
    def __init__(self, kernel: Kernel, tree: Tree):
        self._kernel = kernel
        self._partials: dict[int, list[tuple[Partial, _How]]] = {}  # id of a loop -> what collects around it
        for node, around in walk(tree):
            if isinstance(node, Do):
                self._do(node, around)
        self.tree = self._place(tree)

    def _do(self, node: Do, around: tuple[Tree, ...]) -> None:
        stage, called = self._kernel.stages[node.statement], any(isinstance(n, Call) for n in around)
        for connector in stage.writes:
            reduced = reduced_loops(stage, connector, node, around)
            if not reduced:
                continue
            threads = [n for n in around if isinstance(n, Loop) and n.kind == "parallel"]
            private = any(loop in threads for loop in reduced)
            # a micro-kernel adds in the tile's own type
            partial, how = Partial(node.statement, connector, wide=not called), (private, collective(reduced))
            self._want(threads[0] if private else reduced[0], partial, how)
            in_parts = reduced[-1].kind == "vector" or _is_in_lane(reduced[-1], around)
            if in_parts or (stage.writes[connector].wcr == "sum" and _is_short_part(reduced, around, private)):
                self._want(reduced[-1], Partial(node.statement, connector, wide=False), _ALONE)

    def _want(self, loop: Loop, partial: Partial, how: _How) -> None:
        self._partials.setdefault(id(loop), []).append((partial, how))

    def _place(self, tree: Tree) -> Tree:
        new = with_children(tree, [self._place(c) for c in children(tree)])
        partials = self._partials.get(id(tree), []) if isinstance(tree, Loop) else []
        return _collecting(partials, new)


def _collecting(partials: list[tuple[Partial, _How]], body: Tree) -> Tree:
    """``body`` inside accumulators, those of lanes innermost."""
    outer: dict[tuple[int, str], tuple[Partial, _How]] = {}
    lanes: list[Partial] = []
    for partial, how in partials:
        key = (partial.statement, partial.connector)
        if key in outer:
            lanes.append(partial)
        else:
            outer[key] = partial, how
    if lanes:
        body = Accumulate(tuple(lanes), body)
    for kind in (_ALONE, (False, "warp"), (False, "block"), (True, "")):
        for wide in (False, True):
            group = tuple(p for p, how in outer.values() if how == kind and p.wide is wide)
            body = Accumulate(group, body, *kind) if group else body
    return body


def _is_in_lane(loop: Loop, around: Several[Tree]) -> bool:
    """Is it unrolled inside of one lane of a vector loop?"""
    return loop.kind == "unroll" and any(isinstance(n, Loop) and n.kind == "vector" for n in around)


def _is_short_part(reduced: Several[Loop], around: Several[Tree], private: bool) -> bool:
    """Is the innermost loop over a few neighbours of an accelerator's thread, or a short one in private sums?"""
    last = reduced[-1]
    if not isinstance(last.extent, int) or last.extent > MOST_IN_OWN_TYPE:
        return False
    if last.kind == "unroll":
        return any(isinstance(n, Loop) and n.kind in ("block", "warp") and n.body is last for n in around)
    return private and last.kind == "serial" and len(reduced) > 1 and reduced[-2].body is last


def collective(reduced: Iterable[Loop]) -> str:
    """Across what a reduction over these loops must be collected: nothing, the lanes of a warp, or a block."""
    kinds = {loop.kind for loop in reduced}
    return "block" if "block" in kinds else "warp" if "warp" in kinds else ""


def reduced_loops(stage: Stage, connector: str, do: Do, around: Several[Tree]) -> list[Loop]:
    """The loops around ``do`` that the write ``connector`` reduces over; a local lives inside of its ``Alloc``, and
    what a ``Call`` stands for collects by itself."""
    reduced = set(stage.reduced_params(connector))
    if not reduced:
        return []
    array = stage.writes[connector].array
    start = next((k for k, n in enumerate(around) if isinstance(n, Alloc) and n.array == array), 0)
    end = next((k for k, n in enumerate(around) if isinstance(n, Call)), len(around))
    over = {p for q, e in zip(stage.params, do.index) if q in reduced for p in sympy.sympify(e).free_symbols}
    return [n for n in around[start:end] if isinstance(n, Loop) and n.param in over]


def accumulator_type(dtype: types.DType, op: str) -> types.DType:
    """The type of a wide accumulator."""
    return dace.float64 if dtype == dace.float32 and op in ("sum", "prod") else dtype
