"""isl's scheduler on a kernel of several statements: one order for all, in which values are read soon after they are
written, loops shifted, scaled and interchanged where that takes it.

The integer linear program is that of Pluto (Bondhugula et al., PLDI 2008) as isl solves it (Verdoolaege and Janssens,
2017), bounded in operations and in time: APOLLO (Zhao et al., MLSys 2022, section 4.1) feeds back what cannot be
scheduled within them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations

import islpy as isl

from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel
from daceopt.ir.polyhedral.dependences import Accesses, meeting, union
from daceopt.ir.polyhedral.instances_isl import Domains
from daceopt.ir.polyhedral.schedule_isl import kind_of
from daceopt.ir.scalar.affine_isl import CONTEXT
from daceopt.ir.schedule.schedule import Param

_KIND = isl.schedule_node_type
_IN = isl.dim_type.in_


@dataclass(frozen=True)
class Effort:
    """How much isl may try: ``operations`` as isl counts them, and ``seconds``, looked at between the stages.

    ``coefficient``, ``constant``: the largest factors (strides, blocks) and shifts (windows) of schedules. Without them
    isl's integer program of two statements, one of which reads the other's two halves, grows for hours.
    """

    operations: int = 100_000
    seconds: float = 10.0
    coefficient: int = 64
    constant: int = 1024


@dataclass(frozen=True)
class Member:
    """One loop that isl found: for each statement its value as ``factor * parameter + constant``, where it goes by
    several parameters by that of the largest factor, such as the window's and not the place in it.

    ``coincident``: its iterations depend on nothing of each other.
    """

    coincident: bool
    values: Mapping[int, tuple[Param, int, int]]


def schedule(graph: Graph | None, kernel: Kernel, effort: Effort | None = None) -> isl.Schedule:
    """isl's schedule of the statements of ``kernel``.

    Raises Unsupported where an access of a local is not affine, where a statement has no iteration, and where isl does
    not end within ``effort``.
    """
    effort = effort or Effort()
    _check_statements(kernel)
    watch = _Watch(effort, kernel.label)
    with _limit(effort):
        try:
            limits = constraints(graph, kernel, watch)
            schedule = limits.compute_schedule()
        except isl.Error as error:
            raise watch.exceedance(f"{effort.operations} operations") from error
    watch.look()
    return schedule


def constraints(graph: Graph | None, kernel: Kernel, watch: _Watch | None = None) -> isl.ScheduleConstraints:
    """What must stay in order (values through locals, and their memory), and what should be near each other (also two
    reads of one element)."""
    accesses = Accesses(Domains(graph, kernel))
    flow = union([m for array in kernel.locals for m in accesses.flow(array)])
    later = union([m for array in kernel.locals for m in accesses.overwritten(array)])
    if watch is not None:
        watch.look()
    near = flow.union(union(_reuse(accesses)))
    domain = accesses.domains.all()
    result = isl.ScheduleConstraints.on_domain(domain).set_validity(flow.union(later).coalesce())
    return result.set_proximity(near.coalesce()).set_coincidence(flow.union(later).coalesce())


def _reuse(accesses: Accesses) -> list[isl.Map]:
    """{ instance -> instance of a later statement } that read one element of an array."""
    arrays = dict.fromkeys(a.array for a in accesses.kernel.reads())
    pairs = []
    for array in arrays:
        reads = accesses.elements(array, False)
        pairs += [meeting(reads[a], reads[b]) for a, b in combinations(sorted(reads), 2)]
    return pairs


def _check_statements(kernel: Kernel) -> None:
    domains = Domains(None, kernel)
    for k, stage in enumerate(kernel.stages):
        if domains.domain(k).is_empty():
            raise Unsupported(f"s{k} of {kernel.label} has no iteration")
        for access in (*stage.reads.values(), *stage.writes.values()):
            if access.array in kernel.locals:
                _check_index(domains, k, access)


def _check_index(domains: Domains, k: int, access: Access) -> None:
    _, of, _ = domains.functions(k)
    for value in access.index:
        if value is None:
            raise Unsupported(f"s{k} takes all of a dimension of {access.array}")
        of.of(value)


class _Watch:
    """The time since the scheduler began."""

    def __init__(self, effort: Effort, label: str):
        self._effort, self._label, self._start = effort, label, time.monotonic()

    def look(self) -> None:
        """Raise Unsupported where the time is over."""
        if time.monotonic() - self._start > self._effort.seconds:
            raise self.exceedance(f"{self._effort.seconds} s")

    def exceedance(self, bound: str) -> Unsupported:
        return Unsupported(f"isl finds no schedule of {self._label} within {bound}")


@contextmanager
def _limit(effort: Effort) -> Iterator[None]:
    bounds = {
        "max_operations": effort.operations,
        "schedule_max_coefficient": effort.coefficient,
        "schedule_max_constant_term": effort.constant,
    }
    before = {name: getattr(CONTEXT, f"get_{name}")() for name in bounds}
    CONTEXT.reset_operations()
    _configure(bounds)
    try:
        yield
    finally:
        _configure(before)
        CONTEXT.reset_operations()


def _configure(options: Mapping[str, int]) -> None:
    for name, value in options.items():
        getattr(CONTEXT, f"set_{name}")(value)


# ---------------------------------------------------------------- what isl found


def outer_band(kernel: Kernel, schedule: isl.Schedule) -> list[Member]:
    """The outermost loops in which all statements are; none where isl separates them.

    Raises Unsupported for a loop along which a statement goes by a quotient.
    """
    node = schedule.get_root().child(0)
    if kind_of(node) != _KIND.band:
        return []
    partial = node.band_get_partial_schedule()
    members = []
    for k in range(node.band_n_member()):
        functions = partial.get_union_pw_aff(k)
        values = dict(filter(None, (_value(kernel, f) for f in _pieces(functions))))
        members.append(Member(bool(node.band_member_get_coincident(k)), values))
    return members


def _pieces(functions: isl.UnionPwAff) -> list[isl.PwAff]:
    listed = functions.get_pw_aff_list()
    return [listed.get_at(k) for k in range(listed.n_pw_aff())]


def _value(kernel: Kernel, function: isl.PwAff) -> tuple[int, tuple[Param, int, int]] | None:
    """Statement, and its parameter, factor and constant; None where it stands still."""
    statement = int(str(function.get_tuple_id(_IN).name)[1:])
    pieces = function.get_pieces()
    if len(pieces) != 1:
        raise Unsupported(f"s{statement} goes along a loop by {function}")
    aff = pieces[0][1]
    factors = [aff.get_coefficient_val(_IN, k) for k in range(aff.dim(_IN))]
    whole = all(v.is_int() for v in (*factors, aff.get_constant_val()))
    if aff.dim(isl.dim_type.div) or not whole:
        raise Unsupported(f"s{statement} goes along a loop by {function}")
    moving = [(k, f.get_num_si()) for k, f in enumerate(factors) if not f.is_zero()]
    if not moving:
        return None
    axis, factor = max(moving, key=lambda item: abs(item[1]))
    param = kernel.stages[statement].params[axis]
    return statement, (param, factor, aff.get_constant_val().get_num_si())
