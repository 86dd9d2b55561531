"""Fourier transforms, windows and the matrix of mel filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder, IndexFunction
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ops.core import algorithm, values
from daceopt.ops.core.registry import FLOATS, INTEGERS, Names, Operator, gradient, lowering, supports
from daceopt.ops.families.elementwise import alias

# -------------------------------------------------------------------- transforms


class _Transform(NamedTuple):
    """What one DFT node computes; ``x`` and ``y`` are its operands' names."""

    axis: int
    length: Dim
    inverse: bool
    onesided: bool


def _transform(graph: Graph, node: Operator, inputs: Names) -> _Transform:
    """The axis is an attribute (17) or an input (20); the length is that of the axis unless given."""
    shape = graph.shape(require(inputs, 0))
    axis = (values.integers(graph, node, inputs, "axis", 2) or [-2])[0] % len(shape)
    inverse, onesided = bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    elements = values.known_elements(graph, values.at(inputs, 1))
    default = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    return _Transform(axis, elements[0] if elements else dim(default), inverse, onesided)


def _fourier(
    b: Builder, x: str, y: str, axis: int, length: Dim, inverse: bool, normalised: bool = False, mirrored: bool = False
) -> None:
    """Add the algorithm; shapes decide how much is cropped, padded, and whether operands are real."""
    before, extent, between = algorithm.extents_around(b.graph.shape(x)[:-1], axis)
    parts_x, parts_y = (b.graph.shape(n)[-1] for n in (x, y))
    sizes = [before, extent, between, parts_x, b.graph.shape(y)[axis], parts_y, length]
    algorithm.call(b, "fourier", [x], [y], [*sizes, int(inverse), int(normalised), int(mirrored)])


