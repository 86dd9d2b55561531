"""Signals and images: transforms, windows, sampling at places that data gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.properties.cases import Case, Draw, array, shapes

SIDE = st.integers(1, 5)


@st.composite
def fourier(draw: Draw) -> Case:
    shape, inverse = draw(shapes(1, 2, empty=False)), draw(st.integers(0, 1))
    length = draw(st.integers(1, 9))
    onesided = 0 if inverse else draw(st.integers(0, 1))
    x = array(draw, (*shape, length, 1 if onesided else draw(st.integers(1, 2))), "float32")
    axis = np.asarray(len(shape) - draw(st.booleans()) * (x.ndim))  # the last of the signal, from either end
    wanted = None if draw(st.booleans()) else np.asarray(draw(st.integers(1, 12)))
    inputs: list[np.ndarray | None] = [x, wanted, axis]
    return Case(
        "DFT", inputs, {"inverse": inverse, "onesided": onesided}, constants=(1, 2) if wanted is not None else (2,)
    )


@st.composite
def short_time_fourier(draw: Draw) -> Case:
    frame, step, more = draw(st.integers(1, 8)), draw(st.integers(1, 4)), draw(st.integers(0, 9))
    x = array(draw, (draw(st.integers(1, 2)), frame + more, 1), "float32")
    window = array(draw, (frame,), "float32", 0.1, 1.0) if draw(st.booleans()) else None
    inputs: list[np.ndarray | None] = [x, np.asarray(step), window, np.asarray(frame)]
    return Case("STFT", inputs, {"onesided": draw(st.integers(0, 1))}, constants=(1, 3))


@st.composite
def window(draw: Draw) -> Case:
    op = draw(st.sampled_from(["HannWindow", "HammingWindow", "BlackmanWindow"]))
    size = np.asarray(draw(st.integers(1, 40)))
    return Case(op, [size], {"periodic": draw(st.integers(0, 1))}, constants=(0,))


@st.composite
def grid_sample(draw: Draw) -> Case:
    rank = draw(st.sampled_from([2, 2, 3]))
    x = array(draw, (draw(st.integers(1, 2)), draw(st.integers(1, 2)), *(draw(SIDE) for _ in range(rank))), "float32")
    grid = array(draw, (x.shape[0], *(draw(SIDE) for _ in range(rank)), rank), "float32", -1.4, 1.4)
    mode = draw(st.sampled_from(["linear", "nearest", "cubic"] if rank == 2 else ["linear", "nearest"]))
    if mode == "nearest":
        grid += np.float32(0.0123)  # away from halves, where float32 decides
    attributes: dict[str, Any] = {"mode": mode, "align_corners": draw(st.integers(0, 1))}
    attributes["padding_mode"] = draw(st.sampled_from(["zeros", "border", "reflection"]))
    return Case("GridSample", [x, grid], attributes, opset=20)


@st.composite
def roi_align(draw: Draw) -> Case:
    x = array(draw, (draw(st.integers(1, 2)), 2, draw(st.integers(3, 7)), draw(st.integers(3, 7))), "float32")
    count = draw(st.integers(1, 3))
    corner = array(draw, (count, 2), "float32", 0.0, 3.0)
    boxes = np.concatenate([corner, corner + array(draw, (count, 2), "float32", 1.0, 6.0)], axis=1)
    batch = np.asarray([draw(st.integers(0, x.shape[0] - 1)) for _ in range(count)])
    attributes: dict[str, Any] = {"output_height": draw(SIDE), "output_width": draw(SIDE), "spatial_scale": 0.75}
    attributes |= {"sampling_ratio": draw(st.integers(0, 3)), "mode": draw(st.sampled_from(["avg", "max"]))}
    where = draw(st.sampled_from(["half_pixel", "output_half_pixel"]))
    return Case("RoiAlign", [x, boxes, batch], {**attributes, "coordinate_transformation_mode": where}, opset=16)


@st.composite
def local_response(draw: Draw) -> Case:
    x = array(draw, (draw(SIDE), draw(SIDE), *draw(shapes(2, 2, empty=False))), "float32")
    attributes = {"size": draw(st.sampled_from([1, 3, 5])), "alpha": draw(st.sampled_from([1e-4, 0.5])), "bias": 1.5}
    return Case("LRN", [x], {**attributes, "beta": draw(st.sampled_from([0.75, 0.5]))})


@st.composite
def centre_crop_pad(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 4, empty=False)), draw(st.sampled_from(["float32", "int64"])))
    axes = draw(st.lists(st.integers(0, x.ndim - 1), unique=True, min_size=1, max_size=x.ndim))
    target = np.asarray([draw(st.integers(1, 8)) for _ in axes])
    given = [a - x.ndim if draw(st.booleans()) else a for a in axes]
    return Case("CenterCropPad", [x, target], {"axes": given}, constants=(1,))


@st.composite
def affine_grid(draw: Draw) -> Case:
    rank = draw(st.integers(2, 3))
    theta = array(draw, (draw(SIDE), rank, rank + 1), "float32")
    size = np.asarray([theta.shape[0], 2, *(draw(SIDE) for _ in range(rank))])
    return Case("AffineGrid", [theta, size], {"align_corners": draw(st.integers(0, 1))}, constants=(1,))


@st.composite
def columns_to_image(draw: Draw) -> Case:
    block = [draw(st.integers(1, 3)) for _ in range(2)]
    counts, strides = [draw(st.integers(1, 4)) for _ in range(2)], [draw(st.integers(1, 2)) for _ in range(2)]
    image = [(n - 1) * s + b for n, s, b in zip(counts, strides, block)]
    x = array(draw, (draw(SIDE), 2 * block[0] * block[1], counts[0] * counts[1]), "float32")
    return Case("Col2Im", [x, np.asarray(image), np.asarray(block)], {"strides": strides}, constants=(1, 2))


@st.composite
def max_roi_pool(draw: Draw) -> Case:
    x = array(draw, (2, 2, draw(st.integers(3, 7)), draw(st.integers(3, 7))), "float32")
    low = array(draw, (3, 2), "int64", 0, 0.4).astype(np.float32)
    high = low + array(draw, (3, 2), "int64", 0, 0.8).astype(np.float32)
    boxes = np.concatenate([np.asarray([[0], [1], [0]], np.float32), low, high], axis=1)
    return Case("MaxRoiPool", [x, boxes], {"pooled_shape": [draw(st.integers(1, 3)), draw(st.integers(1, 3))]})
