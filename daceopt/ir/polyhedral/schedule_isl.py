"""A kernel's schedule as a schedule tree of isl.

Statement ``k`` is the set ``S<k>[parameters]`` and sizes are isl's parameters. A loop is a band: the function of the
parameters that is the loop's value, which is the index of the statement inverted (``block = floor(i/32)``). A sequence
is a sequence of filters. What isl has no node for are marks with the lines of ``schedule_text``: headers of loops,
locals, accumulators, calls, guards.

A loop that walks several extents as one, with a size between them (``i = p // n``, ``j = p % n``), is a band of as many
members, because ``n*i + j`` is not affine.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import islpy as isl

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.polyhedral.instances_isl import Domains, loop_values
from daceopt.ir.scalar.affine_isl import CONTEXT, identifier
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Do, Loop, Sequence, Tree
from daceopt.ir.schedule.schedule_text import line_of, parse

_SET = isl.dim_type.set


def to_isl(graph: Graph | None, kernel: Kernel, tree: Tree) -> isl.Schedule:
    """``tree`` as isl's schedule; ``graph``: what it assumes about sizes bounds the schedule's domain.

    Raises IllegalSchedule where ``tree`` does not run each instance of each statement once, with an instance, and
    Unsupported where a loop or a statement's domain is not affine.
    """
    return _Writer(Domains(graph, kernel, schedule.loops(tree)), tree).schedule()


def order(isl_schedule: isl.Schedule) -> isl.UnionMap:
    """When each instance runs: a vector, smaller ones first."""
    return isl_schedule.get_map().intersect_domain(isl_schedule.get_domain())


def read_mark(node: isl.ScheduleNode) -> Tree:
    """What a mark says: the node of its line, around nothing."""
    line = str(node.mark_get_id().name)
    return parse(f"{line}\n  {line_of(Do(0, ()))}" if line.endswith(":") else line)


def kind_of(node: isl.ScheduleNode) -> Any:
    """``isl.schedule_node_type``, which the stubs of islpy take for a number."""
    return node.get_type()


class _Writer:
    def __init__(self, domains: Domains, tree: Tree):
        self._domains, self._tree = domains, tree
        self._values: dict[int, list[list[isl.PwAff]]] = {}

    def schedule(self) -> isl.Schedule:
        """The whole schedule."""
        self._check_statements()
        for node, around in schedule.walk(self._tree):
            if isinstance(node, Do):
                self._values[node.statement] = loop_values(self._domains, node, around)
        place = isl.Schedule.from_domain(self._domains.all()).get_root().child(0)
        return self._node(place, self._tree, 0).get_schedule()

    def _check_statements(self) -> None:
        statements = sorted(do.statement for do in schedule.dos(self._tree))
        expected = list(range(len(self._domains.kernel.stages)))
        if statements != expected:
            label = self._domains.kernel.label
            raise IllegalSchedule(f"schedule of {label} has statements {statements}; expected each of {expected} once")

    def _node(self, node: isl.ScheduleNode, tree: Tree, depth: int) -> isl.ScheduleNode:
        """``tree`` in the place of the leaf ``node``; ``depth``: the number of loops around it."""
        if isinstance(tree, Do):
            return node
        if isinstance(tree, Sequence):
            return self._sequence(node, tree, depth)
        if not isinstance(tree, Loop):
            node = node.insert_mark(identifier(line_of(tree)))
            return self._node(node.child(0), tree.body, depth).parent()
        node = node.insert_partial_schedule(self._band(tree, depth)).insert_mark(identifier(line_of(tree)))
        return self._node(node.child(0).child(0), tree.body, depth + 1).parent().parent()

    def _sequence(self, node: isl.ScheduleNode, tree: Sequence, depth: int) -> isl.ScheduleNode:
        parts = [self._instances(child) for child in tree.children]
        node = node.insert_sequence(reduce(isl.UnionSetList.concat, [p.to_list() for p in parts]))
        for k, child in enumerate(tree.children):
            node = self._node(node.child(k).child(0), child, depth).parent().parent()
        return node

    def _instances(self, tree: Tree) -> isl.UnionSet:
        """All that is in ``tree``, whether it is in the domain or not."""
        sets = [self._domains.domain(do.statement) for do in schedule.dos(tree)]
        universes = [isl.UnionSet.from_set(isl.Set.universe(s.get_space())) for s in sets]
        return reduce(isl.UnionSet.union, universes)

    def _band(self, loop: Loop, depth: int) -> isl.MultiUnionPwAff:
        values = [self._values[do.statement][depth] for do in schedule.dos(loop)]
        if len({len(members) for members in values}) > 1:
            raise Unsupported(f"the statements in the loop over {loop.param} take different digits of it")
        space = isl.Space.set_alloc(CONTEXT, 0, len(values[0])).set_tuple_id(_SET, identifier(str(loop.param)))
        members = [reduce(isl.UnionPwAff.union_add, map(isl.UnionPwAff.from_pw_aff, m)) for m in zip(*values)]
        listed = reduce(isl.UnionPwAffList.concat, [m.to_list() for m in members])
        return isl.MultiUnionPwAff.from_union_pw_aff_list(space, listed)
