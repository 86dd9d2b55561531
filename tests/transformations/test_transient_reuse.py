"""Transient reuse: one arena in which dead arrays give their place away."""

from __future__ import annotations

import sympy

from daceopt.codegen import memory_plan
from daceopt.transformations.hardware.transient_reuse import TransientReuse
from tests.transformations.lowered import apply, finish, start


def test_dead_arrays_make_room() -> None:
    graph, b, (x,) = start((64, 64))
    y = x
    for _ in range(5):
        y = b.elementwise(sympy.tanh, y)
    finish(graph, y)
    separate = memory_plan.plan(graph, [], reuse=graph.options.reuse_memory).arena_bytes
    assert len(apply(TransientReuse(), graph).sites) == 1
    shared = memory_plan.plan(graph, [], reuse=graph.options.reuse_memory).arena_bytes
    assert (separate, shared) == (4 * 64 * 64 * 4, 64 * 64 * 4)  # point by point, in place
    assert apply(TransientReuse(), graph).sites == []
