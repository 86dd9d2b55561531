"""Stages of one kernel that merge their loops differently: each has extents of its own."""

from __future__ import annotations

import dace
import numpy as np
import pytest

from daceopt import libs, recipes
from daceopt.codegen.bundle import Bundle
from daceopt.ir.control.imported import Gradients, Imported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.passes.verification_built import Built, check
from daceopt.programs import derivation

F = dace.float32


def verify(graph: Graph, backward: bool) -> None:
    """Compile with the recipe ``cpu`` and compare every result, and what lies around it, with float64."""
    everything = Gradients(tuple(range(len(graph.inputs))), tuple(range(len(graph.outputs))))
    found = derivation.derive(Imported(graph, everything if backward else None), recipes.get("cpu")).directions()
    bundle = Bundle()
    check(*(Built(g, r, bundle.add(g, r, libs.implement)) for g, r in found))


def padded(b: Builder, x: str, begin: int, end: int) -> str:
    """Zeros before and after the last axis."""
    shape = b.graph.shape(x)
    out = b.graph.add_array("padded", (*shape[:-1], int(shape[-1]) + begin + end), b.graph.dtype(x))
    zeros = [0] * (len(shape) - 1)
    b.graph.add_operator("Pad", [x, b.constant(np.asarray([*zeros, begin, *zeros, end], np.int64))], [out])
    return out


@pytest.mark.parametrize("backward", [False, True])
def test_a_mean_over_rows_of_a_padded_softmax(backward: bool) -> None:
    """The pad keeps two loops that softmax merges; the mean adds up what the threads have."""
    graph = Graph("rows")
    x = graph.add_input("x", (8, 4, 6), F)
    b = Builder(graph)
    flat = b.reshape(padded(b, x, 1, 1), (8, 32))
    soft = graph.add_array("soft", (8, 32), F)
    graph.add_operator("Softmax", [flat], [soft], {"axis": 1})
    graph.add_output(b.reduce("sum", lambda v: v / 8, soft, axes=(0,)))
    verify(graph, backward)


def test_gradients_of_a_sum_read_in_two_shapes() -> None:
    """One reader walks rows of thirty, the other ones of five, backwards."""
    graph = Graph("shapes")
    left, right = graph.add_input("b", (6, 5), F), graph.add_input("a", (3, 6, 5), F)
    b = Builder(graph)
    total = b.elementwise(lambda v, w: v + w, left, right)
    normal = graph.add_array("normal", (3, 30), F)
    scale = b.constant(np.ones(30, np.float32))
    graph.add_operator("LayerNormalization", [b.reshape(total, (3, 30)), scale], [normal], {"axis": 1})
    graph.add_output(normal)
    turned = b.slice(padded(b, total, 1, 2), [5], [-1], [-1], [1])
    graph.add_output(b.copy(turned))
    verify(graph, backward=True)


def test_groups_without_loops_may_name_their_values_alike() -> None:
    """Two sigmoids of sums, each with an exponential of its own."""
    graph = Graph("scalars")
    x = graph.add_input("x", (5, 40), F)
    b = Builder(graph)
    first = b.reduce("sum", lambda v: v / 40, x, axes=(1,), keepdims=True)
    gate = b.elementwise(lambda v: scalar.sigmoid(v), first)
    second = b.reduce("sum", lambda v, g: v * g / 40, x, gate, axes=(1,), keepdims=True)
    graph.add_output(b.elementwise(lambda v, g: scalar.sigmoid(v) * g, second, gate))
    verify(graph, backward=False)
