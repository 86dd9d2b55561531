"""Resize against the reference evaluator and PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import dace
import numpy as np
import pytest
from torch.nn import functional

import daceopt
from daceopt import ops
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from tests.autodiff.checking import check as check_gradient
from tests.numerics import assert_within_rounding
from tests.ops.single import check, lowered, reference, single
from tests.ops.test_gradients import op

X = np.random.default_rng(3).normal(size=(1, 2, 5, 4)).astype(np.float32)
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def resize(x: np.ndarray, scales: Any = None, sizes: Any = None, roi: Any = None, **attributes: Any) -> None:
    given = [x, roi, None if scales is None else floats(*scales), None if sizes is None else np.array(sizes, np.int64)]
    check("Resize", given, constants=[1, 2, 3], **attributes)


@pytest.mark.parametrize("coordinates, rounding", list(itertools.product(COORDINATES, ROUNDINGS)))
def test_nearest(coordinates: str, rounding: str) -> None:
    attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    resize(X, sizes=[1, 2, 8, 3], **attributes)
    resize(X, scales=[1, 1, 2, 3], **attributes)


@pytest.mark.parametrize("mode, coordinates", list(itertools.product(("linear", "cubic"), COORDINATES)))
def test_interpolated(mode: str, coordinates: str) -> None:
    for extra in ({}, {"exclude_outside": 1}, {"antialias": 1}):
        attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, **extra}
        resize(X, sizes=[1, 2, 2, 7], **attributes)
        resize(X, scales=[1, 1, 0.6, 1.5], **attributes)
    resize(X, scales=[1, 1, 0.6, 1.5], mode="cubic", cubic_coeff_a=-0.5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop_and_resize(mode: str) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5}
    resize(X, sizes=[1, 2, 3, 6], roi=floats(0, 0, 0.2, -0.3, 1, 1, 0.9, 1.4), **attributes)
    resize(X, sizes=[1, 3], roi=floats(0.4, 0.1, 0.6, 1.3), axes=[2, 3], **attributes)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_aspect_ratio_and_axes(policy: str) -> None:
    resize(X, sizes=[7, 7], axes=[3, 2], keep_aspect_ratio_policy=policy, mode="linear")
    resize(X, sizes=[7, 2], axes=[2, 3], keep_aspect_ratio_policy=policy)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), (1, 2, 3, 2, 3)])
def test_every_rank(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for mode in ("nearest", "linear", "cubic"):
        resize(x, scales=[1.5] * len(shape), mode=mode)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_integers(dtype: str, mode: str) -> None:
    """Rounded towards zero, to the nearest with antialias, as in ONNX Runtime; saturated where a cubic overshoots."""
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    x = np.random.default_rng(1).integers(low, high + 1, size=(1, 1, 6, 5)).astype(dtype)
    inputs = [x, None, floats(1, 1, 2, 0.5)]
    for antialias in (0, 1) if mode != "nearest" else (0,):
        attributes = {"mode": mode, "antialias": antialias}
        (wanted,) = reference("Resize", [x.astype(np.float64), *inputs[1:]], 1, 19, **attributes)
        wanted = np.round(wanted) if antialias else np.trunc(wanted)
        wanted = np.clip(wanted, low, high) if x.itemsize == 1 else wanted
        graph, feeds = single("Resize", inputs, constants=[2], like=[wanted.astype(dtype)], **attributes)
        np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], wanted)


def test_empty() -> None:
    graph, feeds = single(
        "Resize", [X[:0], None, floats(1, 1, 2, 2)], constants=[2], like=[np.zeros((0, 2, 10, 8), "f")]
    )
    assert interpret(lowered(graph), feeds)[graph.outputs[0]].shape == (0, 2, 10, 8)
    graph, _ = single("Resize", [X[:, :, :0], None, None, np.array([1, 2, 3, 4])], constants=[3], like=[X[:, :, :3]])
    assert "nothing to take values from" in str(ops.why_unsupported(graph, graph.operators()[0]))


@pytest.mark.parametrize(
    "attributes, text",
    [({"mode": "lanczos"}, "mode 'lanczos'"), ({"nearest_mode": "up"}, "nearest_mode 'up'"),
     ({"coordinate_transformation_mode": "corner"}, "'corner'"), ({"antialias": 1}, "antialias with mode nearest")],
)  # fmt: skip
def test_refusals(attributes: dict[str, Any], text: str) -> None:
    graph, _ = single("Resize", [X, None, floats(1, 1, 1, 1)], constants=[2], like=[X], **attributes)
    assert text in str(ops.why_unsupported(graph, graph.operators()[0]))


def test_scales_at_run_time_are_refused_with_their_position() -> None:
    graph, _ = single("Resize", [X, None, floats(1, 1, 1, 1)], like=[X])
    reason = ops.why_unsupported(graph, graph.operators()[0])
    assert "scales of Resize is computed at run time" in str(reason)
    assert getattr(reason, "positions", ()) == (2,)


@pytest.mark.parametrize("opset, attributes, inputs", [(7, {"scales": [1.0, 1.0, 2.0, 1.5]}, 1), (9, {}, 2)])
def test_upsample(opset: int, attributes: dict[str, Any], inputs: int) -> None:
    scales = floats(1, 1, 2, 1.5)
    for mode in ("nearest", "linear"):
        expected = reference("Resize", [X, None, scales], 1, 13, mode=mode, nearest_mode="floor",
                             coordinate_transformation_mode="asymmetric")  # fmt: skip
        given = [X, scales][:inputs]
        graph, feeds = single("Upsample", given, constants=[1], opset=opset, like=expected, mode=mode, **attributes)
        assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], expected[0], expected[0])


# -------------------------------------------------------------------- symbolic extents


def symbolic(added: int | None, **attributes: Any) -> Graph:
    """Resize of (1, 2, h, 4) to h + ``added`` rows by sizes, or to 2 h rows by a factor."""
    size = dace.symbol("h", dace.int64)
    graph = Graph("symbolic")
    x = graph.add_input("x", (1, 2, size, 4), dace.float32)
    graph.symbols["h"] = (x, 2)
    if added is None:
        rows, names = size * 2, [x, None, graph.add_constant("scales", floats(1, 1, 2, 1))]
    else:
        shape, target = (graph.add_array(n, (4,), dace.int64) for n in ("shape", "target"))
        graph.add_operator("Shape", [x], [shape])
        graph.add_operator("Add", [shape, graph.add_constant("more", np.array([0, 0, added, 0]))], [target])
        rows, names = size + added, [x, None, None, target]
    y = graph.add_array("y", (1, 2, rows, 4), dace.float32)
    graph.add_operator("Resize", names, [y], attributes)
    graph.add_output(y)
    return graph


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("added", [None, 3])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
def test_symbolic_extent(mode: str, added: int | None, coordinates: str) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": "floor"}
    graph = lowered(symbolic(added, **attributes))
    for height in (1, 5):
        x = X[:, :, :height]
        sizes = np.array([1, 2, 2 * height if added is None else height + added, 4])
        (wanted,) = reference("Resize", [x, None, None, sizes], 1, 19, **attributes)
        assert_within_rounding(interpret(graph, {graph.inputs[0]: x})[graph.outputs[0]], wanted, wanted)


# -------------------------------------------------------------------- gradients

GRADIENTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"mode": "nearest"}, {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    ({"mode": "bilinear"}, {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}),
    (
        {"mode": "bilinear", "align_corners": True},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    ({"mode": "bicubic"}, {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"}),
]


@pytest.mark.parametrize("size", [(10, 8), (3, 7)])
@pytest.mark.parametrize("theirs, ours", GRADIENTS, ids=lambda v: str(v.get("mode")))
def test_gradient(theirs: dict[str, Any], ours: dict[str, Any], size: tuple[int, int]) -> None:
    constants = {1: np.zeros(0, np.float32), 2: np.zeros(0, np.float32), 3: np.array([1, 2, *size])}
    check_gradient(
        op("Resize", (1, 2, *size), constants, **ours),
        lambda x: functional.interpolate(x, size, **theirs),
        (1, 2, 5, 4),
    )


def test_gradient_over_a_symbolic_extent() -> None:
    """The transpose: <dy, Resize(x)> = <Resize'(dy), x>."""
    from daceopt.autodiff import differentiate

    for mode, coordinates in (("nearest", "half_pixel"), ("nearest", "align_corners"), ("linear", "half_pixel")):
        graph = symbolic(None, mode=mode, coordinate_transformation_mode=coordinates)
        derivative = differentiate(graph, graph.outputs, graph.inputs)
        dy = np.random.default_rng(5).normal(size=(1, 2, 10, 4)).astype(np.float32)
        feeds = {derivative.grad_outputs[graph.outputs[0]]: dy}
        feeds |= dict.fromkeys(derivative.forward_inputs_needed, X)
        backward = derivative.backward
        backward.symbols.clear()  # the size comes with the forward's inputs
        ops.lower_all(backward)
        dx = interpret(backward, feeds, sizes={"h": 5})[str(derivative.grad_inputs[graph.inputs[0]])]
        y = interpret(lowered(graph), {graph.inputs[0]: X})[graph.outputs[0]]
        np.testing.assert_allclose(np.vdot(dy, y), np.vdot(dx, X), rtol=1e-5)


# -------------------------------------------------------------------- compiled


def test_compiled() -> None:
    """Filters of many taps are loops; one model runs several modes."""
    from onnx import TensorProto, helper, numpy_helper

    modes = [
        {"mode": "linear", "antialias": 1},
        {"mode": "cubic"},
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ]
    sizes = [[1, 2, 2, 9], [1, 2, 8, 3], [1, 2, 10, 8]]
    nodes = [helper.make_node("Resize", ["x", "", "", f"s{k}"], [f"y{k}"], **m) for k, m in enumerate(modes)]
    graph = helper.make_graph(
        nodes,
        "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, s) for k, s in enumerate(sizes)],
        [numpy_helper.from_array(np.array(s, np.int64), f"s{k}") for k, s in enumerate(sizes)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    found = daceopt.from_onnx(model, fallback=False)(X)
    for value, size, mode in zip(found, sizes, modes):
        (wanted,) = reference("Resize", [X, None, None, np.array(size)], 1, 19, **mode)
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
