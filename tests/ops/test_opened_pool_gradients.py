"""Gradients of pools as kernels: what the library node computes, at borders, overlaps and ties."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest

from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.library import Pool, PoolBackward
from daceopt.ops.families.opened_pool_gradients import pool_gradient_kernel
from daceopt.transformations.local.pool_opening import PoolOpening
from tests.ops.test_opened_windows import WINDOWS, Window, images, pool
from tests.transformations.lowered import apply, finish, start

_CEILED: Window = {"kernel": [3, 2], "strides": [2, 2], "pads": [0, 0, 1, 1]}


def gradient(window: Window, kind: str, size: tuple[int, int], dtype: Any = dace.float32, **other: Any) -> Graph:
    k, s, p = (window[name] for name in ("kernel", "strides", "pads"))
    up = other.get("ceil_mode", False)
    space = [(size[a] + p[a] + p[2 + a] - k[a] + up * (s[a] - 1)) // s[a] + 1 for a in range(2)]
    graph, b, (dy,) = start((2, 3, *space), dtype=dtype)
    reads, dx = {"dY": dy}, graph.add_array("dx", (2, 3, *size), dtype)
    if kind == "max":
        reads["Workspace"] = graph.add_input("w", (2, 3, *space), dace.uint8)
    b.library(PoolBackward, reads, {"dX": dx}, kind=kind, **window, **other)
    return finish(graph, dx)


def agree(graph: Graph, given: dict[str, np.ndarray]) -> None:
    before = interpret(graph, given, np.float64)
    apply(PoolOpening(), graph)
    assert graph.kernels() and len(graph.nodes()) == 1
    after = interpret(graph, given, np.float64)
    np.testing.assert_allclose(after[graph.outputs[0]], before[graph.outputs[0]], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("size", [(7, 9), (8, 8), (3, 4)])
def test_the_place_of_a_maximum_gets_its_gradient(name: str, size: tuple[int, int]) -> None:
    forward = pool(WINDOWS[name], where=True, size=size)
    with np.errstate(all="ignore"):
        where = interpret(forward, images(forward))[forward.outputs[1]]
    graph = gradient(WINDOWS[name], "max", size)
    dy, w = graph.inputs
    rng = np.random.default_rng(0)
    agree(graph, {dy: rng.standard_normal(graph.shape(dy)).astype(np.float32), w: where})


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("size", [(7, 9), (8, 8)])
def test_averages_share_theirs(name: str, padded: bool, size: tuple[int, int]) -> None:
    graph = gradient(WINDOWS[name], "average", size, count_include_pad=padded)
    (dy,) = graph.inputs
    agree(graph, {dy: np.random.default_rng(0).standard_normal(graph.shape(dy)).astype(np.float32)})


@pytest.mark.parametrize("padded", [False, True])
def test_windows_that_end_outside(padded: bool) -> None:
    graph = gradient(_CEILED, "average", (6, 7), count_include_pad=padded, ceil_mode=True)
    (dy,) = graph.inputs
    agree(graph, {dy: np.random.default_rng(0).standard_normal(graph.shape(dy)).astype(np.float32)})


def test_large_windows_that_do_not_overlap_are_one_read() -> None:
    graph = gradient({"kernel": [8, 8], "strides": [8, 8], "pads": [0] * 4}, "average", (8, 8))
    (dy,) = graph.inputs
    agree(graph, {dy: np.ones(graph.shape(dy), np.float32)})


@pytest.mark.parametrize(
    ("window", "other", "reason"),
    [
        ({"kernel": [7, 7], "strides": [1, 1], "pads": [0] * 4}, {}, "49 windows reach an element; at most 32"),
        (WINDOWS["squares"], {"dilations": [1, 2]}, "a window with gaps"),
    ],
)
def test_what_stays_a_library_node(window: Window, other: dict[str, Any], reason: str) -> None:
    graph = gradient(window, "max", (8, 8), **other)
    assert reason in str(pool_gradient_kernel(graph, graph.nodes()[0]))
    (miss,) = PoolOpening().run(graph).near_misses
    assert reason in miss


def test_pools_for_which_a_library_is_slow() -> None:
    """Averages and maxima without their places, of images in rows."""
    window = WINDOWS["squares"]
    slow = [gradient(window, "average", (8, 8)), pool(window), pool(window, kind="average")]
    for graph in slow:
        assert len(PoolOpening(slow=True).run(graph).sites) == 1
    for graph in (gradient(window, "max", (8, 8)), pool(window, where=True)):
        (miss,) = PoolOpening(slow=True).run(graph).near_misses
        assert "the places of maxima are kept" in miss


@pytest.mark.parametrize("kind", ["average", "max"])
def test_channels_that_are_neighbours_stay_in_the_library(kind: str) -> None:
    """But not where the result is in rows: lanes of the library would step over channels."""
    strides = {"channels": (3 * 16, 1, 3 * 4, 3), "rows": (3 * 16, 16, 4, 1)}
    done = {}
    for name, own in strides.items():
        graph, b, (pixels,) = start((2, 8, 8, 3))
        y = graph.add_array("y", (2, 3, 4, 4), dace.float32, own)
        b.library(Pool, {"X": b.transpose(pixels, (0, 3, 1, 2))}, {"Y": y}, kind=kind, **WINDOWS["squares"])
        done[name] = PoolOpening(slow=True).run(finish(graph, y))
    (miss,) = done["channels"].near_misses
    assert "pixels are not neighbours" in miss
    assert len(done["rows"].sites) == 1 and not done["rows"].near_misses
