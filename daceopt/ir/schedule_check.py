"""Whether a schedule does what its kernel says: every instance once, nothing read before it is whole, threads apart.

Raises ``IllegalSchedule`` with the dependence, the loop or the element that forbids it. The rules are those of
polyhedral scheduling for the dependences that kernels have: reductions, which commute, and locals, which statements
write and later ones read. Where a local is kept from one iteration of a serial loop to the next, whoever accesses an
element runs in the order in which the kernel says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from collections.abc import Sequence as Several
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, NoReturn

import dace
import numpy as np
import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir import scalar
from daceopt.ir.affine import affine, same
from daceopt.ir.extents import in_scalar_code
from daceopt.ir.functions import idiv, pymod
from daceopt.ir.graph import Dim, Graph, dim
from daceopt.ir.hardware import limits_of
from daceopt.ir.kernel import Kernel
from daceopt.ir.microkernels import products
from daceopt.ir.references import Body, Reference, resolved, same_element
from daceopt.ir.schedule import (
    KINDS,
    SCOPES,
    Accumulate,
    Alloc,
    Do,
    Loop,
    Tree,
    as_digit,
    in_terms_of,
    reduced_loops,
    runs,
    walk,
)
from daceopt.ir.schedule_check_hardware import check_hardware


def check(graph: Graph, kernel: Kernel, tree: Tree) -> None:
    """Raise IllegalSchedule unless ``tree`` is a schedule of ``kernel``."""
    _check_statements(kernel, tree)
    for node, around in walk(tree):
        if isinstance(node, Loop):
            _check_loop(kernel, node, around)
        if isinstance(node, Alloc) and node.scope not in SCOPES:
            _refuse(kernel, f"local {node.array} in {node.scope}; expected one of {', '.join(SCOPES)}")
        if isinstance(node, Do):
            _check_domain(kernel, node, [n for n in around if isinstance(n, Loop)])
            _check_reductions(kernel, node, around)
    bodies = resolved(graph, kernel, tree)
    check_hardware(kernel, tree, bodies, limits_of(graph.options.target))
    products(kernel, tree, bodies)
    _check_locals(kernel, tree, bodies)
    _check_registers(kernel, tree, bodies)


def _refuse(kernel: Kernel, reason: str) -> NoReturn:
    raise IllegalSchedule(f"schedule of {kernel.label}: {reason}")


def _check_statements(kernel: Kernel, tree: Tree) -> None:
    found = [node.statement for node, _ in walk(tree) if isinstance(node, Do)]
    for k, stage in enumerate(kernel.stages):
        if found.count(k) != 1:
            _refuse(kernel, f"statement {k} stands in it {found.count(k)} times; expected once")
        node = next(n for n, _ in walk(tree) if isinstance(n, Do) and n.statement == k)
        if len(node.index) != len(stage.params):
            _refuse(kernel, f"statement {k} has {len(stage.params)} parameters; found {len(node.index)} values")
    if extra := set(found) - set(range(len(kernel.stages))):
        _refuse(kernel, f"statements {sorted(extra)} do not exist; the kernel has {len(kernel.stages)}")
    for k, stage in enumerate(kernel.stages):
        kept = next((a.array for a in stage.writes.values() if a.wcr and a.array in kernel.kept()), None)
        if kept is not None:
            _refuse(kernel, f"s{k} reduces into {kept}, which is kept; expected a local of its own for the sum")
    local = [node.array for node, _ in walk(tree) if isinstance(node, Alloc)]
    if sorted(local) != sorted(kernel.locals):
        _refuse(kernel, f"it holds the locals {sorted(local)}; expected each of {sorted(kernel.locals)} once")


def _check_loop(kernel: Kernel, loop: Loop, around: Several[Tree]) -> None:
    outer = [n for n in around if isinstance(n, Loop)]
    if loop.kind not in KINDS:
        _refuse(kernel, f"{loop.param} is a {loop.kind} loop; expected one of {', '.join(KINDS)}")
    if loop.param in [other.param for other in outer]:
        _refuse(kernel, f"a loop over {loop.param} stands inside of another one")
    if any("vector" in other.kind for other in outer):
        _refuse(kernel, f"the loop over {loop.param} stands inside of a vector loop")
    known = {other.param for other in outer} | set(kernel.extents)
    sizes = {s for e in kernel.extents.values() for s in getattr(e, "free_symbols", ())}
    for expr in (loop.extent, loop.rest):
        free: set[Any] = getattr(expr, "free_symbols", set())
        unknown = free - known - sizes
        inside = free & set(kernel.extents) - {other.param for other in outer}
        if unknown or inside:
            _refuse(kernel, f"the extent of {loop.param} depends on {sorted(map(str, unknown | inside))}")
    if "parallel" in loop.kind:
        _check_parallel(kernel, loop, around)


def _check_parallel(kernel: Kernel, loop: Loop, around: Several[Tree]) -> None:
    shared = [n.array for n in around if isinstance(n, Alloc)]
    if shared:
        _refuse(kernel, f"threads of the parallel loop over {loop.param} would share the local {shared[0]}")
    if loop.kind == "parallel vector" and any(isinstance(n, Loop) and "parallel" in n.kind for n in around):
        _refuse(kernel, f"the parallel vector loop over {loop.param} stands inside of another thread's loop")
    between: list[Tree] = []
    for node in reversed(around):
        if not (isinstance(node, Loop) and "parallel" in node.kind):
            between = [*between, node]
        elif between:
            _refuse(kernel, f"the parallel loop over {loop.param} stands inside of another thread's loop")


# ---------------------------------------------------------------- every instance once


def _check_domain(kernel: Kernel, do: Do, loops: Several[Loop]) -> None:
    """The values of the parameters go over the whole domain, each combination once."""
    stage = kernel.stages[do.statement]
    by_base: dict[Any, list[tuple[Dim, Dim | None, Any]]] = {}
    used: dict[Any, Any] = {}
    for p, value in zip(stage.params, do.index):
        base, divisor, radix = as_digit(value)
        if kernel.bounds(p)[1] is None:
            by_base.setdefault(base, []).append((divisor, radix, p))
        else:
            used[_partial(kernel, do, p, value, loops)] = base
    for base, digits in by_base.items():
        total = _digits(kernel, do, base, digits)
        for p in _mixed(kernel, do, base, total, loops):
            if p in used:
                _refuse(kernel, f"statement {do.statement} takes two parameters from the loop over {p}")
            used[p] = base
    for loop in loops:
        if loop.param not in used and loop.extent != 1:
            _refuse(kernel, f"statement {do.statement} runs again for each iteration of {loop.param}")


def _partial(kernel: Kernel, do: Do, p: Any, value: Any, loops: Several[Loop]) -> Any:
    """The loop over a parameter whose extent is what another one leaves: one loop, as long as the kernel says."""
    extent, rest = kernel.bounds(p)
    loop = next((loop for loop in loops if loop.param == value), None)
    if loop is None:
        _refuse(kernel, f"statement {do.statement}: {p} is {value}; expected one loop, for its extent changes")
    there = dict(zip(kernel.stages[do.statement].params, do.index))
    expected = in_terms_of(rest, there) if rest in there else dim(sympy.sympify(rest).xreplace(there))
    if not _same(loop.extent, extent) or loop.rest is None or not _same(loop.rest, expected):
        _refuse(
            kernel,
            f"statement {do.statement}: {p} takes min({loop.extent}, {loop.rest}) values; "
            f"expected min({extent}, {expected})",
        )
    return loop.param


def _digits(kernel: Kernel, do: Do, base: Any, digits: list[tuple[Dim, Dim | None, Any]]) -> Dim:
    """The number of values that ``base`` must take for its digits to go over their whole extents."""
    left = list(digits)
    total: Dim = 1
    while left:
        part = next((d for d in left if same(d[0], total)), None)
        if part is None:
            _refuse(kernel, f"statement {do.statement}: the digits of {base} do not follow one another")
        left.remove(part)
        _, radix, p = part
        extent = kernel.extents[p]
        if ((radix is None) != (not left) and extent != 1) or (radix is not None and not same(radix, extent)):
            _refuse(kernel, f"statement {do.statement}: {p} takes {radix} values of {base}; expected {extent}")
        total = dim(total * extent)
    return total


def _mixed(kernel: Kernel, do: Do, base: Any, total: Dim, loops: Several[Loop]) -> list[Any]:
    """Check that ``base`` takes each value below ``total`` once; returns the loops' parameters in it."""
    by_param = {loop.param: loop for loop in loops}
    form = affine(base, by_param)
    if not form.is_exact or form.constant != 0:
        _refuse(kernel, f"statement {do.statement}: {base} is no sum of loops")
    tiles = _Tiles(total, [(step, by_param[p]) for p, step in form.terms])
    if tiles.reason:
        _refuse(kernel, f"statement {do.statement}: {base} {tiles.reason}")
    return list(form.factors)


