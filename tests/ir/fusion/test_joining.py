"""One kernel of the statements of several: what passes, what is written all the same, and what is refused."""

from __future__ import annotations

import dace
import pytest

from daceopt.errors import Unsupported
from daceopt.ir.fusion.joining import join
from daceopt.ir.kernel.kernel import Access
from daceopt.ir.scalar import types
from daceopt.transformations.local.map_fusion import MapFusion
from tests.ir.listings import in_one, replaced
from tests.transformations.lowered import assert_same, finish, start


def test_what_passes_is_a_local_in_the_order_of_memory() -> None:
    graph, b, (x,) = start((2, 5, 6))
    y = graph.add_array("y", (2, 5, 6), dace.float32, (30, 1, 5))
    b.elementwise(lambda v: v + 1, x, out=y)
    finish(graph, b.elementwise(lambda v: v * 2, y))
    kernel = in_one(graph)
    ((name, (_, shape)),) = kernel.locals.items()
    assert name == f"{y}_tile" and shape == (2, 6, 5)
    first, second = kernel.stages
    i, j, k = first.params
    assert next(iter(first.writes.values())) == Access(name, (i, k, j))
    assert set(first.params).isdisjoint(second.params)
    assert_same(graph, replaced(graph, kernel)[0])


def test_views_are_seen_through() -> None:
    graph, b, (x,) = start((4, 9))
    y = b.elementwise(lambda v: v + 1, x)
    finish(graph, b.elementwise(lambda v: v * 2, b.transpose(b.slice(y, [1], [8], [3], [1]), (1, 0))))
    kernel = in_one(graph)
    (read,) = kernel.stages[1].reads.values()
    i, j = kernel.stages[1].params
    assert read.index == (j, 3 * i + 1)
    assert_same(graph, replaced(graph, kernel)[0])


def test_what_others_read_is_written_as_well() -> None:
    graph, b, (x,) = start((4,))
    y = b.elementwise(lambda v: v + 1, x)
    finish(graph, y, b.elementwise(lambda v: v * 2, y))
    kernel = in_one(graph)
    assert [a.array for a in kernel.stages[0].writes.values()] == [y, f"{y}_tile"]
    assert_same(graph, replaced(graph, kernel)[0])


def test_what_was_joined_before_keeps_its_local() -> None:
    """The array is needed by the third kernel at first, and by nobody in the end."""
    graph, b, (x,) = start((6,))
    y = b.elementwise(lambda v: v + 1, x)
    z = b.elementwise(lambda v: v * 2, b.slice(y, [0], [5], [1], [0]))
    w = b.elementwise(lambda v: v * 3, b.slice(y, [1], [6], [1], [0]))
    finish(graph, z, w)
    one, two, three = (n.kernel for n in graph.nodes())
    kernel = join(graph, [join(graph, [one, two], lambda a: True), three], lambda a: False)
    assert [a.array for a in kernel.stages[0].writes.values()] == [f"{y}_tile"]
    assert_same(graph, replaced(graph, kernel)[0])


def test_kernels_of_several_statements_keep_their_locals() -> None:
    graph, b, (x,) = start((4, 8))
    total = b.reduce("sum", None, x, axes=(1,), keepdims=True)
    y = b.elementwise(lambda v, s: v / s, x, total)
    finish(graph, b.elementwise(lambda u, v: u - v, b.slice(y, [1], [8], [1], [1]), b.slice(y, [0], [7], [1], [1])))
    MapFusion().run(graph)
    kernel = in_one(graph)
    assert len(kernel.stages) == 3 and len(kernel.locals) == 2
    assert_same(graph, replaced(graph, kernel)[0])


def test_what_has_no_index_is_refused() -> None:
    graph, b, (x,) = start((4, 6))
    y = b.elementwise(lambda v: v + 1, x)
    finish(graph, b.elementwise(lambda v: v * 2, b.reshape(y, (8, 3))))
    with pytest.raises(Unsupported, match="has no index for each dimension"):
        in_one(graph)


def test_narrow_values_are_refused() -> None:
    """Memory rounds them."""
    graph, b, (x,) = start((4,))
    y = b.cast(x, types.NARROW[0])
    finish(graph, b.elementwise(lambda v: v * 2, b.slice(b.cast(y, dace.float32), [1], [4], [1], [0])))
    with pytest.raises(Unsupported, match="has the narrow type"):
        in_one(graph)
