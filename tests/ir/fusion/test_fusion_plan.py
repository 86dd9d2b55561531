"""Plans of fusion: who feeds whom, what a merge would need, and that nothing changes before ``emit``."""

from __future__ import annotations

from typing import Any

import sympy

from daceopt.ir.fusion.fusion_plan import FusionPlan, emit
from daceopt.ir.graph.graph import Graph
from daceopt.ir.text.render import render
from tests.transformations.lowered import assert_same, finish, start


def chain() -> tuple[Graph, list[Any]]:
    """tanh, exp, and the sum of both's rows."""
    graph, b, (x,) = start((4, 6))
    top = b.elementwise(sympy.tanh, x)
    e = b.elementwise(sympy.exp, top)
    total = b.reduce("sum", lambda u, v: u + v, top, e, axes=[1])
    return finish(graph, total), list(graph.kernels())


def test_who_feeds_whom() -> None:
    graph, (tanh, exp, total) = chain()
    plan = FusionPlan(graph)
    first, second, third = map(plan.group_of, (tanh, exp, total))
    assert plan.readers_of(first) == [second, third]
    assert plan.producers_of(third) == [first, second]
    assert plan.edge(first, third) == [graph.outputs_of(tanh)[0]]
    assert plan.is_needed(graph.outputs_of(tanh)[0], first, second)
    assert not plan.is_needed(graph.outputs_of(exp)[0], second, third)
    assert plan.is_needed(graph.outputs[0], second, third)


def test_a_merge_that_would_close_a_cycle_says_what_lies_between() -> None:
    graph, (tanh, exp, total) = chain()
    plan = FusionPlan(graph)
    reason = plan.why_not(plan.group_of(tanh), plan.group_of(total))
    assert reason is not None and "what lies between would have to run both before and after" in reason
    assert plan.attempt(plan.group_of(tanh), plan.group_of(exp)) is None
    assert plan.why_not(plan.group_of(exp), plan.group_of(total)) is None


def test_nothing_changes_before_the_groups_are_emitted() -> None:
    graph, (tanh, exp, total) = chain()
    before, text = graph.copy(), render(graph)
    plan = FusionPlan(graph)
    assert plan.attempt(plan.group_of(tanh), plan.group_of(exp)) is None
    assert plan.attempt(plan.group_of(exp), plan.group_of(total)) is None
    assert render(graph) == text
    (group,) = plan.fused_groups()
    assert group.members == (tanh, exp, total) and group.kernel is not None
    assert plan.producers_of(group) == [] and plan.readers_of(group) == []
    emit(graph, group.members, group.kernel)
    graph.validate()
    assert len(graph.kernels()) == 1
    assert_same(before, graph)


def test_who_accepts_has_the_last_word() -> None:
    graph, (tanh, exp, _) = chain()
    plan = FusionPlan(graph)
    first, second = plan.group_of(tanh), plan.group_of(exp)
    assert plan.attempt(first, second, lambda *_: "not today") == "not today"
    assert plan.fused_groups() == [] and plan.group_of(tanh) is first


def test_groups_around_a_node_that_is_no_kernel() -> None:
    graph, b, (x, w) = start((4, 6), (6, 5))
    y = b.elementwise(sympy.tanh, b.matmul(x, w))
    product, tanh = finish(graph, y).nodes()
    plan = FusionPlan(graph)
    first, second = plan.group_of(product), plan.group_of(tanh)
    assert plan.why_not(first, second) == "one of both is no kernel"
    joined = plan.join(first, second, None)
    assert plan.groups() == [joined] and joined.members == (product, tanh)


def test_statements_are_bounded_and_nodes_may_be_left_out() -> None:
    graph, (tanh, exp, total) = chain()
    plan = FusionPlan(graph, max_stages=1)
    assert plan.why_not(plan.group_of(tanh), plan.group_of(exp)) == "one kernel would have more than 1 statements"
    plan = FusionPlan(graph, eligible={tanh, exp})
    assert plan.why_not(plan.group_of(exp), plan.group_of(total)) == "one of both is no kernel"
