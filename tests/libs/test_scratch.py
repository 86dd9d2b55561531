"""Memory that library calls keep for the next one: one block for what a call copies, in all programs of a thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import dace
import numpy as np
import pytest
import torch

from daceopt import libs
from daceopt.codegen import build
from daceopt.codegen.assemble import load_program
from daceopt.codegen.trial import run
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardWeights
from daceopt.runtime.executable import Executable
from tests.numerics import assert_within_rounding
from tests.process_memory import bytes_in_use

pytestmark = pytest.mark.skipif("onednn" not in libs.names(), reason="oneDNN's wheels are not installed")
SHAPES = {"x": (8, 32, 96, 96), "y": (8, 32, 96, 96), "w": (32, 32, 3, 3)}


def program(kind: type) -> Executable:
    """A convolution of images as they come, computed in blocks of channels; or the gradient of its weights."""
    reads, result = ({"X": "x", "W": "w"}, "y") if kind is Convolution else ({"X": "x", "dY": "y"}, "w")
    graph = Graph("copies")
    operands = {c: graph.add_input(name, SHAPES[name], dace.float32) for c, name in reads.items()}
    out = graph.add_array("out", SHAPES[result], dace.float32)
    connector = "Y" if kind is Convolution else "dW"
    Builder(graph, "k").library(kind, operands, {connector: out}, pads=[1] * 4, layout="blocked")
    graph.add_output(out)
    roles = {**{name: f"input:{k}" for k, name in enumerate(graph.inputs)}, graph.outputs[0]: "output:0"}
    (name,) = build.build(f"scratch {kind.__name__}", [(graph, roles)], libs.implement)
    found = load_program(name)
    assert found is not None
    return found


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def test_programs_share_what_their_calls_copy_into() -> None:
    given = arrays()
    forward, backward = program(Convolution), program(ConvolutionBackwardWeights)

    def called(which: Executable, *names: str) -> tuple[int, np.ndarray]:
        """How many bytes more are in use, without those of the result; and the result."""
        before = bytes_in_use()
        result = run(which, {f"input:{k}": given[name] for k, name in enumerate(names)}).outputs["output:0"].copy()
        return bytes_in_use() - before - result.nbytes, result

    with ThreadPoolExecutor(1) as fresh:
        first, y = fresh.submit(called, forward, "x", "w").result()
        second, dw = fresh.submit(called, backward, "x", "y").result()
    image = given["x"].nbytes
    assert first > 3 * image / 2, "neither images nor results are copied: the test says nothing"
    assert second < image // 4
    exact = {name: torch.from_numpy(array).double() for name, array in given.items()}
    single = {name: torch.from_numpy(array) for name, array in given.items()}
    expected, theirs = (torch.nn.functional.conv2d(a["x"], a["w"], padding=1) for a in (exact, single))
    assert_within_rounding(y, expected, theirs)
    expected, theirs = (torch.nn.grad.conv2d_weight(a["x"], SHAPES["w"], a["y"], padding=1) for a in (exact, single))
    assert_within_rounding(dw, expected, theirs)
