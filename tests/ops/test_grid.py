"""GridSample and AffineGrid against the reference evaluator, ONNX Runtime's choices and PyTorch's gradients."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from daceopt import ops
from daceopt.ir.interpreter.interpret import interpret
from tests.autodiff.checking import check as check_gradient
from tests.numerics import assert_within_rounding
from tests.ops.single import check, lowered, single
from tests.ops.test_gradients import op

RNG = np.random.default_rng(2)
X = RNG.normal(size=(2, 2, 4, 5)).astype(np.float32)
GRID = RNG.uniform(-1.6, 1.6, size=(2, 3, 2, 2)).astype(np.float32)
VOLUME = RNG.normal(size=(1, 2, 3, 4, 2)).astype(np.float32)
VOLUME_GRID = RNG.uniform(-1.4, 1.4, size=(1, 2, 2, 2, 3)).astype(np.float32)
PADDINGS = ("zeros", "border", "reflection")
MODES = ("nearest", "linear", "cubic")


@pytest.mark.parametrize("mode, padding", list(itertools.product(MODES, PADDINGS)))
def test_grid_sample(mode: str, padding: str) -> None:
    for aligned in (0, 1):
        attributes: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
        if (mode, padding) == ("cubic", "border"):
            _check_beside_torch(bool(aligned))
        else:
            check("GridSample", [X, GRID], opset=22, **attributes)
        if mode != "cubic":
            check("GridSample", [VOLUME, VOLUME_GRID], opset=22, **attributes)


def _check_beside_torch(aligned: bool) -> None:
    """ONNX's evaluator brings the point inside, PyTorch and ONNX Runtime each of the places that are read."""
    graph, feeds = single(
        "GridSample", [X, GRID], opset=22, mode="cubic", padding_mode="border", align_corners=int(aligned)
    )
    exact, theirs = (
        torch.nn.functional.grid_sample(
            torch.from_numpy(X).to(t), torch.from_numpy(GRID).to(t), "bicubic", "border", aligned
        )
        for t in (torch.float64, torch.float32)
    )
    assert_within_rounding(interpret(lowered(graph), feeds)[graph.outputs[0]], exact, theirs)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_older_names_of_modes(mode: str) -> None:
    new = {"bilinear": "linear", "bicubic": "cubic"}[mode]
    graphs = [
        single("GridSample", [X, GRID], opset=o, like=[X[:, :, :3, :2]], mode=m) for o, m in ((16, mode), (22, new))
    ]
    ours = [interpret(lowered(g), feeds)[g.outputs[0]] for g, feeds in graphs]
    np.testing.assert_array_equal(*ours)


@pytest.mark.parametrize("mode, padding", list(itertools.product(MODES, PADDINGS)))
def test_positions_that_are_no_numbers_read_nothing_outside(mode: str, padding: str) -> None:
    grid = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0], np.float32).reshape(1, 3, 1, 2)
    graph, feeds = single("GridSample", [X[:1], grid], like=[X[:1, :, :3, :1]], mode=mode, padding_mode=padding)
    assert interpret(lowered(graph), feeds)[graph.outputs[0]].shape == (1, 2, 3, 1)


@pytest.mark.parametrize("shape", [(0, 2, 4, 5), (2, 0, 4, 5)])
def test_empty(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    wanted = np.zeros((*shape[:2], 3, 2), np.float32)
    graph, feeds = single("GridSample", [x, GRID[: shape[0]]], like=[wanted])
    assert interpret(lowered(graph), feeds)[graph.outputs[0]].shape == wanted.shape


@pytest.mark.parametrize(
    "inputs, attributes, text",
    [([X, GRID], {"mode": "lanczos"}, "mode 'lanczos'"), ([X, GRID], {"padding_mode": "wrap"}, "padding_mode 'wrap'"),
     ([X, VOLUME_GRID], {}, "expected (N, C, D...)"), ([X[:, :, :0], GRID], {}, "nothing to take values from")],
)  # fmt: skip
def test_refusals(inputs: list[np.ndarray], attributes: dict[str, Any], text: str) -> None:
    graph, _ = single("GridSample", inputs, like=[X], **attributes)
    assert text in str(ops.why_unsupported(graph, graph.operators()[0]))


@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 3, 2, 3, 4)])
@pytest.mark.parametrize("aligned", [0, 1])
def test_affine_grid(size: tuple[int, ...], aligned: int) -> None:
    rank = len(size) - 2
    theta = RNG.normal(size=(2, rank, rank + 1)).astype(np.float32)
    check("AffineGrid", [theta, np.array(size)], constants=[1], align_corners=aligned)


def test_affine_grid_refuses_other_matrices() -> None:
    theta = np.zeros((2, 3, 3), np.float32)
    graph, _ = single("AffineGrid", [theta, np.array([2, 3, 4, 5])], constants=[1], like=[np.zeros((2, 4, 5, 2), "f")])
    assert "expected (N, 2, 3)" in str(ops.why_unsupported(graph, graph.operators()[0]))


# -------------------------------------------------------------------- gradients


@pytest.mark.parametrize("mode, padding", list(itertools.product(("nearest", "linear"), PADDINGS)))
@pytest.mark.parametrize("aligned", [False, True])
def test_gradient(mode: str, padding: str, aligned: bool) -> None:
    """By the picture and by the grid."""
    attributes: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": int(aligned)}
    theirs = {"mode": {"linear": "bilinear"}.get(mode, mode), "padding_mode": padding, "align_corners": aligned}
    check_gradient(
        op("GridSample", (2, 2, 3, 2), **attributes),
        lambda x, g: functional.grid_sample(x, g, **theirs),
        values=[X, GRID],
    )


def test_gradient_of_cubic_and_in_three_dimensions() -> None:
    check_gradient(
        op("GridSample", (2, 2, 3, 2), mode="cubic"),
        lambda x, g: functional.grid_sample(x, g, mode="bicubic", align_corners=False),
        values=[X, GRID],
    )
    check_gradient(
        op("GridSample", (1, 2, 2, 2, 2)),
        lambda x, g: functional.grid_sample(x, g, align_corners=False),
        values=[VOLUME, VOLUME_GRID],
    )


def test_gradient_of_affine_grid() -> None:
    check_gradient(
        op("AffineGrid", (2, 3, 4, 2), {1: np.array([2, 1, 3, 4])}),
        lambda t: functional.affine_grid(t, [2, 1, 3, 4], align_corners=False),
        (2, 2, 3),
    )
