"""Whether the locals of a kernel have what is read of them in the order of a schedule (see ``schedule_check``)."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import sympy

from daceopt.ir.access.references import Reference, StatementInstance, same_element
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.schedule_check_guards import part_ways
from daceopt.ir.legality.schedule_check_hardware import refuse
from daceopt.ir.scalar.affine import affine, same
from daceopt.ir.scalar.sizes import ALL_SIZES
from daceopt.ir.schedule.schedule import (
    Alloc,
    Do,
    Guard,
    Loop,
    Tree,
    collects,
    paths,
    runs,
    walk,
)


def check_locals(kernel: Kernel, tree: Tree, bodies: dict[int, StatementInstance]) -> set[str]:
    """What is read of a local has been written by then, completely, and by the same thread.

    Returns the locals about which loops alone do not tell, because guards let their users run in different iterations.
    """
    places = paths(tree)
    order = list(places)
    stored_locals = kernel.kept_locals()
    unsure = _unsure(kernel, places)
    for reader in order:
        for read in bodies[reader].reads.values():
            if not read.buffer.local or read.buffer.array in stored_locals | unsure:
                continue
            writers = [(s, c, r) for s in places for c, r in bodies[s].writes.items() if r.buffer == read.buffer]
            for writer, connector, write in writers:
                if order.index(writer) > order.index(reader):
                    refuse(kernel, f"s{reader} reads {read.buffer.array} before s{writer} writes it")
                if writer != reader:
                    _check_dependence(kernel, places[writer], places[reader], connector, write, read)
    for array in sorted(stored_locals - unsure):
        _check_kept(kernel, array, places, bodies)
    return unsure


def _unsure(kernel: Kernel, places: Mapping[int, Several[Tree]]) -> set[str]:
    if not any(isinstance(n, Guard) for path in places.values() for n in path):
        return set()
    users = {array: [s for s, stage in enumerate(kernel.stages) if array in stage.arrays()] for array in kernel.locals}
    return {
        array
        for array, statements in users.items()
        if any(part_ways(places[a], places[b]) for a, b in combinations(statements, 2))
    }


# ---------------------------------------------------------------- locals that live on


@dataclass(frozen=True)
class _Use:
    """A statement's access of a local, by its connector."""

    statement: int
    connector: str
    reference: Reference
    writes: bool


def _check_kept(
    kernel: Kernel, array: str, places: Mapping[int, Several[Tree]], bodies: dict[int, StatementInstance]
) -> None:
    """Every two accesses of an element of which one writes keep the order that the kernel gives them."""
    uses = [
        _Use(s, c, r, accesses is bodies[s].writes)
        for s in sorted(places)
        for accesses in (bodies[s].reads, bodies[s].writes)
        for c, r in accesses.items()
        if r.buffer.local and r.buffer.array == array
    ]
    if not uses or not uses[0].writes:
        refuse(kernel, f"{array} is read before anything is written to it; expected a first value outside of the loop")
    for k, first in enumerate(uses):
        for second in uses[k:]:
            if first.writes or second.writes:
                _check_order(kernel, places, first, second)


def _check_order(kernel: Kernel, places: Mapping[int, Several[Tree]], first: _Use, second: _Use) -> None:
    array, one, other = first.reference.buffer.array, places[first.statement], places[second.statement]
    if list(places).index(first.statement) > list(places).index(second.statement):
        verbs = ["writes" if u.writes else "reads" for u in (second, first)]
        refuse(kernel, f"s{second.statement} {verbs[0]} {array} before s{first.statement} {verbs[1]} it")
    for p in kernel.serial:
        _check_in_order(kernel, p, array, first.statement, one, second.statement, other)
    if first.statement == second.statement:
        if not same_element(first.reference, second.reference):
            refuse(kernel, f"s{first.statement} reads {array} at another element than it writes")
        return
    _check_dependence(kernel, one, other, first.connector, first.reference, second.reference)


