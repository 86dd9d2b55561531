"""Weights are prepared once, and again where they change: which ones, with other sizes and in many threads at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import dace
import numpy as np
import pytest
import torch

from daceopt import libs, optimized_module
from daceopt.codegen import build
from daceopt.codegen.assemble import load_program
from daceopt.codegen.trial import run
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData
from daceopt.ir.scalar.symbols import size
from daceopt.ir.text.render import render
from daceopt.libs import onednn
from daceopt.passes.transform import Transformation
from daceopt.transformations.layout.weight_packing import WeightPacking
from tests.libs.test_convolution import announced
from tests.numerics import assert_within_rounding

F = dace.float32
needs_onednn = pytest.mark.skipif("onednn" not in libs.names(), reason="oneDNN's wheels are not installed")
WEIGHTS = np.random.default_rng(3).standard_normal((32, 32, 3, 3)).astype(np.float32)


def convolutions(constant: bool = True) -> Graph:
    """Two images of open batch, by one weight each: forward and transposed."""
    graph = Graph("packed")
    n = size("n")
    x = graph.add_input("x", (n, 32, 9, 9), F)
    graph.symbols["n"] = (x, 0)
    w = graph.add_constant("w", WEIGHTS) if constant else graph.add_input("w", WEIGHTS.shape, F)
    b = Builder(graph, "k")
    y, z = (graph.add_array(name, (n, 32, 9, 9), F) for name in "yz")
    b.library(Convolution, {"X": x, "W": w}, {"Y": y}, pads=[1, 1, 1, 1])
    b.library(ConvolutionBackwardData, {"dY": y, "W": b.transpose(w, [0, 1, 3, 2])}, {"dX": z}, pads=[1, 1, 1, 1])
    graph.add_output(z)
    return graph


@pytest.mark.parametrize("constant", [True, False])
def test_constants_and_arguments_are_packed(constant: bool) -> None:
    graph = convolutions(constant)
    assert len(WeightPacking().run(graph).sites) == 2
    assert render(graph).count("packed=true") == 2
    assert WeightPacking().run(graph).sites == []


def test_what_a_training_step_may_change_is_not_packed() -> None:
    saves, replaces = convolutions(constant=False), convolutions(constant=False)
    saves.saved.append(saves.outputs[0])
    replaces.replaced[0] = replaces.inputs[1]
    for graph in (saves, replaces):
        assert WeightPacking().run(graph).sites == []


def test_what_is_computed_in_each_call_is_not_packed() -> None:
    graph = Graph("scaled")
    x, w = (graph.add_input(name, (4, 16, 5, 5), F) for name in "xw")
    y = graph.add_array("y", (4, 4, 1, 1), F)
    b = Builder(graph, "k")
    b.library(Convolution, {"X": x, "W": b.elementwise(lambda v: 2 * v, w)}, {"Y": y})
    graph.add_output(y)
    assert WeightPacking().run(graph).sites == []


def test_a_call_that_was_moved_to_where_weights_are_given_looks_at_them() -> None:
    """Such as into a loop, which is given a slice of them in each iteration."""
    for constant, kind in ((True, "PackedWeights"), (False, "CheckedWeights")):
        graph = convolutions(constant)
        for node in graph.nodes():
            node.packed = True
            assert kind in onednn.kept_weights(node, graph)[0]


def expected(x: np.ndarray, dtype: torch.dtype, weights: np.ndarray = WEIGHTS) -> np.ndarray:
    w, image = torch.from_numpy(weights).to(dtype), torch.from_numpy(x).to(dtype)
    y = torch.nn.functional.conv2d(image, w, padding=1)
    return torch.nn.functional.conv_transpose2d(y, w.transpose(2, 3), padding=1).numpy()


def built(constant: bool) -> Callable[..., np.ndarray]:
    """A function of the images, and of the weights where these are no constants."""
    graph = convolutions(constant)
    Transformation.parse("weight-packing").run(graph)
    roles = {**{name: f"input:{k}" for k, name in enumerate(graph.inputs)}, graph.outputs[0]: "output:0"}
    (name,) = build.build(f"packed weights {constant}", [(graph, roles)], libs.implement)
    program = load_program(name)
    assert program is not None
    return lambda *arrays: run(program, {f"input:{k}": x for k, x in enumerate(arrays)}).outputs["output:0"]


def images() -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.standard_normal((n, 32, 9, 9)).astype(np.float32) for n in (1, 2, 5, 1, 3, 2, 5, 1)]


@needs_onednn
def test_sizes_and_threads_share_what_was_packed(capfd: pytest.CaptureFixture[str]) -> None:
    result = built(constant=True)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(result, images()))
    for x, ours in zip(images(), found, strict=True):
        assert_within_rounding(ours, expected(x, torch.float64), expected(x, torch.float32))
    assert not _reorders_weights(lambda: result(images()[0]), capfd)


@needs_onednn
def test_weights_that_change_are_prepared_again(capfd: pytest.CaptureFixture[str]) -> None:
    """However they change: one element, in ways that leave sums as they are, back to what they were."""
    result, x, weights = built(constant=False), images()[1], WEIGHTS.copy()

    def one_element() -> None:
        weights[3, 5, 1, 2] = np.nextafter(weights[3, 5, 1, 2], np.float32(9))

    def signs() -> None:
        weights[..., 1] *= -1

    def places() -> None:
        weights[[0, 31]] = weights[[31, 0]]

    def back() -> None:
        weights[:] = WEIGHTS

    for change in (back, one_element, signs, places, back):
        change()
        exact, rounded = expected(x, torch.float64, weights), expected(x, torch.float32, weights)
        assert_within_rounding(result(x, weights), exact, rounded)
        assert not _reorders_weights(lambda: result(x, weights), capfd)


def scaled(x: np.ndarray, given: dict[str, np.ndarray], dtype: torch.dtype, group: int) -> np.ndarray:
    image, w, b, s, t = (torch.from_numpy(a).to(dtype) for a in (x, *(given[c] for c in "WBST")))
    y = torch.nn.functional.conv2d(image, w, b, groups=group)
    return (y * s.reshape(-1, 1, 1) + t.reshape(-1, 1, 1)).numpy()


@needs_onednn
@pytest.mark.parametrize(("group", "channels"), [(1, 32), (32, 32), (1, 3)])
def test_factors_of_channels_are_multiplied_into_what_is_kept(
    group: int, channels: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where they alone change, and where the layout is the one that the kernel takes."""
    rng, shapes = np.random.default_rng(6), {"W": (32, channels // group, 3, 3), "B": (32,), "S": (32,), "T": (32,)}
    given = {c: rng.standard_normal(shape).astype(np.float32) for c, shape in shapes.items()}
    graph = Graph("scaled")
    x = graph.add_input("x", (2, channels, 9, 9), F)
    operands = {c: graph.add_input(c.lower(), a.shape, F) for c, a in given.items()}
    y = graph.add_array("y", (2, 32, 7, 7), F)
    node = Convolution(inputs=["X", *operands], group=group)
    graph.add_node(node, {"X": x, **operands}, {"Y": y})
    graph.add_output(y)
    Transformation.parse("weight-packing").run(graph)
    roles = {**{name: f"input:{k}" for k, name in enumerate(graph.inputs)}, graph.outputs[0]: "output:0"}
    (name,) = build.build(f"scaled weights {group} {channels}", [(graph, roles)], libs.implement)
    program = load_program(name)
    assert program is not None
    image = rng.standard_normal((2, channels, 9, 9)).astype(np.float32)

    def result() -> np.ndarray:
        arrays = {f"input:{k}": a for k, a in enumerate((image, *given.values()))}
        return run(program, arrays).outputs["output:0"]

    for change in ("", *"SWBTS"):
        if change:
            given[change] = given[change] * np.float32(-1.5)
        exact, rounded = (scaled(image, given, d, group) for d in (torch.float64, torch.float32))
        assert_within_rounding(result(), exact, rounded)
    with announced():
        result()
    ran = [line for line in capfd.readouterr().out.splitlines() if ",exec," in line and ",convolution," in line]
    assert len(ran) == 1 and "binary" not in ran[0]


@needs_onednn
def test_threads_with_weights_of_their_own() -> None:
    """More of them than copies are kept."""
    result = built(constant=False)

    def call(k: int) -> tuple[np.ndarray, np.ndarray]:
        weights = WEIGHTS * np.float32(1 + k % 5)
        return weights, result(images()[k % 8], weights)

    with ThreadPoolExecutor(8) as pool:
        for k, (weights, ours) in enumerate(pool.map(call, range(40))):
            x = images()[k % 8]
            assert_within_rounding(ours, expected(x, torch.float64, weights), expected(x, torch.float32, weights))


@needs_onednn
def test_a_module_sees_what_is_written_past_autograd() -> None:
    """``.data`` and NumPy's view of a parameter count up no version."""
    module = optimized_module(torch.nn.Conv2d(16, 16, 3), fallback="raise").eval()
    x = torch.randn(2, 16, 8, 8)

    def check() -> None:
        with torch.no_grad():
            ours, weight, bias = module(x), module.weight.double(), module.bias.double()
        rounded = torch.nn.functional.conv2d(x, module.weight, module.bias).detach()
        exact = torch.nn.functional.conv2d(x.double(), weight, bias)
        assert_within_rounding(ours.numpy(), exact.numpy(), rounded.numpy())

    check()
    module.weight.data.mul_(2)
    check()
    module.weight.detach().numpy()[0] = 7
    check()
    module.weight = torch.nn.Parameter(torch.randn(16, 16, 3, 3))
    check()
    assert "CheckedWeights" in module.daceopt.source()


def _reorders_weights(call: object, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The lines in which oneDNN says that it copies weights."""
    capfd.readouterr()
    with announced():
        call()  # type: ignore[operator]
    lines = capfd.readouterr().out.splitlines()
    assert any(",exec," in line and ",convolution," in line for line in lines)
    return [line for line in lines if ",exec," in line and ",reorder," in line and "32x32x3x3" in line]
