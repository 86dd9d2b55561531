"""Operators that move elements: views, joins, gathers, scatters, padding, selection."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.properties.cases import COMMON, SEEDS, Case, Draw, array, axis_of, shapes, some_axes

TYPES = (*COMMON, "bool", "uint8", "float16")


def _ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


@st.composite
def transpose(draw: Draw) -> Case:
    x = array(draw, draw(shapes(0, 5)), draw(st.sampled_from(TYPES)))
    return Case("Transpose", [x], {"perm": draw(st.permutations(range(x.ndim)))} if x.ndim else {})


@st.composite
def reshape(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 4, empty=False)), draw(st.sampled_from(TYPES)))
    flat = [x.size] if draw(st.booleans()) else [int(np.prod(x.shape[:-1])), x.shape[-1]]
    if draw(st.booleans()):
        flat[draw(st.integers(0, len(flat) - 1))] = -1
    return Case("Reshape", [x, _ints(*flat)], constants=(1,))


@st.composite
def unsqueeze(draw: Draw) -> Case:
    x = array(draw, draw(shapes(0, 3)), draw(st.sampled_from(TYPES)))
    axes = draw(st.lists(st.integers(0, x.ndim), unique=True, min_size=1, max_size=2).filter(len))
    axes = [a for a in axes if a < x.ndim + len(axes)]
    return Case("Unsqueeze", [x, _ints(*axes)], constants=(1,))


@st.composite
def slice_(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 4)), draw(st.sampled_from(TYPES)))
    axes = some_axes(draw, x.ndim) or [0]
    bound = st.one_of(st.integers(-6, 6), st.sampled_from([2**31 - 1, -(2**31) + 1]))
    starts, ends = ([draw(bound) for _ in axes] for _ in range(2))
    steps = [draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in axes]
    ends = [min(e, 9) if s < 0 else e for e, s in zip(ends, steps)]  # beyond, ONNX Runtime does not follow the standard
    return Case("Slice", [x, _ints(*starts), _ints(*ends), _ints(*axes), _ints(*steps)], constants=(1, 2, 3, 4))


@st.composite
def concat(draw: Draw) -> Case:
    shape, dtype = list(draw(shapes(1, 4))), draw(st.sampled_from(COMMON))
    axis = axis_of(draw, len(shape))
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        shape[axis] = draw(st.integers(0, 4))
        parts.append(array(draw, tuple(shape), dtype))
    return Case("Concat", list(parts), {"axis": axis})


@st.composite
def split(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 4, empty=False)), draw(st.sampled_from(COMMON)))
    axis = axis_of(draw, x.ndim)
    cut = draw(st.integers(0, x.shape[axis]))
    return Case("Split", [x, _ints(cut, x.shape[axis] - cut)], {"axis": axis}, outputs=2, constants=(1,))


@st.composite
def pad(draw: Draw) -> Case:
    mode = draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    x = array(draw, draw(shapes(1, 4, empty=False)), draw(st.sampled_from(COMMON)))
    most = [n - 1 if mode == "reflect" else n if mode == "wrap" else 3 for n in x.shape]
    pads = [draw(st.integers(0, m)) for m in (*most, *most)]
    if mode == "constant" and draw(st.booleans()):
        pads[draw(st.integers(0, len(pads) - 1))] = -1 if min(x.shape) > 1 else 0
    return Case("Pad", [x, _ints(*pads)], {"mode": mode}, constants=(1,))


@st.composite
def tile(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 3)), draw(st.sampled_from(COMMON)))
    return Case("Tile", [x, _ints(*(draw(st.integers(0, 3)) for _ in x.shape))], constants=(1,))


@st.composite
def expand(draw: Draw) -> Case:
    x = array(draw, draw(shapes(0, 3)), draw(st.sampled_from(COMMON)))
    target = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))]
    target += [draw(SIDE) if n == 1 else draw(st.sampled_from([1, n])) for n in x.shape]
    return Case("Expand", [x, _ints(*target)], constants=(1,))


SIDE = st.integers(1, 5)


def _indices(draw: Draw, shape: tuple[int, ...], extent: int) -> np.ndarray:
    generator, dtype = np.random.default_rng(draw(SEEDS)), draw(st.sampled_from(["int32", "int64"]))
    return generator.integers(-extent, extent, shape).astype(dtype)


@st.composite
def gather(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 3, empty=False)), draw(st.sampled_from(TYPES)))
    axis = axis_of(draw, x.ndim)
    if draw(st.booleans()):
        return Case("Gather", [x, _indices(draw, draw(shapes(0, 2)), x.shape[axis])], {"axis": axis})
    shape = tuple(min(n, draw(SIDE)) if k != axis % x.ndim else draw(SIDE) for k, n in enumerate(x.shape))
    return Case("GatherElements", [x, _indices(draw, shape, x.shape[axis])], {"axis": axis})


@st.composite
def gather_nd(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 4, empty=False)), draw(st.sampled_from(COMMON)))
    depth = draw(st.integers(1, x.ndim))
    lead = draw(shapes(1, 2, empty=False))
    index = np.stack([_indices(draw, lead, n).astype(np.int64) for n in x.shape[:depth]], axis=-1)
    return Case("GatherND", [x, index])


@st.composite
def scatter(draw: Draw) -> Case:
    dtype, reduction = draw(st.sampled_from(COMMON)), draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    x = array(draw, draw(shapes(1, 3, empty=False)), dtype, -2.0, 2.0)
    axis = axis_of(draw, x.ndim)
    extent = x.shape[axis]
    count = draw(st.integers(1, extent))
    shape = tuple(count if k == axis % x.ndim else draw(st.integers(1, n)) for k, n in enumerate(x.shape))
    generator = np.random.default_rng(draw(SEEDS))
    order = np.argsort(generator.random((*shape[: axis % x.ndim], extent, *shape[axis % x.ndim + 1 :])), axis=axis)
    index = np.take(order, range(count), axis=axis).astype(np.int64)  # without duplicates: their order is not defined
    index -= extent * generator.integers(0, 2, index.shape)
    updates = array(draw, shape, dtype, -2.0, 2.0)
    return Case("ScatterElements", [x, index, updates], {"axis": axis, "reduction": reduction})


@st.composite
def top_k(draw: Draw) -> Case:
    x = array(draw, draw(shapes(1, 3, empty=False)), draw(st.sampled_from(["float32", "float64", "int32", "int64"])))
    axis = axis_of(draw, x.ndim)
    k = draw(st.integers(1, x.shape[axis]))
    return Case("TopK", [x, _ints(k)], {"axis": axis, "largest": draw(st.integers(0, 1))}, outputs=2, constants=(1,))


@st.composite
def triangle(draw: Draw) -> Case:
    x = array(draw, draw(shapes(2, 4)), draw(st.sampled_from(["float32", "float64", "int64"])))
    return Case("Trilu", [x, np.asarray(draw(st.integers(-5, 5)))], {"upper": draw(st.integers(0, 1))}, constants=(1,))


@st.composite
def one_hot(draw: Draw) -> Case:
    depth = draw(st.integers(1, 6))
    index = _indices(draw, draw(shapes(1, 2, empty=False)), depth + 2).astype(np.int64)
    values = array(draw, (2,), "float32")
    axis = draw(st.integers(-index.ndim - 1, index.ndim))
    return Case("OneHot", [index, np.asarray(depth), values], {"axis": axis}, constants=(1,))


@st.composite
def depth_to_space(draw: Draw) -> Case:
    block, channels = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    if draw(st.booleans()):
        x = array(draw, (draw(SIDE), channels * block * block, draw(SIDE), draw(SIDE)), "float32")
        return Case("DepthToSpace", [x], {"blocksize": block, "mode": draw(st.sampled_from(["DCR", "CRD"]))})
    x = array(draw, (draw(SIDE), channels, block * draw(SIDE), block * draw(SIDE)), "float32")
    return Case("SpaceToDepth", [x], {"blocksize": block})