class _Tiles:
    """Loops that together count to ``total``: each but the innermost steps over tiles that those inside of it fill.

    ``reason``: why they do not, or None. What the extents do not already ensure, the innermost loop's ``rest`` must:
    that a tile ends where the next one begins, and the last one at ``total``.
    """

    def __init__(self, total: Dim, loops: list[tuple[Dim, Loop]]):
        self._total, self._levels = total, self._sorted(loops)
        self.reason = self._check()

    @staticmethod
    def _sorted(loops: list[tuple[Dim, Loop]]) -> list[tuple[Dim, Loop]]:
        """The largest steps first, and of equal ones the loop that is not a single iteration; sizes count as 7."""
        return sorted(loops, key=lambda level: (-_value(level[0]), level[1].extent == 1))

    def _check(self) -> str | None:
        if not self._levels:
            return None if _same(self._total, 1) else f"takes 1 value; expected {self._total}"
        if not _same(self._levels[-1][0], 1):
            return "leaves gaps: no loop steps by 1"
        values = f"takes {' * '.join(str(loop.extent) for _, loop in reversed(self._levels))} values"
        bound = self._total
        for step, loop in self._levels:
            if loop.rest is not None and loop is not self._levels[-1][1]:
                return f"has partial tiles in the outer loop over {loop.param}"
            if not _same(loop.extent, _ceiling(bound, step)) and not self._is_short(loop, bound):
                return f"{values}; expected {self._total}"
            bound = step
        needed, given = self._bounds(), _minima(self._levels[-1][1].rest, {loop.param for _, loop in self._levels})
        if any(must and not any(_same(e, g) for g in given) for e, must in needed):
            return f"{values}; expected {self._total}"
        if any(not any(_same(e, g) for e, _ in needed) for g in given):
            return f"ends its innermost loop at {self._levels[-1][1].rest}"
        return None

    def _is_short(self, loop: Loop, bound: Dim) -> bool:
        """A tile longer than a loop of known extent is as long as that."""
        return len(self._levels) > 1 and loop is self._levels[-1][1] and _same(loop.extent, self._total)

    def _bounds(self) -> list[tuple[Any, bool]]:
        """What is left for the innermost loop at each level, and whether the extents do not ensure it."""
        found: list[tuple[Any, bool]] = []
        for k, bound in enumerate([self._total, *(step for step, _ in self._levels[:-1])]):
            inside = self._levels[k:]
            taken = sum((step * loop.param for step, loop in inside[:-1]), sympy.S.Zero)
            reached = prod(loop.extent for _, loop in inside)
            within = isinstance(reached, int) and isinstance(bound, int) and reached <= bound
            found.append((bound - taken, not within and not _same(reached, bound)))
        return found


