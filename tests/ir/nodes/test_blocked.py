"""Images in blocks of channels: what becomes of their writers and readers, and what stays as it is."""

from __future__ import annotations

import dace
import numpy as np

import daceopt.transformations.layout.layout_search  # noqa: F401  (brings the reference of convolutions)
from daceopt.ir.control.program import Program
from daceopt.ir.fusion.relations import flows
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes import blocked
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Convolution
from daceopt.ir.scalar.symbols import param
from daceopt.ir.text.render import render
from tests.transformations.lowered import F, assert_same, finish, size_symbol, start


def convolution(b: Builder, x: str, w: str, group: int = 1) -> str:
    (n, _, *spatial), (channels, *_) = b.graph.shape(x), b.graph.shape(w)
    y = b.graph.add_array("y", (n, channels, *spatial), F)
    pads = [b.graph.shape(w)[2] // 2] * 4
    b.library(Convolution, {"X": x, "W": w}, {"Y": y}, pads=pads, group=group)
    return y


def all_blocked(graph: Graph) -> dict[str, str]:
    """Store what can be stored in blocks so; the graph stays valid and computes the same."""
    before = graph.copy()
    found = blocked.block(graph, [n for n in graph.arrays() if blocked.why_not(graph, n) is None])
    graph.prune()
    graph.validate()
    assert_same(before, graph)
    return found


def separable(batch: object = 2) -> Graph:
    """A convolution of single pixels, one of single channels, and what stands between them."""
    graph, b, (x, narrow, deep) = start((batch, 8, 5, 5), (32, 8, 1, 1), (32, 1, 3, 3))
    y = b.elementwise(lambda v: v * 2, convolution(b, x, narrow))
    return finish(graph, convolution(b, convolution(b, y, deep, 32), graph.add_input("w", (8, 32, 1, 1), F)))


def test_before_and_after() -> None:
    graph = separable()
    all_blocked(graph)
    nodes = render(graph).partition(") -> y_8\n")[2]
    assert (
        nodes
        == """\
  y_9: float32[2, 2, 5, 5, 16] = library Convolution(W=x_2, X=x_1; pads=[0, 0, 0, 0]) called "k"
  k_10: float32[2, 2, 5, 5, 16] = kernel k
    s0(i0 < 2, i1 < 2, i2 < 5, i3 < 5, i4 < 16):
      in0 <- y_9[i0, i1, i2, i3, i4]
      out0: float32 = 2*in0
      out0 -> k_10[i0, i1, i2, i3, i4]
  y_11: float32[2, 2, 5, 5, 16] = library Convolution(W=x_3, X=k_10; group=32, pads=[1, 1, 1, 1]) called "k"
  y_8: float32[2, 8, 5, 5] = library Convolution(W=w_7, X=y_11; pads=[0, 0, 0, 0]) called "k"
"""
    )


def test_open_batch() -> None:
    assert len(all_blocked(separable(size_symbol()))) == 3


def test_kernels_of_all_kinds() -> None:
    """Sums of each channel and over channels, broadcasts of both, and a graph output that stays as it is."""
    graph, b, (x, w) = start((2, 16, 5, 5), (32, 16, 3, 3))
    y = convolution(b, x, w)
    mean = b.reduce("sum", None, y, axes=[0, 2, 3], keepdims=True)
    across = b.reduce("max", None, y, axes=[1], keepdims=True)
    z = b.elementwise(lambda v, m, a: v * m - a, y, mean, across)
    found = all_blocked(finish(graph, b.elementwise(lambda u, v: u - v, convolution(b, z, _square(graph)), y)))
    assert {y, z} <= found.keys()


def _square(graph: Graph) -> str:
    return graph.add_input("w", (32, 32, 1, 1), F)


def test_readers_that_cannot_follow_read_a_copy() -> None:
    """A view, and a slice of channels that a kernel reads."""
    graph, b, (x, w) = start((2, 16, 4, 4), (32, 16, 1, 1))
    y = convolution(b, x, w)
    z = convolution(b, y, _square(graph))
    rows = b.elementwise(lambda v: v + 1, b.reshape(y, (2, 32, 16)))
    assert all_blocked(finish(graph, z, rows)).keys() == {y}
    copies = [k for k in graph.kernels() if k.label == "out_of_blocks"]
    assert len(copies) == 1 and graph.shape(graph.outputs_of(copies[0])[0]) == (2, 32, 4, 4)


def test_kernels_beside_are_split_too() -> None:
    """Only equal loops can be fused."""
    graph, b, (x, w) = start((2, 16, 4, 4), (32, 16, 1, 1))
    y = convolution(b, x, w)
    z = b.elementwise(lambda v: v * 2, y)
    t = b.elementwise(lambda v: v + 1, z)
    finish(graph, convolution(b, t, _square(graph)))
    before = graph.copy()
    blocked.block(graph, [y])
    assert_same(before, graph)
    loops = [k.kernel.stages[0].params for k in graph.kernels()]
    assert loops == [tuple(map(param, range(5)))] * 2
    assert graph.shape(z) == graph.shape(t) == (2, 32, 4, 4)


def test_why_not() -> None:
    graph, b, (x, w, narrow) = start((2, 16, 4, 4), (32, 16, 1, 1), (24, 16, 1, 1))
    y = convolution(b, x, w)
    whole = graph.add_array("whole", (2, 32, 4, 4), F)
    part = graph.add_part(whole, "part", [0, 0, 0, 0], [2, 16, 4, 4])
    b.elementwise(lambda v: v, x, out=part)
    b.elementwise(lambda v: v, x, out=graph.add_part(whole, "part", [0, 16, 0, 0], [2, 16, 4, 4]))
    double = b.cast(y, dace.float64)
    joined = graph.add_array("joined", (2, 32, 4, 4), F)
    graph.add_operator("Relu", [y], [joined])
    reasons = {
        x: "the layout that its user expects",
        convolution(b, x, narrow): "24 channels; expected a multiple of 16",
        b.transpose(y, [0, 2, 3, 1]): "channels; expected a multiple of 16",
        b.transpose(y, [0, 1, 3, 2]): "is a view",
        whole: "consists of parts",
        part: "is a view or a part",
        double: "no image of float32",
        joined: "what writes joined",
        w: "the layout that its user expects",
    }
    for name, reason in reasons.items():
        assert reason in str(blocked.why_not(graph, name)), name
    assert blocked.why_not(graph, y) is None


def test_values() -> None:
    image = np.arange(2 * 32 * 3 * 5).reshape(2, 32, 3, 5)
    stored = blocked.pack(image)
    assert stored.shape == blocked.blocked_shape(image.shape) == (2, 2, 3, 5, 16)
    assert stored[1, 1, 2, 4, 3] == image[1, 19, 2, 4]
    assert (blocked.unpack(stored) == image).all() and blocked.image_shape(stored.shape) == image.shape


def test_what_is_saved_is_read_as_it_stands() -> None:
    """By the backward graph: a kernel and a convolution in blocks, a view through a copy."""
    forward, b, (x, w) = start((2, 16, 4, 4), (32, 16, 1, 1))
    y = convolution(b, x, w)
    finish(forward, b.elementwise(lambda v: v + 1, y))
    backward = Graph("backward")
    saved = backward.add_input("saved", (2, 32, 4, 4), F)
    c = Builder(backward, "k")
    flat = c.elementwise(lambda v: v * 3, c.reshape(saved, (2, 512)))
    finish(backward, c.elementwise(lambda v: v + 1, saved), convolution(c, saved, _square(backward)), flat)
    program = Program(forward, backward=backward)
    forward.saved, backward.saved = [y], [saved]

    blocked.block(forward, [y])
    program.align()
    backward.validate()
    (name,) = backward.saved
    assert backward.shape(name) == forward.shape(forward.saved[0]) == (2, 2, 4, 4, 16)
    assert backward.inputs[0] == name and not backward.has(saved)
    assert [k.label for k in backward.kernels()].count("out_of_blocks") == 1


def test_how_elements_flow() -> None:
    graph = separable()
    all_blocked(graph)
    assert all(flows(graph, node) for node in graph.nodes())
