"""Whether isl's schedule of a kernel keeps its dependences: a second opinion beside ``schedule_check``.

That one knows the forms that schedules have, and is fast. Here isl decides about relations between instances, whatever
the loops look like; it says nothing about what is a matter of form (a loop inside of a vector loop, say).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import islpy as isl

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.polyhedral.dependences import Accesses, union
from daceopt.ir.polyhedral.instances_isl import Domains
from daceopt.ir.polyhedral.schedule_isl import kind_of, order, read_mark
from daceopt.ir.schedule.schedule import Accumulate, Alloc, Call, Loop

_KIND = isl.schedule_node_type
_COLLECTED = {"": (), "warp": ("warp",), "block": ("block", "warp")}  # by accumulators across what, which loops


def violation(graph: Graph | None, kernel: Kernel, schedule: isl.Schedule) -> str | None:
    """The first reason why ``schedule``, which has the marks of ``to_isl``, does not compute what ``kernel`` says.

    None where all dependences are in order, none of them passes from thread to thread, an element of a local keeps its
    value until its last reader, and reductions are whole when they are read.
    """
    return next(_Verdict(Accesses(Domains(graph, kernel)), schedule).reasons(), None)


@dataclass(frozen=True)
class _Place:
    """A mark in isl's tree: the node that it says, and how the bands outside of it number the instances below it;
    ``inside``: with the band that the mark is about."""

    node: Any
    outside: isl.UnionMap
    inside: isl.UnionMap

    def once(self) -> isl.UnionMap:
        """{ a -> b } in one execution of the node."""
        return self.outside.apply_range(self.outside.reverse())

    def apart(self) -> isl.UnionMap:
        """{ a -> b } in two iterations of one execution of the loop."""
        return self.once().subtract(self.inside.apply_range(self.inside.reverse()))


def _places(node: isl.ScheduleNode) -> Iterator[_Place]:
    """All marks from ``node`` on. (An exception in a callback of isl ends the process, so there is none.)"""
    if kind_of(node) == _KIND.mark:
        below = node.child(0)
        inside = below.child(0) if kind_of(below) == _KIND.band else below
        yield _Place(read_mark(node), _numbers(node), _numbers(inside))
    for k in range(node.n_children()):
        yield from _places(node.child(k))


def _numbers(node: isl.ScheduleNode) -> isl.UnionMap:
    return node.get_prefix_schedule_union_map().intersect_domain(node.get_domain())


class _Verdict:
    def __init__(self, accesses: Accesses, schedule: isl.Schedule):
        self._accesses, self._kernel = accesses, accesses.kernel
        accesses.domains.all()  # names all sizes
        self._places = list(_places(schedule.get_root()))
        times = order(schedule)
        self._before = times.lex_lt_union_map(times)
        self._between_stages = (*self._kernel.locals, *sorted(self._kernel.forwarded_arrays()))
        self._flow = {array: union(accesses.flow(array)) for array in self._between_stages}

    def reasons(self) -> Iterator[str]:
        """Every reason why the schedule is wrong, with an example."""
        for suspect, reason in self._suspects():
            wrong = suspect.intersect_params(self._accesses.domains.sizes.possible(suspect.get_space()))
            if not wrong.is_empty():
                yield f"{reason}: {wrong.sample()}"

    def _suspects(self) -> Iterator[tuple[isl.UnionMap, str]]:
        for array in self._between_stages:
            yield from self._order(array)
            yield from self._memory(array)
            yield from self._threads(array)
        for k, stage in enumerate(self._kernel.stages):
            for connector in (c for c in stage.writes if stage.reduced_params(c)):
                yield from self._reduction(k, connector)

    def _order(self, array: str) -> Iterator[tuple[isl.UnionMap, str]]:
        yield self._flow[array].subtract(self._before), f"{array} is read before it is written"
        later = union(self._accesses.overwritten(array))
        yield later.subtract(self._before), f"{array} is written again too early"

    def _memory(self, array: str) -> Iterator[tuple[isl.UnionMap, str]]:
        flow = self._flow[array]
        for place in self._of(Alloc):
            if place.node.array == array:
                once = place.once()
                yield flow.subtract(once), f"{array} does not live until it is read"
                lost = flow.intersect(self._between(array, once))
                yield lost, f"{array} is overwritten by another iteration before it is read"

    def _between(self, array: str, once: isl.UnionMap) -> isl.UnionMap:
        """{ write -> read } with a write of another outer iteration to the same memory between them."""
        writes, reads = (
            self._accesses.clashes(array, w).intersect(once).intersect(self._before) for w in (True, False)
        )
        return writes.apply_range(reads)

    def _threads(self, array: str) -> Iterator[tuple[isl.UnionMap, str]]:
        clashes = self._accesses.clashes(array, True).union(self._accesses.clashes(array, False))
        homes = [p.once() for p in self._of(Alloc) if p.node.array == array]
        for place in self._of(Loop):
            if place.node.kind in ("serial", "unroll"):
                continue
            apart, name = place.apart(), f"iterations of the {place.node.kind} loop over {place.node.param}"
            yield self._flow[array].intersect(apart), f"{array} passes between {name}"
            for home in homes:
                yield clashes.intersect(home).intersect(apart), f"{array} is shared by {name}"

    def _reduction(self, k: int, connector: str) -> Iterator[tuple[isl.UnionMap, str]]:
        """What one element collects meets in one execution of the accumulator, which ends before it is read."""
        name, together = f"s{k}.{connector}", self._accesses.together(k, connector)
        holder = next((p for p in self._of(Accumulate) if (k, connector) in p.node.writes()), self._call(k))
        if holder is None:
            yield together, f"{name} is reduced outside of an accumulator"
            return
        yield together.subtract(holder.once()), f"{name} is stored before it is whole"
        flow = self._flow.get(self._kernel.stages[k].writes[connector].array)
        if flow is not None:
            own = flow.intersect_domain(isl.UnionSet.from_set(self._accesses.domains.domain(k)))
            yield own.intersect(holder.once()), f"{name} is read before it is stored"
        for place in self._of(Loop):
            private, across = getattr(holder.node, "private", False), getattr(holder.node, "across", "")
            alone = "parallel" in place.node.kind and not private
            alone |= place.node.kind in _COLLECTED and place.node.kind not in _COLLECTED[across]
            if alone or place.node.kind == "grid":
                yield together.intersect(place.apart()), f"{name} is shared by threads of {place.node.param}"

    def _call(self, k: int) -> _Place | None:
        """The call around statement ``k``, which sums by itself."""
        own = isl.UnionSet.from_set(self._accesses.domains.domain(k))
        inside = (p for p in self._of(Call) if not p.outside.domain().intersect(own).is_empty())
        return next(inside, None)

    def _of(self, kind: type) -> list[_Place]:
        return [p for p in self._places if isinstance(p.node, kind)]