def _value(step: Dim) -> int:
    return step if isinstance(step, int) else int(step.subs(dict.fromkeys(step.free_symbols, 7)))


def _minima(rest: Any, params: Set[Any]) -> list[Any]:
    """The expressions of which ``rest`` is the smallest; minima of sizes alone are numbers like others."""
    if rest is None:
        return []
    expr = sympy.sympify(rest)
    inner = next((m for m in expr.atoms(sympy.Min) if m.free_symbols & params), None)
    if inner is None:
        return [expr]
    return [m for a in inner.args for m in _minima(expr.xreplace({inner: a}), params)]


def _same(a: Any, b: Any) -> bool:
    """Are two sizes equal? What SymPy cannot decide (floors, minima and maxima of sizes) is computed for sizes around
    each number that occurs in them, and its multiples, where tiles begin and end."""
    if same(a, b):
        return True
    difference = sympy.sympify(a - b)
    if not difference.has(sympy.floor, sympy.Min, sympy.Max, idiv, pymod):
        return False
    difference = in_scalar_code(difference)
    numbers = {abs(int(n)) for n in difference.atoms(sympy.Integer)} | {1, 7}
    points = sorted({p for n in numbers for p in (n - 1, n, n + 1, 2 * n, 2 * n + 1, 5 * n) if p >= 0})
    symbols = sorted(difference.free_symbols, key=str)
    values = {
        s: np.array([points[(k * (j + 1) + j) % len(points)] for k in range(2 * len(points))])
        for j, s in enumerate(symbols)
    }
    return not np.any(scalar.evaluate(difference, values, None, dace.int64))


