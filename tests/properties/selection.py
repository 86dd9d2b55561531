"""Operators whose result's extents depend on data, scatters into slices, generators, losses."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.properties.cases import COMMON, SEEDS, Case, Draw, array, axis_of, shapes

SIDE = st.integers(1, 5)


@st.composite
def scatter_nd(draw: Draw) -> Case:
    """Different places, each an element or a slice, counted from either end."""
    reduction = draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    x = array(draw, draw(shapes(1, 4, empty=False)), draw(st.sampled_from(COMMON)), -2.0, 2.0)
    depth = draw(st.integers(1, x.ndim))
    places = int(np.prod(x.shape[:depth]))
    count = draw(st.integers(0, places))
    generator = np.random.default_rng(draw(SEEDS))
    flat = generator.permutation(places)[:count]
    index = np.stack(np.unravel_index(flat, x.shape[:depth]), axis=-1).astype(np.int64)
    index -= np.asarray(x.shape[:depth]) * generator.integers(0, 2, index.shape)
    updates = array(draw, (count, *x.shape[depth:]), str(x.dtype), -2.0, 2.0)
    return Case("ScatterND", [x, index, updates], {"reduction": reduction})


@st.composite
def compress(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 3, empty=False)), draw(st.sampled_from([*COMMON, "bool", "uint8"])))
    axis = None if draw(st.booleans()) else axis_of(draw, x.ndim)
    extent = x.size if axis is None else x.shape[axis]
    keep = array(draw, (draw(st.integers(1, extent)),), "bool")
    shape = np.compress(keep, x, axis).shape
    return Case("Compress", [x, keep], {} if axis is None else {"axis": axis}, declared=(shape,))


@st.composite
def non_zero(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 4)), draw(st.sampled_from([*COMMON, "bool", "uint8"])), -0.7, 0.7)
    return Case("NonZero", [x], declared=((x.ndim, int(np.count_nonzero(x))),))


@st.composite
def unique(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 3, empty=False)), draw(st.sampled_from(["float32", "int64", "int8"])), -0.5, 0.5)
    x = np.asarray(np.round(x), x.dtype)
    axis = None if draw(st.booleans()) else axis_of(draw, x.ndim)
    _, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    shape = counts.shape if axis is None else np.unique(x, axis=axis).shape
    attributes: dict[str, Any] = {"sorted": draw(st.integers(0, 1)), **({} if axis is None else {"axis": axis})}
    return Case("Unique", [x], attributes, 4, declared=(shape, first.shape, inverse.reshape(-1).shape, counts.shape))


@st.composite
def determinant(draw: Draw) -> Case:
    n = draw(st.integers(1, 6))
    x = array(draw, (*draw(shapes(0, 2)), n, n), draw(st.sampled_from(["float32", "float64"])))
    return Case("Det", [x + np.eye(n, dtype=x.dtype) * 3])


@st.composite
def generated(draw: Draw) -> Case:
    op = draw(st.sampled_from(["Range", "EyeLike", "ConstantOfShape"]))
    dtype = draw(st.sampled_from(COMMON))
    if op == "EyeLike":
        return Case(op, [array(draw, draw(shapes(2, 2)), dtype)], {"k": draw(st.integers(-4, 4))})
    if op == "ConstantOfShape":
        return Case(op, [np.asarray(draw(shapes(0, 4)), np.int64)], constants=(0,))
    step = draw(st.sampled_from([-3, -1, 1, 2]))
    bounds = [np.asarray(v, dtype) for v in (draw(st.integers(-5, 5)), draw(st.integers(-9, 9)), step)]
    return Case(op, list(bounds), constants=(0, 1, 2))


@st.composite
def loss(draw: Draw) -> Case:
    batch, classes, more = draw(SIDE), draw(SIDE), draw(shapes(0, 2, empty=False))
    op = draw(st.sampled_from(["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"]))
    scores = array(draw, (batch, classes, *more), "float32")
    labels = array(draw, (batch, *more), "int64", 0, (classes - 1) / 5)
    weights = array(draw, (classes,), "float32", 0.2, 2.0)
    attributes: dict[str, Any] = {"reduction": draw(st.sampled_from(["none", "mean", "sum"]))}
    if draw(st.booleans()) and (labels != labels.reshape(-1)[0]).any():
        attributes["ignore_index"] = int(labels.reshape(-1)[0])
    return Case(op, [scores, labels, weights] if draw(st.booleans()) else [scores, labels], attributes)


@st.composite
def root_mean_square(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 4, empty=False)), "float32")
    axis = axis_of(draw, x.ndim)
    scale = array(draw, x.shape[axis % x.ndim :], "float32", 0.5, 2.0)
    return Case("RMSNormalization", [x, scale], {"axis": axis, "epsilon": 1e-3}, opset=23)


@st.composite
def variance_normalization(draw: Draw) -> Case:
    """Of values that differ: ONNX Runtime takes the root of a difference, which rounds to less than zero for others."""
    shape = draw(shapes(2, 4, empty=False).filter(lambda s: max(s) > 1))
    x = np.asarray(np.random.default_rng(draw(SEEDS)).standard_normal(shape), np.float32)
    axes = [k for k, n in enumerate(x.shape) if n > 1]
    return Case("MeanVarianceNormalization", [x], {"axes": axes[: draw(st.integers(1, len(axes)))]})


@st.composite
def max_unpool(draw: Draw) -> Case:
    """Into the windows from which a pool took its values."""
    x = array(draw, (1, draw(SIDE), draw(SIDE), draw(SIDE)), "float32")
    kernel = [draw(st.integers(1, 3)) for _ in range(2)]
    grid = [(n, k * n) for n, k in zip(x.shape[2:], kernel)]
    generator = np.random.default_rng(draw(SEEDS))
    place = [np.arange(n) * k for (n, _), k in zip(grid, kernel)]
    index = (place[0][:, None] + generator.integers(0, kernel[0], x.shape)) * grid[1][1]
    index = index + place[1] + generator.integers(0, kernel[1], x.shape)
    index = index + (np.arange(x.shape[1]) * grid[0][1] * grid[1][1])[:, None, None]
    return Case("MaxUnpool", [x, index.astype(np.int64)], {"kernel_shape": kernel, "strides": kernel})
