"""Graph: def-use, views, names, edits, copies."""

from __future__ import annotations

import dace
import numpy as np
import pytest

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder, broadcast_shapes, reshaped_strides
from daceopt.ir.scalar.dims import row_major, span

HOSTILE = ['"; system("x"); //', "Ünïcødé ✓", "class", "", "x" * 10_000, "a\nb", "__init__", "N", "1abc"]


def _chain() -> tuple[Graph, str, str, str]:
    graph = Graph("chain")
    x = graph.add_input("x", (2, 3), dace.float32)
    b = Builder(graph)
    y = b.elementwise(lambda v: v + 1, x)
    z = b.elementwise(lambda v: v * 2, y)
    graph.add_output(z)
    return graph, x, y, z


def test_def_use_follows_the_edges() -> None:
    graph, x, y, z = _chain()
    first, second = graph.kernels()
    assert graph.producer(x) is None and graph.producer(y) is first and graph.producer(z) is second
    assert graph.consumers(x) == [first] and graph.consumers(y) == [second] and graph.consumers(z) == []
    assert graph.inputs_of(second) == [y] and graph.outputs_of(second) == [z]


def test_an_array_is_written_once() -> None:
    graph, x, y, _ = _chain()
    with pytest.raises(ValueError, match="written twice"):
        Builder(graph).elementwise(lambda v: v, x, out=y)


@pytest.mark.parametrize("hint", HOSTILE)
def test_names_of_models_become_plain_identifiers(hint: str) -> None:
    graph = Graph(hint)
    name = graph.add_input(hint, (2,), dace.float32)
    assert name.isidentifier() and name.isascii() and len(name) <= 40 and name.islower()
    graph.validate()


def test_views_alias_their_root() -> None:
    graph, x, *_ = _chain()
    b = Builder(graph)
    t = b.transpose(x, (1, 0))
    s = b.slice(t, [1], [3], axes=[0])
    assert graph.shape(s) == (2, 2) and graph.strides(s) == (1, 3)
    assert graph.root(s) == (x, 1) and graph.aliases(x) == [x, t, s]
    assert graph.producer(s) is None and graph.all_consumers(x) == graph.consumers(x)


def test_remove_and_prune_drop_what_is_dead() -> None:
    graph, x, y, z = _chain()
    dead = Builder(graph).elementwise(lambda v: v - 1, y)
    assert graph.prune() == 2 and dead not in graph.arrays()
    graph.remove(graph.producer(z))
    graph.outputs.clear()
    graph.prune()
    assert graph.nodes() == [] and graph.arrays() == [x]


def test_copy_is_independent() -> None:
    graph, _, _, z = _chain()
    twin = graph.copy()
    twin.remove(twin.producer(z))
    assert len(graph.nodes()) == 2 and len(twin.nodes()) == 1
    graph.validate()


def test_replace_uses_renames_inside_scopes() -> None:
    graph, x, y, z = _chain()
    graph.replace_uses(y, x)
    graph.prune()
    assert graph.inputs_of(graph.producer(z)) == [x]
    graph.validate()


def test_outputs_cannot_be_views() -> None:
    graph, x, *_ = _chain()
    view = Builder(graph).transpose(x, (1, 0))
    with pytest.raises(ValueError, match="copy it first"):
        graph.add_output(view)


def test_a_small_constant_becomes_a_literal_unless_sympy_would_simplify_with_it() -> None:
    graph, x, *_ = _chain()
    b = Builder(graph)
    three, zero = b.constant(np.float32(3)), b.constant(np.float32(0))
    assert graph.inputs_of(graph.producer(b.elementwise(lambda v, c: v * c, x, three))) == [x]
    assert len(graph.inputs_of(graph.producer(b.elementwise(lambda v, c: v * c, x, zero)))) == 2


@pytest.mark.parametrize(
    ("shape", "strides", "new", "expected"),
    [
        ((2, 3, 4), None, (6, 4), (4, 1)),
        ((2, 3, 4), None, (2, 12), (12, 1)),
        ((24,), None, (2, 3, 4), (12, 4, 1)),
        ((3, 2), (1, 3), (6,), None),
        ((4, 6), (1, 4), (2, 2, 6), (2, 1, 4)),
        ((2, 1, 3), None, (2, 3, 1), (3, 1, 1)),
        ((0, 3), None, (3, 0), (1, 1)),
        ((2, 3), (0, 1), (6,), None),
    ],
)
def test_reshape_is_a_view_when_strides_allow(
    shape: tuple, strides: tuple | None, new: tuple, expected: object
) -> None:
    assert reshaped_strides(shape, strides or row_major(shape), new) == expected


def test_what_holds_nothing_has_no_negative_span() -> None:
    """Whatever the open extents beside the 0 are: an array's place in the arena depends on it."""
    s = dace.symbolic.symbol("s0", dace.int64)
    shape = (0, s, 2, 33, 0, s)
    assert span(shape, row_major(shape)) == 1 and span((0, s), (3 * s, 3)) == 1


def test_reshape_keeps_a_symbolic_batch() -> None:
    s = dace.symbolic.symbol("s0", dace.int64)
    assert reshaped_strides((s, 128, 256), row_major((s, 128, 256)), (s * 128, 256)) == (256, 1)
    assert reshaped_strides((s * 128, 256), (256, 1), (s, 128, 4, 64)) == (32768, 256, 64, 1)


def test_broadcasting_names_the_axis_that_disagrees() -> None:
    assert broadcast_shapes((3, 1), (2,)) == (3, 2)
    with pytest.raises(ValueError, match="axis -1"):
        broadcast_shapes((3,), (2,))


def test_strides_of_empty_arrays_do_not_matter() -> None:
    graph = Graph("g")
    source = graph.add_input("x", (4, 2), dace.float32)
    empty = graph.add_view(source, "empty", (3, 0, 2), (1, 2, 4))
    assert graph.is_contiguous(empty)
    assert not graph.is_contiguous(graph.add_view(source, "full", (2, 4), (1, 2)))


def test_what_is_no_array_is_neither_read_nor_written() -> None:
    graph = Graph("test")
    x = graph.add_input("x", (2,), dace.float32)
    with pytest.raises(ValueError, match="there is no array nowhere to write"):
        graph.add_operator("Relu", [x], ["nowhere"])
    with pytest.raises(ValueError, match="there is no array nowhere for relu to read"):
        graph.add_operator("Relu", ["nowhere"], [graph.add_array("y", (2,), dace.float32)])
    assert not graph.consumers(x)