def _ceiling(total: Dim, below: Dim) -> Any:
    if isinstance(total, int) and isinstance(below, int):
        return -(-total // below)
    return sympy.floor(sympy.sympify(total + below - 1) / below)


# ---------------------------------------------------------------- reductions and locals


def _check_reductions(kernel: Kernel, do: Do, around: Several[Tree]) -> None:
    stage = kernel.stages[do.statement]
    for connector in stage.writes:
        reduced = reduced_loops(stage, connector, do, around)
        if not reduced:
            continue
        name = f"s{do.statement}.{connector}"
        first = around.index(reduced[0])
        write = (do.statement, connector)
        holders = [n for n in around[:first] if isinstance(n, Accumulate) and write in n.writes()]
        if not holders:
            _refuse(kernel, f"{name} is reduced over {reduced[0].param} outside of its accumulator")
        threads = next((loop for loop in reduced if "parallel" in loop.kind), None)
        if threads is not None and not holders[0].private:
            _refuse(kernel, f"{name} is reduced over the parallel loop {threads.param} without a private accumulator")


def _check_locals(kernel: Kernel, tree: Tree, bodies: dict[int, Body]) -> None:
    places = {n.statement: (*around, n) for n, around in walk(tree) if isinstance(n, Do)}
    order = list(places)
    kept = kernel.kept()
    for reader in order:
        for read in bodies[reader].reads.values():
            if not read.buffer.local or read.buffer.array in kept:
                continue
            writers = [(s, c, r) for s in places for c, r in bodies[s].writes.items() if r.buffer == read.buffer]
            for writer, connector, write in writers:
                if order.index(writer) > order.index(reader):
                    _refuse(kernel, f"s{reader} reads {read.buffer.array} before s{writer} writes it")
                if writer != reader:
                    _check_dependence(kernel, places[writer], places[reader], connector, write, read)
    for array in sorted(kept):
        _check_kept(kernel, array, places, bodies)


# ---------------------------------------------------------------- locals that live on


@dataclass(frozen=True)
class _Use:
    """A statement's access of a local, by its connector."""

    statement: int
    connector: str
    reference: Reference
    writes: bool


def _check_kept(kernel: Kernel, array: str, places: Mapping[int, Several[Tree]], bodies: dict[int, Body]) -> None:
    """Every two accesses of an element of which one writes keep the order that the kernel gives them."""
    uses = [
        _Use(s, c, r, found is bodies[s].writes)
        for s in sorted(places)
        for found in (bodies[s].reads, bodies[s].writes)
        for c, r in found.items()
        if r.buffer.local and r.buffer.array == array
    ]
    if not uses or not uses[0].writes:
        _refuse(kernel, f"{array} is read before anything is written to it; expected a first value outside of the loop")
    for k, first in enumerate(uses):
        for second in uses[k:]:
            if first.writes or second.writes:
                _check_order(kernel, places, first, second)


def _check_order(kernel: Kernel, places: Mapping[int, Several[Tree]], first: _Use, second: _Use) -> None:
    array, one, other = first.reference.buffer.array, places[first.statement], places[second.statement]
    if list(places).index(first.statement) > list(places).index(second.statement):
        verbs = ["writes" if u.writes else "reads" for u in (second, first)]
        _refuse(kernel, f"s{second.statement} {verbs[0]} {array} before s{first.statement} {verbs[1]} it")
    for p in kernel.serial:
        _check_in_order(kernel, p, array, first.statement, one, second.statement, other)
    if first.statement == second.statement:
        if not same_element(first.reference, second.reference):
            _refuse(kernel, f"s{first.statement} reads {array} at another element than it writes")
        return
    _check_dependence(kernel, one, other, first.connector, first.reference, second.reference)


def _check_in_order(
    kernel: Kernel, p: Any, array: str, first: int, one: Several[Tree], second: int, other: Several[Tree]
) -> None:
    """Both stand in the same loops over the serial parameter ``p``, which count up."""
    (_, values), (_, others) = _index(kernel, one), _index(kernel, other)
    if p not in values or p not in others:
        return
    carried = f"{array} is carried along {p} from s{first} to s{second}"
    found = _loops_over(one, values[p])
    apart = next((loop for loop in found if not any(loop is n for n in other)), None)
    if apart is not None or values[p] != others[p]:
        _refuse(kernel, f"{carried}, which do not stand in one loop over it")
    odd = next((loop for loop in found if loop.kind not in ("serial", "unroll")), None)
    if odd is not None:
        _refuse(kernel, f"{carried}: the loop over {odd.param} must run in order and is {odd.kind}")
    form = affine(values[p], frozenset(loop.param for loop in found))
    falling = [form.factors.get(loop.param, 0) for loop in found]
    if not form.is_exact or any(_value(a) <= _value(b) for a, b in pairwise(falling)):
        _refuse(kernel, f"{carried}: its loops do not count {values[p]} up")


def _loops_over(path: Several[Tree], value: Any) -> list[Loop]:
    return [n for n in path if isinstance(n, Loop) and n.param in sympy.sympify(value).free_symbols]


def _check_registers(kernel: Kernel, tree: Tree, bodies: dict[int, Body]) -> None:
    """A register has what the statements directly before, in the same iteration, have put into it."""
    followed = {s: run[:k] for run in runs(tree) for k, s in enumerate(do.statement for do in run)}
    for array in (n.array for n, _ in walk(tree) if isinstance(n, Alloc) and n.scope == "register"):
        for reader, body in bodies.items():
            before = [r for do in followed[reader] for r in bodies[do.statement].writes.values()]
            for read in (r for r in body.reads.values() if r.buffer.local and r.buffer.array == array):
                if array in kernel.kept() or not any(same_element(w, read) and not w.wcr for w in before):
                    _refuse(kernel, f"s{reader} reads {array} elsewhere than it is written; expected {array} in thread")


def _check_dependence(
    kernel: Kernel, writer: Several[Tree], reader: Several[Tree], connector: str, write: Reference, read: Reference
) -> None:
    """What is read has been written, completely, and not been written over."""
    array = read.buffer.array
    common = [a for a, b in zip(writer, reader) if a is b]
    start = next((k for k, n in enumerate(common) if isinstance(n, Alloc) and n.array == array), None)
    do = writer[-1]
    assert isinstance(do, Do)
    if start is None:
        _refuse(kernel, f"the local {array} does not live from s{do.statement} on until it is read")
    _check_outer(kernel, array, writer, reader, common)
    stage = kernel.stages[do.statement]
    reduced = set(stage.reduced(connector)) if connector in stage.writes else set()
    kept = array in kernel.kept()
    for k, loop in enumerate(common):
        if isinstance(loop, Loop):
            walked = _walked(kernel, do, loop)
            if kept and walked & set(kernel.serial):
                continue  # in order: _check_in_order
            # outside of its Alloc, a local is another one in each iteration of the outer parameters anyway
            own = walked - (set(kernel.iteration(array)) if k < start else set())
            if own or k > start:
                _check_along(kernel, loop, own & reduced, write, read)
            if kept and (own or k > start) and not _depends(loop, write):
                _refuse(kernel, f"{array} has one element for all iterations of {loop.param}, which would mix")
            if k > start and walked & set(kernel.serial) and loop.kind not in ("serial", "unroll"):
                _refuse(kernel, f"iterations of the {loop.kind} loop over {loop.param} would share {array}")
    if any(isinstance(n, Accumulate) and (do.statement, connector) in n.writes() for n in common):
        _refuse(kernel, f"{array} is read inside of its accumulator, which is stored behind that")


def _check_along(kernel: Kernel, loop: Loop, reduced: set[Any], write: Reference, read: Reference) -> None:
    """In a loop that both share, the iteration that reads an element is the one that has written it."""
    array = read.buffer.array
    if reduced:
        _refuse(kernel, f"{array} is read in the loop over {loop.param}, which it is reduced over")
    if read.whole or not _same_along(loop, write, read):
        _refuse(kernel, f"{array} is read at another iteration of {loop.param} than writes it")


def _walked(kernel: Kernel, do: Do, loop: Loop) -> set[Any]:
    """The parameters of a statement that change along ``loop``."""
    values = zip(kernel.stages[do.statement].params, do.index)
    return {p for p, value in values if loop.param in sympy.sympify(value).free_symbols}


def _check_outer(
    kernel: Kernel, array: str, writer: Several[Tree], reader: Several[Tree], common: Several[Tree]
) -> None:
    """An iteration of the outer parameters reads its local before the next one writes to the same memory."""
    (first, one), (second, other) = (_index(kernel, path) for path in (writer, reader))
    for p in (
        p for p in kernel.iteration(array) if p in one and p in other
    ):  # a scope without loops names one all the same
        loops = [n for n in writer if isinstance(n, Loop) and n.param in sympy.sympify(one[p]).free_symbols]
        apart = next((n for n in loops if not any(n is c for c in common)), None)
        if apart is not None:
            where = f"in the loop over {apart.param}, which ends before s{second} reads it"
            _refuse(kernel, f"{array} holds one iteration of {p} and s{first} writes it {where}; expected it inside")
        if one[p] != other[p]:
            places = f"where {p} is {one[p]}; s{second} reads it where {p} is {other[p]}"
            _refuse(kernel, f"s{first} writes {array} {places}")


def _index(kernel: Kernel, path: Several[Tree]) -> tuple[int, dict[Any, Any]]:
    do = path[-1]
    assert isinstance(do, Do)
    return do.statement, dict(zip(kernel.stages[do.statement].params, do.index))


def _depends(loop: Loop, reference: Reference) -> bool:
    return bool(reference.step(loop.param)) or loop.param in getattr(reference.rest, "free_symbols", ())


def _same_along(loop: Loop, write: Reference, read: Reference) -> bool:
    p = loop.param
    depends = _depends(loop, write) or _depends(loop, read)
    return not depends or ((write.step(p) or 0) == (read.step(p) or 0) and same(write.rest, read.rest))
