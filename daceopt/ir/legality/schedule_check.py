"""Whether a schedule does what its kernel says: every instance once, nothing read before it is whole, threads apart.

Raises ``IllegalSchedule`` with the dependence, the loop or the element that forbids it. The rules are those of
polyhedral scheduling for the dependences that kernels have: reductions, which commute, and locals, which statements
write and later ones read. Where a local is kept from one iteration of a serial loop to the next, whoever accesses an
element runs in the order in which the kernel says so.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from collections.abc import Set
from dataclasses import replace
from functools import cache, lru_cache
from math import prod
from typing import Any

import sympy

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.access.references import StatementInstance, resolve_all
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.hardware import LIMITS, limits_of
from daceopt.ir.legality.legality_isl import violation
from daceopt.ir.legality.microkernels import tiles
from daceopt.ir.legality.schedule_check_guards import check_guards
from daceopt.ir.legality.schedule_check_hardware import check_hardware, refuse
from daceopt.ir.legality.schedule_check_locals import check_locals, check_registers
from daceopt.ir.polyhedral.instances_isl import Domains, loop_values
from daceopt.ir.polyhedral.schedule_isl import to_isl
from daceopt.ir.scalar.affine import affine, quotient, same
from daceopt.ir.scalar.digits import as_digit, in_terms_of
from daceopt.ir.scalar.dims import Dim, dim, hint
from daceopt.ir.scalar.functions import idiv, pymod
from daceopt.ir.scalar.sizes import ALL_SIZES
from daceopt.ir.schedule.guards import restrict_by_guards, split_merged
from daceopt.ir.schedule.schedule import (
    KINDS,
    SCOPES,
    Accumulate,
    Alloc,
    Do,
    Guard,
    Loop,
    Tree,
    reduced_loops,
    walk,
)


def check(graph: Graph, kernel: Kernel, tree: Tree, bodies: dict[int, StatementInstance] | None = None) -> None:
    """Raise IllegalSchedule unless ``tree`` is a schedule of ``kernel``. ``bodies``: what statements access in its
    loops, where that is known."""
    _check_statements(kernel, tree)
    check_guards(kernel, tree)
    for node, around in walk(tree):
        if isinstance(node, Loop):
            _check_loop(graph, kernel, node, around)
        if isinstance(node, Alloc) and node.scope not in SCOPES:
            refuse(kernel, f"local {node.array} in {node.scope}; expected one of {', '.join(SCOPES)}")
        if isinstance(node, Do):
            _check_runs(graph, kernel, node, around)
            _check_reductions(kernel, node, around)
    _check_accumulators(kernel, tree)
    bodies = resolve_all(graph, kernel, tree) if bodies is None else bodies
    _check_elements(kernel, tree, bodies)
    check_hardware(kernel, tree, bodies, limits_of(graph.options.target))
    tiles(kernel, tree, bodies)
    unsure = check_locals(kernel, tree, bodies)
    check_registers(kernel, tree, bodies)
    if unsure or kernel.forwarded_arrays():
        _check_dependences(graph, kernel, tree)


def _check_dependences(graph: Graph, kernel: Kernel, tree: Tree) -> None:
    """By isl, which knows relations between instances where their loops say too little."""
    try:
        reason = violation(graph, kernel, to_isl(graph, kernel, tree))
    except Unsupported as error:
        refuse(kernel, f"its dependences are not proven to hold: {error}")
    if reason is not None:
        refuse(kernel, reason)


def _check_statements(kernel: Kernel, tree: Tree) -> None:
    dos: dict[int, list[Do]] = {}
    for node, _ in walk(tree):
        if isinstance(node, Do):
            dos.setdefault(node.statement, []).append(node)
    for k, stage in enumerate(kernel.stages):
        instances = dos.get(k, [])
        if len(instances) != 1:
            refuse(kernel, f"statement {k} stands in it {len(instances)} times; expected once")
        if len(instances[0].index) != len(stage.params):
            refuse(kernel, f"statement {k} has {len(stage.params)} parameters; found {len(instances[0].index)} values")
    if extra := dos.keys() - set(range(len(kernel.stages))):
        refuse(kernel, f"statements {sorted(extra)} do not exist; the kernel has {len(kernel.stages)}")
    for k, stage in enumerate(kernel.stages):
        kept_local = next((a.array for a in stage.writes.values() if a.wcr and a.array in kernel.kept_locals()), None)
        if kept_local is not None:
            refuse(kernel, f"s{k} reduces into {kept_local}, which is kept; expected a local of its own for the sum")
    _check_forwarded(kernel)
    local = [node.array for node, _ in walk(tree) if isinstance(node, Alloc)]
    if sorted(local) != sorted(kernel.locals):
        refuse(kernel, f"it holds the locals {sorted(local)}; expected each of {sorted(kernel.locals)} once")


def _check_forwarded(kernel: Kernel) -> None:
    """Arrays that statements hand on are whole before the first of them that reads one."""
    for array in sorted(kernel.forwarded_arrays()):
        last = max(k for k, s in enumerate(kernel.stages) if any(a.array == array for a in s.writes.values()))
        first = min(k for k, s in enumerate(kernel.stages) if any(a.array == array for a in s.reads.values()))
        if first <= last:
            refuse(kernel, f"s{first} reads {array}, which s{last} writes; expected all writers before it")


def _check_loop(graph: Graph, kernel: Kernel, loop: Loop, around: Several[Tree]) -> None:
    outer = [n for n in around if isinstance(n, Loop)]
    if loop.kind not in KINDS:
        refuse(kernel, f"{loop.param} is a {loop.kind} loop; expected one of {', '.join(KINDS)}")
    if loop.param in [other.param for other in outer]:
        refuse(kernel, f"a loop over {loop.param} stands inside of another one")
    of_number = isinstance(loop.extent, int) and loop.rest is None
    in_lane = loop.kind == "unroll" and (of_number or graph.options.target in LIMITS)  # one lane runs all of it
    if any("vector" in other.kind for other in outer) and not in_lane:
        refuse(kernel, f"the loop over {loop.param} stands inside of a vector loop")
    params = {other.param for other in outer} | set(kernel.extents)
    sizes = {s for e in kernel.extents.values() for s in getattr(e, "free_symbols", ())}
    for expr in (loop.extent, loop.rest):
        free: set[sympy.Symbol] = getattr(expr, "free_symbols", set())
        unknown = free - params - sizes
        inside = free & set(kernel.extents) - {other.param for other in outer}
        if unknown or inside:
            refuse(kernel, f"the extent of {loop.param} depends on {sorted(map(str, unknown | inside))}")
    if "parallel" in loop.kind:
        _check_parallel(kernel, loop, around)


def _check_parallel(kernel: Kernel, loop: Loop, around: Several[Tree]) -> None:
    shared = [n.array for n in around if isinstance(n, Alloc)]
    if shared:
        refuse(kernel, f"threads of the parallel loop over {loop.param} would share the local {shared[0]}")
    if loop.kind == "parallel vector" and any(isinstance(n, Loop) and "parallel" in n.kind for n in around):
        refuse(kernel, f"the parallel vector loop over {loop.param} stands inside of another thread's loop")
    between: list[Tree] = []
    for node in reversed(around):
        if not (isinstance(node, Loop) and "parallel" in node.kind):
            between = [*between, node]
        elif between:
            refuse(kernel, f"the parallel loop over {loop.param} stands inside of another thread's loop")


def _check_accumulators(kernel: Kernel, tree: Tree) -> None:
    """Each thread has its own, also of elements that no two threads add to."""
    for node, around in walk(tree):
        if isinstance(node, Loop) and "parallel" in node.kind:
            shared = next((n for n in around if isinstance(n, Accumulate) and not n.private), None)
            if shared is not None:
                name = f"s{shared.partials[0].statement}.{shared.partials[0].connector}"
                refuse(kernel, f"threads of the parallel loop over {node.param} would share the accumulator of {name}")


# ---------------------------------------------------------------- every instance once


def _check_runs(graph: Graph, kernel: Kernel, do: Do, around: Several[Tree]) -> None:
    """Each instance runs once; where guards leave loops that are not of the usual forms, isl decides."""
    reached = restrict_by_guards(do, around)
    try:
        if not reached.conditions:
            _check_domain(kernel, reached.do, reached.loops)
            return
        reason = f"statement {do.statement} is not proven to run once for each element of its domain"
        failure = IllegalSchedule(f"schedule of {kernel.label}: {reason}")
    except IllegalSchedule as error:
        if not any(isinstance(n, Guard) for n in around):
            raise
        failure = error
    try:
        loop_values(Domains(graph, kernel, (n for n in around if isinstance(n, Loop))), do, around)
    except Unsupported as error:
        raise IllegalSchedule(f"{failure}: {error}") from error


def _check_domain(kernel: Kernel, do: Do, loops: Several[Loop]) -> None:
    """The values of the parameters go over the whole domain, each combination once."""
    do, groups = split_merged(do, loops)
    loops = [loop for group in groups for loop in group]
    stage = kernel.stages[do.statement]
    by_base: dict[sympy.Expr, list[tuple[Dim, Dim | None, sympy.Symbol, Dim]]] = {}
    used: set[sympy.Symbol] = set()

    def take(param: sympy.Symbol) -> None:
        if param in used:
            refuse(kernel, f"statement {do.statement} takes two parameters from the loop over {param}")
        used.add(param)

    for p, value in zip(stage.params, do.index):
        if kernel.bounds(p)[1] is None:
            base, divisor, radix = as_digit(value)
            by_base.setdefault(base, []).append((divisor, radix, p, kernel.extents[p]))
        else:
            take(_partial(kernel, do, p, value, loops))
    for base in [b for b in by_base if _packs_of(b, loops)]:
        packs, pack = _packs_of(base, loops)
        total = _digits(kernel, do, base, by_base.pop(base))
        if not isinstance(total, int) or total % int(pack.extent):
            refuse(kernel, f"statement {do.statement}: {base} takes {total} values; expected whole packs")
        take(pack.param)
        whole, divisor, radix = as_digit(packs)
        by_base.setdefault(whole, []).append((divisor, radix, base, total // int(pack.extent)))
    for base, digits in by_base.items():
        total = _digits(kernel, do, base, digits)
        for p in _mixed_parameters(kernel, do, base, total, loops):
            take(p)
    for loop in loops:
        if loop.param not in used and loop.extent != 1:
            refuse(kernel, f"statement {do.statement} runs again for each iteration of {loop.param}")


def _packs_of(base: sympy.Expr, loops: Several[Loop]) -> Any:
    """Of ``4*(x // m % n) + k`` with a loop over ``k < 4``, whose loop over packs was merged with others: the digit
    and the loop; None for everything else."""
    if not isinstance(base, sympy.Add):
        return None
    by_param = {loop.param: loop for loop in loops}
    pack = next((by_param[t] for t in base.args if t in by_param), None)
    if pack is None or not isinstance(pack.extent, int) or pack.rest is not None:
        return None
    packs = (base - pack.param) / pack.extent
    return (packs, pack) if isinstance(packs, (idiv, pymod)) else None


def _partial(kernel: Kernel, do: Do, p: sympy.Symbol, value: sympy.Expr, loops: Several[Loop]) -> sympy.Expr:
    """The loop over a parameter whose extent is what another one leaves: one loop, as long as the kernel says."""
    extent, rest = kernel.bounds(p)
    loop = next((loop for loop in loops if loop.param == value), None)
    if loop is None:
        refuse(kernel, f"statement {do.statement}: {p} is {value}; expected one loop, for its extent changes")
    there = dict(zip(kernel.stages[do.statement].params, do.index))
    expected = in_terms_of(rest, there) if rest in there else dim(sympy.sympify(rest).xreplace(there))
    whole = ALL_SIZES.are_equal(loop.extent, extent)
    if not whole or loop.rest is None or not ALL_SIZES.are_equal(loop.rest, expected):
        refuse(
            kernel,
            f"statement {do.statement}: {p} takes min({loop.extent}, {loop.rest}) values; "
            f"expected min({extent}, {expected})",
        )
    return loop.param


def _digits(kernel: Kernel, do: Do, base: sympy.Expr, digits: list[tuple[Dim, Dim | None, sympy.Symbol, Dim]]) -> Dim:
    """The number of values that ``base`` must take for its digits to go over their whole extents."""
    rest = list(digits)
    total: Dim = 1
    while rest:
        fitting = [d for d in rest if same(d[0], total)]
        part = min(fitting, key=lambda d: d[3] != 1, default=None)  # one of a single value says nothing
        if part is None:
            refuse(kernel, f"statement {do.statement}: the digits of {base} do not follow one another")
        rest.remove(part)
        _, radix, p, extent = part
        if ((radix is None) != (not rest) and extent != 1) or (radix is not None and not same(radix, extent)):
            refuse(kernel, f"statement {do.statement}: {p} takes {radix} values of {base}; expected {extent}")
        total = dim(total * extent)
    return total


def _mixed_parameters(kernel: Kernel, do: Do, base: sympy.Expr, total: Dim, loops: Several[Loop]) -> list[sympy.Symbol]:
    """Check that ``base`` takes each value below ``total`` once; returns the loops' parameters in it."""
    by_param = {loop.param: loop for loop in loops}
    form = affine(base, by_param)
    if not form.is_exact or form.constant != 0:
        refuse(kernel, f"statement {do.statement}: {base} is no sum of loops")
    headers = ((step, replace(by_param[p], body=_NOTHING, kind="serial", when=None)) for p, step in form.terms)
    if reason := _not_covered(total, tuple(headers)):
        refuse(kernel, f"statement {do.statement}: {base} {reason}")
    return list(form.factors)


_NOTHING = Do(0, ())


@lru_cache(1 << 12)
def _not_covered(total: Dim, loops: tuple[tuple[Dim, Loop], ...]) -> str | None:
    """Why loops with these steps do not count to ``total``; None where they do."""
    return _Tiles(total, list(loops)).reason


class _Tiles:
    """Loops that together count to ``total``: each but the innermost steps over tiles that those inside of it fill.

    ``reason``: why they do not, or None. What the extents do not already ensure, the innermost loop's ``rest`` must:
    that a tile ends where the next one begins, and the last one at ``total``.
    """

    def __init__(self, total: Dim, loops: list[tuple[Dim, Loop]]):
        self._total, self._levels = _of_packs(total, self._by_step(loops))
        self.reason = self._check()

    @staticmethod
    def _by_step(loops: list[tuple[Dim, Loop]]) -> list[tuple[Dim, Loop]]:
        """The largest steps first, and of equal ones the loop that is not a single iteration."""
        return sorted(loops, key=lambda level: (-hint(level[0]), level[1].extent == 1))

    def _check(self) -> str | None:
        if not self._levels:
            return None if ALL_SIZES.are_equal(self._total, 1) else f"takes 1 value; expected {self._total}"
        if not ALL_SIZES.are_equal(self._levels[-1][0], 1):
            return "leaves gaps: no loop steps by 1"
        values = f"takes {' * '.join(str(loop.extent) for _, loop in reversed(self._levels))} values"
        bound = self._total
        for step, loop in self._levels:
            if loop.rest is not None and loop is not self._levels[-1][1]:
                return f"has partial tiles in the outer loop over {loop.param}"
            if not ALL_SIZES.are_equal(loop.extent, _ceiling(bound, step)) and not self._is_short(loop, bound):
                return f"{values}; expected {self._total}"
            bound = step
        needed, rest = self._bounds(), _minima(self._levels[-1][1].rest, {loop.param for _, loop in self._levels})
        if any(must and not any(ALL_SIZES.are_equal(e, g) for g in rest) for e, must in needed):
            return f"{values}; expected {self._total}"
        if any(not any(ALL_SIZES.are_equal(e, g) for e, _ in needed) for g in rest):
            return f"ends its innermost loop at {self._levels[-1][1].rest}"
        return None

    def _is_short(self, loop: Loop, bound: Dim) -> bool:
        """A tile longer than a loop of known extent is as long as that."""
        return len(self._levels) > 1 and loop is self._levels[-1][1] and ALL_SIZES.are_equal(loop.extent, self._total)

    def _bounds(self) -> list[tuple[Dim, bool]]:
        """What is left for the innermost loop at each level, and whether the extents do not ensure it."""
        bounds: list[tuple[Dim, bool]] = []
        for k, bound in enumerate([self._total, *(step for step, _ in self._levels[:-1])]):
            inside = self._levels[k:]
            inner_start = sum((step * loop.param for step, loop in inside[:-1]), sympy.S.Zero)
            reached = prod(loop.extent for _, loop in inside)
            within = isinstance(reached, int) and isinstance(bound, int) and reached <= bound
            bounds.append((bound - inner_start, not within and not ALL_SIZES.are_equal(reached, bound)))
        return bounds


def _of_packs(total: Dim, levels: list[tuple[Dim, Loop]]) -> tuple[Dim, list[tuple[Dim, Loop]]]:
    """Loops over whole packs count to ``total`` if without the loop over each pack they count the packs: so where the
    loop around that one has partial tiles."""
    if len(levels) < 2 or levels[-2][1].rest is None:
        return total, levels
    (around, _), (step, loop) = levels[-2:]
    size = loop.extent
    numbers = [total, *(n for n, _ in levels[:-1])]
    if step != 1 or loop.rest is not None or not isinstance(size, int) or around != size:
        return total, levels
    if not all(isinstance(n, int) and n % size == 0 for n in numbers):
        return total, levels
    return _of_packs(total // size, [(n // size, outer) for n, outer in levels[:-1]])


def _minima(rest: sympy.Expr | None, params: Set[sympy.Symbol]) -> list[Dim]:
    """The expressions of which ``rest`` is the smallest; minima of sizes alone are numbers like others."""
    if rest is None:
        return []
    expr = sympy.sympify(rest)
    inner = next((m for m in expr.atoms(sympy.Min) if m.free_symbols & params), None)
    if inner is None:
        return [expr]
    return [m for a in inner.args for m in _minima(expr.xreplace({inner: a}), params)]


@cache
def _ceiling(total: Dim, below: Dim) -> Dim:
    if isinstance(total, int) and isinstance(below, int):
        return -(-total // below)
    if (exact := quotient(total, below)) is not None:
        return exact
    return sympy.floor(sympy.sympify(total + below - 1) / below)


# ---------------------------------------------------------------- reductions and locals


def _check_elements(kernel: Kernel, tree: Tree, bodies: dict[int, StatementInstance]) -> None:
    """An accumulator has an element for each iteration of the loops that are kept: none of them is reduced as well."""
    for do, around in ((n, a) for n, a in walk(tree) if isinstance(n, Do)):
        for connector, write in bodies[do.statement].writes.items():
            if write.wcr is None:
                continue
            reduced = reduced_loops(kernel.stages[do.statement], connector, do, around)
            both = next((loop for loop in reduced if loop.param in write.params()), None)
            if both is not None:
                reason = "which tells its elements apart, too; expected loops for one or the other"
                refuse(kernel, f"s{do.statement}.{connector} is reduced over {both.param}, {reason}")


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
            refuse(kernel, f"{name} is reduced over {reduced[0].param} outside of its accumulator")
        threads = next((loop for loop in reduced if "parallel" in loop.kind), None)
        if threads is not None and not holders[0].private:
            refuse(kernel, f"{name} is reduced over the parallel loop {threads.param} without a private accumulator")
