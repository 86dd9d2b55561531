"""Depthwise convolutions as kernels: what the library node computes, at borders, with gaps and steps."""

from __future__ import annotations

from typing import Any

import dace
import pytest

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData
from daceopt.ir.text.render import render
from daceopt.transformations.hardware.index_set_splitting import IndexSetSplitting
from daceopt.transformations.local.map_fusion import MapFusion
from daceopt.transformations.lower.convolution_opening import ConvolutionOpening
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import apply, compiled, finish, misses, size_symbol, start, values

Window = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
WINDOWS: dict[str, Window] = {  # kernel, strides, pads, dilations
    "same": ((3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "steps": ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    "valid": ((2, 3), (1, 2), (0, 0, 0, 0), (1, 1)),
    "uneven": ((2, 3), (1, 1), (0, 2, 1, 3), (2, 1)),
    "point": ((1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    "only padding at the border": ((3, 3), (1, 1), (4, 4, 4, 4), (2, 2)),
    "large": ((5, 5), (1, 1), (2, 2, 2, 2), (1, 1)),
    "row": ((3,), (1,), (2, 0), (1,)),
    "volume": ((2, 2, 2), (1, 1, 1), (1, 0, 0, 1, 0, 0), (1, 1, 1)),
}
SIZES: dict[int, list[tuple[int, ...]]] = {1: [(9,)], 2: [(7, 9), (3, 4)], 3: [(3, 4, 5)]}
CASES = [(name, size) for name, window in WINDOWS.items() for size in SIZES[len(window[0])]]


def convolution(
    window: Window,
    size: tuple[Any, ...],
    channels: int = 3,
    outputs: int | None = None,
    bias: bool = True,
    dtype: Any = dace.float32,
    rows: Any = 2,
    **other: Any,
) -> Graph:
    k, s, p, d = window
    rank, outputs = len(k), outputs or channels
    group = other.pop("group", channels)
    space = [(n + p[a] + p[rank + a] - (k[a] - 1) * d[a] - 1) // s[a] + 1 for a, n in enumerate(size)]
    shapes = (rows, channels, *size), (outputs, channels // group, *k), *[(outputs,)] * bias
    graph, b, names = start(*shapes, dtype=dtype)
    reads = dict(zip(("X", "W", "B"), names))
    y = graph.add_array("y", (rows, outputs, *space), dtype)
    b.library(Convolution, reads, {"Y": y}, group=group, **attributes(window), **other)
    return finish(graph, y)


def gradient(window: Window, size: tuple[int, ...]) -> Graph:
    k, s, p, d = window
    rank = len(k)
    space = [(n + p[a] + p[rank + a] - (k[a] - 1) * d[a] - 1) // s[a] + 1 for a, n in enumerate(size)]
    graph, b, (dy, w) = start((2, 3, *space), (3, 1, *k))
    dx = graph.add_array("dx", (2, 3, *size), dace.float32)
    b.library(ConvolutionBackwardData, {"dY": dy, "W": w}, {"dX": dx}, group=3, **attributes(window))
    return finish(graph, dx)


def attributes(window: Window) -> dict[str, list[int]]:
    return dict(zip(("strides", "pads", "dilations"), map(list, window[1:])))


@pytest.mark.parametrize(("name", "size"), CASES)
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions(name: str, size: tuple[int, ...], bias: bool) -> None:
    graph = convolution(WINDOWS[name], size, bias=bias)
    assert len(apply(ConvolutionOpening(), graph).sites) == 1 and len(graph.kernels()) == len(graph.nodes()) == 1


@pytest.mark.parametrize(("name", "size"), [c for c in CASES if set(WINDOWS[c[0]][1]) == {1}])
def test_gradients_for_the_input(name: str, size: tuple[int, ...]) -> None:
    graph = gradient(WINDOWS[name], size)
    assert len(apply(ConvolutionOpening(), graph).sites) == 1 and len(graph.kernels()) == len(graph.nodes()) == 1


def test_open_batches() -> None:
    graph = convolution(WINDOWS["same"], (7, 9), rows=size_symbol())
    assert len(apply(ConvolutionOpening(), graph).sites) == 1
    apply(IndexSetSplitting(), graph)


def test_what_is_written() -> None:
    graph = convolution(((2,), (1,), (1, 0), (1,)), (5,), bias=False)
    apply(ConvolutionOpening(), graph)
    assert (
        render(graph)
        == """graph test(x_1: float32[2, 3, 5], x_2: float32[3, 1, 2]) -> y_3
  y_3: float32[2, 3, 5] = kernel k
    s0(i0 < 2, i1 < 3, i2 < 5):
      w0 <- x_2[i1, 0, 0]
      x <- x_1[:, :, :]
      w1 <- x_2[i1, 0, 1]
      x1 <- x_1[i0, i1, i2]
      y: float32 = w0*select(ge(i2 - 1, 0), load(x, i0, i1, minimum(maximum(i2 - 1, 0), 4)), 0) + w1*x1
      y -> y_3[i0, i1, i2]
"""
    )


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (lambda: convolution(WINDOWS["same"], (7, 9), channels=4, group=2), "expected one group each"),
        (lambda: convolution(WINDOWS["same"], (7, 9), outputs=6), "expected one group each"),
        (lambda: convolution(WINDOWS["same"], (7, 9), dtype=dace.float16), "expected float32 or float64"),
        (lambda: convolution(((6, 6), (1, 1), (3,) * 4, (1, 1)), (7, 9)), "a window of 6 x 6 elements; at most 32"),
        (lambda: convolution(WINDOWS["same"], (7, 9), activation="relu"), "an epilogue"),
        (lambda: convolution(WINDOWS["same"], (7, 9), rows=0), "an empty image"),
        (lambda: gradient(WINDOWS["steps"], (7, 9)), "windows that are not side by side"),
    ],
)
def test_what_stays_a_library_node(graph: Any, reason: str) -> None:
    made = graph()
    outcome = ConvolutionOpening().run(made)
    assert not outcome.sites and reason in misses(outcome)


@pytest.mark.parametrize(
    ("window", "size", "opens"),
    [
        (((4,), (1,), (3, 0), (1,)), (9,), True),
        (((1, 3), (1, 1), (0, 1, 0, 1), (1, 1)), (5, 9), True),
        (((5,), (1,), (4, 0), (1,)), (9,), False),
        (((3,), (1,), (2, 2), (2,)), (9,), False),
        (((3,), (2,), (1, 1), (1,)), (9,), False),
        (((2, 2), (1, 1), (0,) * 4, (1, 1)), (5, 9), False),
    ],
)
def test_short_windows_along_one_axis(window: Window, size: tuple[int, ...], opens: bool) -> None:
    outcome = ConvolutionOpening(taps=4).run(convolution(window, size))
    assert bool(outcome.sites) is opens
    assert opens or "expected 4 side by side" in misses(outcome)


def fused(sums: int) -> Graph:
    """A convolution of 16 channels, and its sum (and its largest element) for each channel."""
    graph = convolution(WINDOWS["same"], (7, 9), channels=16)

    b = Builder(graph, "of_channels")
    (y,) = graph.outputs
    for kind in ("sum", "max")[:sums]:
        graph.add_output(b.reduce(kind, None, y, axes=[0, 2, 3]))
    apply(ConvolutionOpening(), graph)
    apply(MapFusion(), graph)
    return graph


@pytest.mark.parametrize("sums", [1, 2])
def test_sums_for_each_channel_join_and_are_cut_with_it(sums: int) -> None:
    """Rausch et al., DaCeML, section 6.3: the loops over channels come first, so that both run over the same."""
    graph = fused(sums)
    before = values(graph)
    assert len(apply(IndexSetSplitting(), graph).sites) == 1

    kernel = graph.kernels()[0].kernel
    assert len(kernel.stages) == 10 and len(kernel.locals) == 9 * sums and [str(p) for p in kernel.outer] == ["i1"]
    assert not any(None in a.index for s in kernel.stages for a in s.reads.values())
    (ours,) = compiled(f"opened_convolution_{sums}", [graph])
    for got, exact in zip(ours, before, strict=True):
        assert_within_rounding(got, exact, ulps=16)