def _check_in_order(
    kernel: Kernel, p: sympy.Symbol, array: str, first: int, one: Several[Tree], second: int, other: Several[Tree]
) -> None:
    """Both are in the same loops over the serial parameter ``p``, which count up."""
    (_, values), (_, others) = _index(kernel, one), _index(kernel, other)
    if p not in values or p not in others:
        return
    carried = f"{array} is carried along {p} from s{first} to s{second}"
    loops = _loops_over(one, values[p])
    apart = next((loop for loop in loops if not any(loop is n for n in other)), None)
    if apart is not None or values[p] != others[p]:
        refuse(kernel, f"{carried}, which do not stand in one loop over it")
    odd = next((loop for loop in loops if loop.kind not in ("serial", "unroll")), None)
    if odd is not None:
        refuse(kernel, f"{carried}: the loop over {odd.param} must run in order and is {odd.kind}")
    form = affine(values[p], frozenset(loop.param for loop in loops))
    falling = [form.factors.get(loop.param, 0) for loop in loops]
    sizes = ALL_SIZES.knowing(loop.extent - 1 for loop in loops)  # or nothing runs
    if not form.is_exact or not all(sizes.is_natural(a - b) and not same(a, b) for a, b in pairwise(falling)):
        refuse(kernel, f"{carried}: its loops do not count {values[p]} up")


def _loops_over(path: Several[Tree], value: sympy.Expr) -> list[Loop]:
    return [n for n in path if isinstance(n, Loop) and n.param in sympy.sympify(value).free_symbols]


def check_registers(kernel: Kernel, tree: Tree, bodies: dict[int, StatementInstance]) -> None:
    """A register has what the statements directly before, in the same iteration, have put into it."""
    followed = {s: run[:k] for run in runs(tree) for k, s in enumerate(do.statement for do in run)}
    for array in (n.array for n, _ in walk(tree) if isinstance(n, Alloc) and n.scope == "register"):
        for reader, body in bodies.items():
            before = [r for do in followed[reader] for r in bodies[do.statement].writes.values()]
            for read in (r for r in body.reads.values() if r.buffer.local and r.buffer.array == array):
                if array in kernel.kept_locals() or not any(same_element(w, read) and not w.wcr for w in before):
                    refuse(kernel, f"s{reader} reads {array} elsewhere than it is written; expected {array} in thread")


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
        refuse(kernel, f"the local {array} does not live from s{do.statement} on until it is read")
    _check_outer(kernel, array, writer, reader, common)
    stage = kernel.stages[do.statement]
    reduced = set(stage.reduced_params(connector)) if connector in stage.writes else set()
    is_kept = array in kernel.kept_locals()
    for k, loop in enumerate(common):
        if isinstance(loop, Loop):
            moving = _walked_parameters(kernel, do, loop)
            if is_kept and moving & set(kernel.serial):
                continue  # in order: _check_in_order
            # outside of its Alloc, a local is another one in each iteration of the outer parameters anyway
            own = moving - (set(kernel.iteration(array)) if k < start else set())
            if own or k > start:
                _check_along(kernel, loop, own & reduced, write, read)
            if is_kept and (own or k > start) and not _depends(loop, write):
                refuse(kernel, f"{array} has one element for all iterations of {loop.param}, which would mix")
            if k > start and moving & set(kernel.serial) and loop.kind not in ("serial", "unroll"):
                refuse(kernel, f"iterations of the {loop.kind} loop over {loop.param} would share {array}")
    if any(collects(n, do.statement, connector) for n in common):
        refuse(kernel, f"{array} is read inside of its accumulator, which is stored behind that")


def _check_along(kernel: Kernel, loop: Loop, reduced: set[sympy.Symbol], write: Reference, read: Reference) -> None:
    """In a loop that both share, the iteration that reads an element is the one that has written it."""
    array = read.buffer.array
    if reduced:
        refuse(kernel, f"{array} is read in the loop over {loop.param}, which it is reduced over")
    if read.whole or not _same_along(loop, write, read):
        refuse(kernel, f"{array} is read at another iteration of {loop.param} than writes it")


def _walked_parameters(kernel: Kernel, do: Do, loop: Loop) -> set[sympy.Symbol]:
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
            refuse(kernel, f"{array} holds one iteration of {p} and s{first} writes it {where}; expected it inside")
        if one[p] != other[p]:
            places = f"where {p} is {one[p]}; s{second} reads it where {p} is {other[p]}"
            refuse(kernel, f"s{first} writes {array} {places}")


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
