"""oneDNN's convolutions over images in blocks of channels, beside float64."""

from __future__ import annotations

from itertools import combinations, product

import dace
import pytest
import torch

from daceopt import libs
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.blocked import BLOCK
from daceopt.ir.nodes.library import LAYOUTS, Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights
from tests.libs.test_convolution import LIBRARIES, Case, announced, execute, make, reference
from tests.numerics import assert_within_rounding

pytestmark = pytest.mark.skipif("onednn" not in LIBRARIES, reason="oneDNN's wheels are not installed")

CASES = {
    "1d": Case((2, 32, 11), (16, 32, 3), (2,), (1, 1)),
    "2d": Case((2, 16, 9, 8), (48, 16, 3, 3), pads=(1, 1, 1, 1)),
    "3d": Case((2, 16, 5, 6, 7), (32, 16, 2, 3, 3), (1, 2, 1), (0, 1, 1, 1, 1, 0)),
    "1x1": Case((3, 64, 8, 8), (32, 64, 1, 1)),
    "strided 1x1": Case((2, 32, 9, 9), (16, 32, 1, 1), (2, 2)),
    "asymmetric": Case((2, 16, 9, 7), (16, 16, 3, 2), (2, 1), (0, 1, 2, 0), (1, 2)),
    "grouped": Case((2, 32, 7, 7), (64, 16, 3, 3), pads=(1, 1, 1, 1), group=2),
    "narrow groups": Case((2, 32, 7, 7), (32, 8, 3, 3), pads=(1, 1, 1, 1), group=4),
    "depthwise": Case((2, 48, 9, 9), (48, 1, 3, 3), (2, 2), (1, 1, 1, 1), group=48),
    "wide depthwise": Case((2, 48, 6, 9), (48, 1, 5, 7), (1, 2), (2, 3, 2, 3), group=48),
    "one pixel": Case((2, 16, 1, 1), (16, 16, 1, 1)),
    "other channels in": Case((2, 24, 6, 6), (32, 24, 1, 1)),
    "colors in": Case((2, 3, 12, 12), (32, 3, 3, 3), (2, 2), (1, 1, 1, 1)),
    "other channels out": Case((2, 32, 6, 6), (24, 32, 3, 3)),
}


def packed(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(1, (-1, BLOCK)).movedim(2, -1).contiguous()


def unpacked(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(-1, 2).flatten(1, 2)


@pytest.mark.share(4)
@pytest.mark.parametrize("library", ["onednn", "native_convolution"])
@pytest.mark.parametrize("name", CASES)
def test_any_operands_in_blocks(name: str, library: str) -> None:
    """All three passes in each layout, with each choice of images in blocks and others as they are."""
    case = CASES[name]
    x, w, b = make(case.x, False), make(case.w, False), make(case.w[:1], False)
    wide = [t.double().requires_grad_() for t in (x, w, b)]
    single = [t.detach().clone().requires_grad_() for t in (x, w, b)]
    expected, theirs = reference(case, *wide), reference(case, *single)
    dy = make(tuple(expected.shape), False)
    z = make(tuple(expected.shape), False) + 1
    expected.backward(dy.double())
    theirs.backward(dy)

    images = {c: (t, packed(t)) for c, t in (("X", x), ("Y", dy)) if t.shape[1] % BLOCK == 0}
    calls, results = [], []
    for layout, count in product(LAYOUTS if library == "onednn" else LAYOUTS[:1], range(1, 3)):
        for chosen in combinations(images, count):
            x_own, dy_own = (images[c][1] if c in chosen else t for c, t in (("X", x), ("Y", dy)))
            y, dx, dw = (torch.full_like(t, 7.0) for t in (dy_own, x_own, w))
            attributes = {**case.attributes, "layout": layout}
            added = Convolution(inputs=["X", "W", "B", "Z"], **attributes)
            calls += [
                (added, {"X": x_own, "W": w, "B": b, "Z": z}, {"Y": y}),
                (ConvolutionBackwardData(**attributes), {"dY": dy_own, "W": w}, {"dX": dx}),
                (ConvolutionBackwardWeights(**attributes), {"X": x_own, "dY": dy_own}, {"dW": dw}),
            ]
            results.append((y, dx, dw))
    execute(library, *calls)
    for y, dx, dw in results:
        assert_within_rounding(y if y.shape == z.shape else unpacked(y), expected + z.double(), theirs + z)
        assert_within_rounding(dx if dx.shape == x.shape else unpacked(dx), wide[0].grad, single[0].grad)
        assert_within_rounding(dw, wide[1].grad, single[1].grad)


def test_nothing_is_copied_but_weights(capfd: pytest.CaptureFixture[str]) -> None:
    """The library says each reorder that it makes."""
    case = CASES["depthwise"]
    x, w = make(case.x, False), make(case.w, False)
    y = packed(torch.zeros(reference(case, x, w, None).shape))
    with announced():
        execute("onednn", (Convolution(**case.attributes, layout="blocked"), {"X": packed(x), "W": w}, {"Y": y}))
    said = [line for line in capfd.readouterr().out.splitlines() if "exec" in line or "primitive" in line]
    reorders = [line for line in said if "reorder" in line]
    assert any("convolution" in line for line in said) and len(reorders) <= 1, reorders
    assert not any("2x48x9x9" in line for line in reorders), reorders


def test_what_is_no_block_is_refused() -> None:
    def reason(shape: tuple[int, ...], dtype: dace.typeclass, strides: tuple[int, ...] | None = None) -> str | None:
        graph = Graph("calls")
        x = graph.add_array("x", shape, dtype, strides)
        w, y = graph.add_input("w", (16, 32, 1, 1), dtype), graph.add_array("y", (2, 16, 5, 5), dtype)
        graph.add_node(node := Convolution(), {"X": x, "W": w}, {"Y": y})
        return libs.why_not("onednn", node, graph)

    b, other = BLOCK, 24 - BLOCK
    assert reason((2, 32 // b, 5, 5, b), dace.float32) is None
    assert f"expected float32, {b} channels inside" in str(reason((2, 32 // other, 5, 5, other), dace.float32))
    assert "in rows" in str(reason((2, 32 // b, 5, 5, b), dace.float32, (800, 25 * b, b, 5 * b, 1)))


@pytest.mark.parametrize("library", ["aten", "torch_device"])
def test_other_libraries_take_none(library: str) -> None:
    graph = Graph("calls")
    x, w = graph.add_input("x", (2, 2, 5, 5, 16), dace.float32), graph.add_input("w", (16, 32, 1, 1), dace.float32)
    y = graph.add_array("y", (2, 16, 5, 5), dace.float32)
    graph.add_node(node := Convolution(), {"X": x, "W": w}, {"Y": y})
    assert libs.get(library).supports(node, graph) == "operands ['X'] in blocks of channels"
