"""Constant weights are prepared once: which ones, that numbers stay, with other sizes and in many threads at once."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dace
import numpy as np
import pytest
import torch

from daceopt import libs
from daceopt.codegen import build
from daceopt.codegen.assemble import load_program
from daceopt.codegen.trial import run
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Graph
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData
from daceopt.ir.render import render
from daceopt.ir.symbols import size
from daceopt.libs import onednn
from daceopt.libs.onednn import flags
from daceopt.passes.transform import Transformation
from daceopt.transformations.layout.weight_packing import WeightPacking
from tests.numerics import assert_within_rounding

F = dace.float32
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


def test_constants_are_packed_and_inputs_are_not() -> None:
    graph = convolutions()
    assert len(WeightPacking().run(graph).sites) == 2
    assert render(graph).count("packed=true") == 2
    assert WeightPacking().run(graph).sites == []
    assert WeightPacking().run(convolutions(constant=False)).sites == []


def test_a_call_that_was_moved_to_where_weights_are_given_packs_none() -> None:
    """Such as into a loop, which is given a slice of them in each iteration."""
    for constant, packs in ((True, True), (False, False)):
        graph = convolutions(constant)
        for node in graph.nodes():
            node.packed = True
            assert ("PackedWeights" in onednn._kept(node, graph)[0]) == packs


def expected(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    w, image = torch.from_numpy(WEIGHTS).to(dtype), torch.from_numpy(x).to(dtype)
    y = torch.nn.functional.conv2d(image, w, padding=1)
    return torch.nn.functional.conv_transpose2d(y, w.transpose(2, 3), padding=1).numpy()


@pytest.mark.skipif("onednn" not in libs.names(), reason="oneDNN's wheels are not installed")
def test_sizes_and_threads_share_what_was_packed(capfd: pytest.CaptureFixture[str]) -> None:
    graph = convolutions()
    Transformation.parse("weight-packing").run(graph)
    roles = {graph.inputs[0]: "input:0", graph.outputs[0]: "output:0"}
    (name,) = build.build("packed weights", [(graph, roles)], libs.implement)
    program = load_program(name)
    assert program is not None
    rng = np.random.default_rng(4)
    images = [rng.standard_normal((n, 32, 9, 9)).astype(np.float32) for n in (1, 2, 5, 1, 3, 2, 5, 1)]

    def result(x: np.ndarray) -> np.ndarray:
        return run(program, {"input:0": x}).outputs["output:0"]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(result, images))
    for x, ours in zip(images, found, strict=True):
        assert_within_rounding(ours, expected(x, torch.float64), expected(x, torch.float32))
    assert not _reorders_weights(lambda: result(images[0]), capfd)


def _reorders_weights(call: object, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The lines in which oneDNN says that it copies weights."""
    library = ctypes.CDLL(Path(flags().link[0]).name)  # by its name: the copy that programs are bound to
    capfd.readouterr()
    library.dnnl_set_verbose(2)
    call()  # type: ignore[operator]
    library.dnnl_set_verbose(0)
    ctypes.CDLL(None).fflush(None)
    lines = capfd.readouterr().out.splitlines()
    assert any(",exec," in line and ",convolution," in line for line in lines)
    return [line for line in lines if ",exec," in line and ",reorder," in line and "32x32x3x3" in line]
