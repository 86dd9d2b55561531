"""Let statements of one kernel that run over the same elements share their loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from daceopt.cost.limits import limits
from daceopt.ir.access.references import Reference, StatementInstance, same_element
from daceopt.ir.edits.attempt import Edit, Edited, after_those_that_are_legal
from daceopt.ir.edits.loops import KernelLoops, Nest
from daceopt.ir.edits.schedule_edits import fuse_loops
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Param
from daceopt.transformations.hardware._scheduling import KernelStep, at_least, chosen, count

_PAGE = 4096  # bytes: prefetchers follow a place to the end of its page
_LONG = _PAGE // 4  # iterations: shorter loops end before memory is walked at its pace
Stream: TypeAlias = "tuple[Reference, Dim]"  # a walk through an array, and the page on which it begins


@dataclass(frozen=True)
class LoopFusion(KernelStep):
    """Put neighbouring nests over the same loops into one.

    before:  for j < n: e[j] = exp(x[j])    for j < n: s += e[j]
    after:   for j < n: { e[j] = exp(x[j]);  s += e[j] }

    Not where the second reads what the first reduces, or at another element than the same iteration writes, and not
    where one loop would walk more than ``streams`` places of memory, of which both have few in common (None: the
    machine says how many, ``cost/limits.py``). In kernels with serial loops or tiles of their own: neighbouring loops
    over one parameter, one parameter after the other.
    """

    streams: int | None = None

    def edit(self, form: KernelLoops) -> Edited:
        if form.kernel.is_tiled:
            return after_those_that_are_legal(form, map(_fuse, form.kernel.extents))
        nests: list[Nest] = []
        for nest in form.nests:
            if nests and _may_join(form, nests[-1], nest) and not self._walks_too_many(form, nests[-1], nest):
                last = nests.pop()
                nest = Nest(last.loops, schedule.sequence([last.body, nest.body]))
            nests.append(nest)
        return None if len(nests) == len(form.nests) else form.with_nests(nests)

    def _walks_too_many(self, form: KernelLoops, first: Nest, second: Nest) -> bool:
        """Would the loop be slower than two, as it follows more places than a core does? Short loops are not."""
        if not at_least(count(first.loops), _LONG):
            return False
        here, there = (_streams(form.bodies_of(nest)) for nest in (first, second))
        common = here & there
        is_needed = any(r.buffer.local for r, _ in common) or 2 * len(common) >= min(len(here), len(there))
        return not is_needed and len(here | there) > chosen(self.streams, limits().streams)


def _streams(bodies: Sequence[StatementInstance]) -> set[Stream]:
    """Where statements walk; what lies on one page is read in one go, however many places of it there are."""
    return {_stream(r) for body in bodies for r in body.references()}


def _stream(reference: Reference) -> Stream:
    buffer = reference.buffer
    size = types.itemsize(buffer.dtype)
    page = buffer.offset * size // _PAGE if isinstance(buffer.offset, int) else buffer.offset
    start = replace(buffer, offset=0)
    return replace(reference, buffer=start, steps=tuple(sorted(reference.steps, key=str)), wcr=None), page


def _fuse(p: Param) -> Edit:
    return lambda loops: fuse_loops(loops.tree, p)


def _may_join(form: KernelLoops, first: Nest, second: Nest) -> bool:
    spaces = [{(loop.param, loop.extent, loop.rest) for loop in nest.loops} for nest in (first, second)]
    return spaces[0] == spaces[1] and _reads_what_stands(form.bodies_of(first), form.bodies_of(second))


def _reads_what_stands(first: Sequence[StatementInstance], second: Sequence[StatementInstance]) -> bool:
    """Has the first's iteration written, and not only begun to reduce, all that the second's reads of it?"""
    written = {r.buffer: r for body in first for r in body.writes.values()}
    for read in (r for body in second for r in body.reads.values()):
        source = written.get(read.buffer)
        if source is not None and (source.wcr or read.whole or not same_element(source, read)):
            return False
    return True