@lowering("DFT", types=FLOATS)
def fourier_transform(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, y = require(inputs, 0), require(outputs, 0)
    axis, length, inverse, onesided = _transform(b.graph, node, inputs)
    _fourier(b, x, y, axis, length, inverse, normalised=inverse, mirrored=inverse and onesided)


@supports("DFT")
def why_not_transform(graph: Graph, node: Operator) -> str | None:
    inputs = graph.inputs_of(node)
    shape = graph.shape(require(inputs, 0))
    if len(shape) < 2 or shape[-1] not in (1, 2):
        return f"an input of shape {shape}; expected at least two dimensions, the last of extent 1 or 2"
    if values.at(inputs, 1) is not None and values.known_elements(graph, inputs[1]) is None:
        return values.unknown(graph, node, 1)
    reason = values.unknown(graph, node, 2) if "axis" not in node.attributes else None
    if reason is not None:
        return reason
    axis = (values.integers(graph, node, inputs, "axis", 2) or [-2])[0]
    if not -len(shape) <= axis < len(shape) or axis % len(shape) == len(shape) - 1:
        return f"axis {axis} of an input of shape {shape}; the last dimension holds the components"
    return None


@gradient("DFT")
def fourier_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """The transform of dy in the other direction: a DFT matrix is symmetric, so its adjoint is its conjugate."""
    nothing: Names = [None] * len(inputs)
    x, dy = require(inputs, 0), require(grads_out, 0)
    axis, length, inverse, onesided = _transform(b.graph, node, inputs)
    dx = b.graph.add_array("dft_grad", b.graph.shape(x), b.graph.dtype(x))
    if inverse and onesided:
        return [_mirrored_gradient(b, dy, dx, axis, length), *nothing[1:]]
    _fourier(b, dy, dx, axis, length, not inverse, normalised=inverse)
    return [dx, *nothing[1:]]


def _mirrored_gradient(b: Builder, dy: str, dx: str, axis: int, length: Dim) -> str:
    """What stands for two elements of a spectrum gets both their gradients; two imaginary parts are not read."""
    shape = b.graph.shape(dx)
    spectrum = b.graph.add_array("dft_grad", shape, b.graph.dtype(dx))
    _fourier(b, dy, spectrum, axis, length, inverse=False, normalised=True)

    def fn(i: tuple[sympy.Symbol, ...], s: sympy.Expr) -> sympy.Expr:
        twice = 2 * i[axis]
        single = scalar.logical_or(scalar.eq(i[axis], 0), scalar.eq(twice, length))
        real = scalar.select(scalar.eq(i[-1], 0), 1, 0)
        weight = scalar.select(single, real, scalar.select(scalar.lt(twice, length), 2, 0))
        return s * weight

    b.map(shape, {"s": (spectrum, lambda *i: i)}, {"out": (dx, lambda *i: i)}, fn, label="dft_grad")
    return dx


@lowering("STFT", types=FLOATS)
def short_time_fourier_transform(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The DFT of frames, ``frame_step`` apart, each weighted with the window."""
    x, out, window = require(inputs, 0), require(outputs, 0), values.at(inputs, 2)
    batch, _, parts = b.graph.shape(x)
    step, length = _frames(b.graph, inputs)
    frames = b.graph.add_array("frames", (batch, b.graph.shape(out)[1], length, parts), b.graph.dtype(x))
    reads: dict[str, tuple[str, IndexFunction]] = {"x": (x, lambda n, f, k, c: (n, f * step + k, c))}
    if window is not None:
        reads["window"] = (window, lambda n, f, k, c: (k,))
    b.map(
        b.graph.shape(frames),
        reads,
        {"out": (frames, lambda *i: i)},
        lambda i, x, window=1: x * window,
        label="frames",
    )
    switches = {"axis": 2, "onesided": node.attribute("onesided", 1)}
    b.graph.add_operator("DFT", [frames], [out], switches)


def _frames(graph: Graph, inputs: Names) -> tuple[int, Dim]:
    """(step, length): the length is the window's, or the whole signal, when it is not given."""
    (step,) = values.known_elements(graph, inputs[1]) or (1,)
    elements = values.known_elements(graph, values.at(inputs, 3))
    window = values.at(inputs, 2)
    default = graph.shape(window)[0] if window is not None else graph.shape(require(inputs, 0))[1]
    return int(step), elements[0] if elements else default


@supports("STFT")
def why_not_frames(graph: Graph, node: Operator) -> str | None:
    inputs = graph.inputs_of(node)
    shape, window = graph.shape(require(inputs, 0)), values.at(inputs, 2)
    if len(shape) != 3 or shape[-1] not in (1, 2):
        return f"a signal of shape {shape}; expected [batch, length, 1 or 2]"
    if reason := values.unknown(graph, node, 1, 3):
        return reason
    step, length = _frames(graph, inputs)
    if step < 1:
        return f"frame_step {step}; expected at least 1"
    if window is not None and graph.shape(window) != (length,):
        return f"a window of shape {graph.shape(window)} for frames of length {length}; expected the same length"
    return None


# -------------------------------------------------------------------- constants of signal processing

Window = Callable[[np.ndarray], np.ndarray]  # of the angle, which goes from 0 to 2 pi

_WINDOWS: dict[str, Window] = {
    "HannWindow": lambda t: 0.5 - 0.5 * np.cos(t),
    "HammingWindow": lambda t: 25 / 46 - 21 / 46 * np.cos(t),
    "BlackmanWindow": lambda t: 0.42 - 0.5 * np.cos(t) + 0.08 * np.cos(2 * t),
}


@lowering(*_WINDOWS, types=INTEGERS)
def window(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """A constant, computed in float64; symmetric windows (``periodic=0``) end where they began."""
    (size,) = values.known_elements(b.graph, inputs[0]) or (0,)
    steps = np.float64(size if node.attribute("periodic", 1) else size - 1)
    with np.errstate(all="ignore"):  # a symmetric window of one element is 0 / 0
        _constant(b, _WINDOWS[node.op_type](2 * np.pi * np.arange(size) / steps), require(outputs, 0))


@supports(*_WINDOWS)
def why_not_window(graph: Graph, node: Operator) -> str | None:
    return values.unknown(graph, node, 0)


def _constant(b: Builder, value: np.ndarray, out: str) -> None:
    with np.errstate(all="ignore"):
        value = value.astype(types.to_numpy(b.graph.dtype(out)))
    alias(b, b.constant(value), out)


@lowering("MelWeightMatrix", types=INTEGERS)
def mel_weight_matrix(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Column m is a triangle over the bins of a spectrum; triangles are equally wide on the mel scale."""
    sizes: list[Any] = [values.scalar_value(b.graph, n) for n in inputs]
    _constant(b, mel_filters(*sizes), require(outputs, 0))


def mel_filters(bands: int, length: int, rate: int, low: float, high: float) -> np.ndarray:
    """float64[length // 2 + 1, bands]: the filters between ``low`` and ``high`` hertz, as in the standard."""
    edges = np.arange(bands + 2) * ((_mel(high) - _mel(low)) / (bands + 2)) + _mel(low)
    corners = np.floor((length + 1) * (700 * np.expm1(edges * (np.log(10) / 2595))) / rate)
    bins = np.arange(length // 2 + 1)[:, None]
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    with np.errstate(all="ignore"):
        rising = np.where(left == centre, 1.0, (bins - left) / (centre - left))
        falling = (right - bins) / (right - centre)
    inside = np.where((bins >= left) & (bins <= centre), rising, 0.0)
    return np.where((bins >= centre) & (bins < right), falling, inside)


def _mel(hertz: float) -> float:
    return 2595 * np.log10(1 + hertz / 700)


@supports("MelWeightMatrix")
def why_not_mel(graph: Graph, node: Operator) -> str | None:
    for position, name in enumerate(graph.inputs_of(node)):
        if values.scalar_value(graph, name) is None:
            reason = f"input {node.input_connectors[position]} of {node.op_type} is computed at run time"
            return values.UnknownValue.at(f"{reason}; expected a constant", position)
    return None


@algorithm.reference("fourier")
def _reference(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    before, extent, between, parts_x, extent_y, parts_y, length, inverse, normalised, mirrored = parameters
    y = outputs[0].reshape(before, extent_y, between, parts_y)
    y[...] = 0
    if length <= 0:
        return
    pairs = inputs[0].reshape(before, extent, between, parts_x).astype(np.float64)
    x = pairs[..., 0] + (1j * pairs[..., 1] if parts_x == 2 else 0)
    full: np.ndarray
    if mirrored:
        full = np.fft.irfft(x, length, axis=1) * length
    else:
        full = np.fft.ifft(x, length, axis=1) * length if inverse else np.fft.fft(x, length, axis=1)
    count = min(extent_y, length)
    full = full[:, :count] / (length if normalised else 1)
    y[:, :count, :, 0] = full.real
    if parts_y == 2:
        y[:, :count, :, 1] = full.imag
