"""Col2Im, DeformConv and regions of interest; compiled where they are algorithms of our own."""

from __future__ import annotations

from itertools import product
from typing import Any

import dace
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from daceopt import ops
from daceopt.ir.interpreter.interpret import interpret
from tests.autodiff.checking import check as check_gradient
from tests.libs.harness import RunFailed, compile_graph
from tests.numerics import assert_within_rounding
from tests.ops.single import lowered, reference, single


def data(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng((seed, *shape)).normal(size=shape)).astype(dtype)


# -------------------------------------------------------------------- Col2Im

# image, block, strides, dilations, pads
COLUMNS = [
    ([7], [3], [2], [1], [1, 1]),
    ([5, 6], [2, 3], [1, 2], [2, 1], [0, 1, 1, 0]),
    ([4, 5, 4], [2, 2, 3], [1, 2, 1], [1, 1, 1], [1, 0, 1, 1, 1, 0]),
    ([2, 3, 2, 2], [2, 1, 2, 1], [1, 2, 1, 1], [1, 1, 1, 1], [0] * 8),
]


def unfolded(x: torch.Tensor, block: Any, strides: Any, dilations: Any, pads: Any) -> torch.Tensor:
    """The transpose of Col2Im, from [N, C, image...] to [N, C * prod(block), L]."""
    rank = len(block)
    x = F.pad(x, [p for k in reversed(range(rank)) for p in (pads[k], pads[rank + k])])
    counts = [(n - (b - 1) * d - 1) // s + 1 for n, b, s, d in zip(x.shape[2:], block, strides, dilations)]
    taps = [
        x[(..., *(slice(o * d, o * d + (n - 1) * s + 1, s) for o, n, s, d in zip(at, counts, strides, dilations)))]
        for at in product(*(range(b) for b in block))
    ]
    return torch.stack(taps, 2).reshape(x.shape[0], x.shape[1] * len(taps), -1)


def folded(columns: torch.Tensor, image: Any, *window: Any) -> torch.Tensor:
    zeros = torch.zeros(columns.shape[0], columns.shape[1] // int(np.prod(window[0])), *image, dtype=columns.dtype)
    (result,) = torch.autograd.grad(
        unfolded(zeros.requires_grad_(), *window), zeros, columns, create_graph=True, materialize_grads=True
    )
    return result


@pytest.mark.parametrize("image, block, strides, dilations, pads", COLUMNS)
def test_columns_to_image(image: Any, block: Any, strides: Any, dilations: Any, pads: Any) -> None:
    window = (block, strides, dilations, pads)
    count = unfolded(torch.zeros(1, 1, *image), *window).shape[-1]
    x = data(2, 3 * int(np.prod(block)), count)
    options = {"strides": strides, "dilations": dilations, "pads": pads}
    expected = folded(torch.from_numpy(x).double(), image, *window)
    graph, feeds = single(
        "Col2Im",
        [x, np.asarray(image), np.asarray(block)],
        constants=[1, 2],
        like=[expected.float().numpy()],
        **options,
    )
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)

    def build(b: Any, columns: str) -> str:
        y = b.graph.add_array("y", tuple(expected.shape), dace.float64)
        b.graph.add_operator("Col2Im", [columns, *(b.constant(np.asarray(v)) for v in (image, block))], [y], options)
        return str(y)

    check_gradient(build, lambda v: folded(v, image, *window), x.shape)


def test_columns_that_do_not_fit_say_why_not() -> None:
    inputs = [data(1, 4, 3), np.asarray([3, 3]), np.asarray([2, 2])]
    graph, _ = single("Col2Im", inputs, constants=[1, 2], like=[data(1, 1, 3, 3)])
    assert "[2, 2] positions" in str(ops.why_unsupported(graph, graph.operators()[0]))


# -------------------------------------------------------------------- DeformConv

# group, offset groups, strides, pads, dilations
DEFORMED: list[tuple[int, int, list[int], list[int], list[int]]] = [
    (1, 1, [1, 1], [0] * 4, [1, 1]),
    (2, 2, [2, 1], [1, 0, 1, 1], [1, 2]),
    (1, 4, [1, 1], [1] * 4, [1, 1]),
]


def deformed(x: Any, w: Any, offset: Any, bias: Any, mask: Any, case: Any) -> torch.Tensor:
    """Samples with grid_sample, one tap at a time."""
    group, shared, strides, pads, dilations = case
    (batch, channels), taps, size = x.shape[:2], list(np.ndindex(*w.shape[2:])), offset.shape[2:]
    offset = offset.reshape(batch, shared, len(taps), 2, *size)
    mask = torch.ones_like(offset[:, :, :, 0]) if mask is None else mask.reshape(batch, shared, len(taps), *size)
    columns = []
    for t, tap in enumerate(taps):
        own = [torch.arange(size[k], dtype=x.dtype) * strides[k] - pads[k] + tap[k] * dilations[k] for k in range(2)]
        grid = torch.stack(torch.meshgrid(*own, indexing="ij"))[None, None] + offset[:, :, t]
        scaled = [(2 * grid[:, :, k] + 1) / x.shape[2 + k] - 1 for k in (1, 0)]
        sampled = F.grid_sample(
            x.reshape(batch * shared, channels // shared, *x.shape[2:]),
            torch.stack(scaled, -1).flatten(0, 1), align_corners=False,
        )  # fmt: skip
        weighted = sampled * mask[:, :, t].flatten(0, 1)[:, None]
        columns.append(weighted.reshape(batch, channels, *size))
    stacked = torch.stack(columns, 2).reshape(batch, group, -1, *size)
    y = torch.einsum("ngk...,gok->ngo...", stacked, w.reshape(group, w.shape[0] // group, -1))
    return y.reshape(batch, -1, *size) + bias.reshape(-1, 1, 1)


def deformed_inputs(case: Any, mask: bool) -> list[Any]:
    group, shared, strides, pads, dilations = case
    size = [(n + pads[k] + pads[k + 2] - 2 * dilations[k] - 1) // strides[k] + 1 for k, n in enumerate((7, 6))]
    weights = data(2, shared * 9, *size) if mask else None
    return [data(2, 4, 7, 6), data(6, 4 // group, 3, 3), 2 * data(2, shared * 18, *size), data(6), weights]


def deformed_options(case: Any) -> dict[str, Any]:
    return dict(zip(("group", "offset_group", "strides", "pads", "dilations"), case))


@pytest.mark.parametrize("case", DEFORMED)
@pytest.mark.parametrize("mask", [False, True])
def test_deformable_convolution(case: Any, mask: bool) -> None:
    inputs = deformed_inputs(case, mask)
    wide = [None if v is None else torch.from_numpy(v).double() for v in inputs]
    expected = deformed(*wide, case)
    graph, feeds = single("DeformConv", inputs, like=[expected.float().numpy()], **deformed_options(case))
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected, ulps=32)


def test_offsets_that_are_no_numbers_read_nothing() -> None:
    inputs = deformed_inputs(DEFORMED[0], False)
    inputs[2] = np.full_like(inputs[2], np.nan)
    inputs[2][:, :, 0] = np.inf
    graph, feeds = single("DeformConv", inputs, like=[np.empty((2, 6, 5, 4), np.float32)])
    found = interpret(lowered(graph), feeds)[graph.outputs[0]]
    np.testing.assert_array_equal(found, np.broadcast_to(inputs[3].reshape(6, 1, 1), found.shape))


def test_gradient_of_a_deformable_convolution() -> None:
    case = DEFORMED[1]
    shapes = [v.shape for v in deformed_inputs(case, True)]
    y = deformed(*(torch.zeros(s) for s in shapes), case)

    def build(b: Any, *names: str) -> str:
        out = b.graph.add_array("y", tuple(y.shape), dace.float64)
        b.graph.add_operator("DeformConv", list(names), [out], deformed_options(case))
        return str(out)

    check_gradient(build, lambda *v: deformed(*v, case), *shapes)


# -------------------------------------------------------------------- regions of interest

REGIONS = np.asarray([[0, 0, 7, 5], [-3, -2, 4.5, 9], [2.2, 1.1, 2, 0.9], [1, 1, 20, 30], [3, 3, 3, 3]], np.float32)
IMAGES = np.asarray([0, 1, 1, 0, 1])


def compiled(graph: Any, feeds: Any) -> np.ndarray:
    """The one algorithm of the lowered graph, run in C++."""
    graph = lowered(graph)
    (out,) = graph.outputs
    result = np.zeros(graph.shape(out), np.float32)
    known = {**feeds, **graph.constants, out: result}
    compile_graph(graph)(*(known[n] for n in graph.arrays() if not graph.is_view(n)))
    return result


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("opset", [10, 16, 22])
def test_aligned_regions(mode: str, ratio: int, opset: int) -> None:
    options = {"mode": mode, "sampling_ratio": ratio, "output_height": 3, "output_width": 2, "spatial_scale": 0.75}
    inputs = [data(2, 3, 8, 9), REGIONS, IMAGES]
    half = {} if opset < 16 else {"coordinate_transformation_mode": "half_pixel"}
    other = {"coordinate_transformation_mode": "output_half_pixel"}
    (expected,) = reference(
        "RoiAlign", [inputs[0].astype(np.float64), *inputs[1:]], 1, 16, **options, **(half or other)
    )
    graph, feeds = single("RoiAlign", inputs, opset=opset, like=[expected.astype(np.float32)], **options, **half)
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected, ulps=32)
    assert_within_rounding(compiled(graph, feeds), expected, ulps=32)


@pytest.mark.parametrize(
    "region, image", [([0, 0, 1, 1], 2), ([0, 0, 1, 1], -1), ([0, 0, np.nan, 1], 0), ([0, 0, 1e30, 1], 0)]
)
def test_bad_regions_are_reported(region: list[float], image: int) -> None:
    inputs = [data(2, 1, 4, 4), np.asarray([region], np.float32), np.asarray([image])]
    graph, feeds = single("RoiAlign", inputs, like=[data(1, 1, 1, 1)])
    with pytest.raises(RunFailed, match="RoiAlign"):
        compiled(graph, feeds)


def pooled_regions(x: np.ndarray, roi: np.ndarray, scale: float) -> np.ndarray:
    """By definition: maxima over all pixels that a bin touches."""
    left, top, right, bottom = (int(v * scale + np.copysign(0.5, v)) for v in roi[1:])
    result = np.zeros((x.shape[1], 3, 2))
    for i, j in np.ndindex(3, 2):
        spans = []
        for first, last, place, count, limit in ((top, bottom, i, 3, x.shape[2]), (left, right, j, 2, x.shape[3])):
            size = max(last - first + 1, 1) / count
            ends = first + int(np.floor(place * size)), first + int(np.ceil((place + 1) * size))
            spans.append(slice(*(min(max(e, 0), limit) for e in ends)))
        part = x[int(roi[0]), :, spans[0], spans[1]]
        result[:, i, j] = part.max(axis=(1, 2)) if part.size else 0
    return result


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.375])
def test_pooled_regions(scale: float) -> None:
    x = data(2, 3, 8, 9)
    rois = np.concatenate([IMAGES[:, None].astype(np.float32), REGIONS], axis=1)
    expected = np.stack([pooled_regions(x, roi, scale) for roi in rois])
    options = {"pooled_shape": [3, 2], "spatial_scale": scale}
    graph, feeds = single("MaxRoiPool", [x, rois], like=[expected.astype(np.float32)], **options)
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], expected)
    np.testing.assert_array_equal(compiled(graph, feeds), expected)


@pytest.mark.parametrize("image", [2, -1, np.nan])
def test_regions_of_no_image_are_reported(image: float) -> None:
    inputs = [data(2, 1, 4, 4), np.asarray([[image, 0, 0, 1, 1]], np.float32)]
    graph, feeds = single("MaxRoiPool", inputs, like=[data(1, 1, 1, 1)], pooled_shape=[1, 1])
    with pytest.raises(RunFailed, match="MaxRoiPool"):
        compiled(graph, feeds)
