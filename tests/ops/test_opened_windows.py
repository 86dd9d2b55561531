"""Pools as kernels: what the library node computes, at borders, ties and NaN, and what stays a library node."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest

from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.nodes.library import Pool
from daceopt.ops.families.opened_windows import pool_kernel
from tests.transformations.lowered import finish, start

Window = dict[str, Any]
WINDOWS: dict[str, Window] = {
    "squares": {"kernel": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0]},
    "overlapping": {"kernel": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "padded at the end": {"kernel": [3, 2], "strides": [1, 1], "pads": [0, 0, 2, 1]},
    "padded at the begin": {"kernel": [3, 2], "strides": [2, 1], "pads": [2, 1, 0, 0]},
    "one element": {"kernel": [1, 1], "strides": [3, 2], "pads": [0, 0, 0, 0]},
}


def pool(
    window: Window,
    kind: str = "max",
    where: bool = False,
    size: tuple[int, int] = (7, 9),
    **other: Any,
) -> Graph:
    graph, b, (x,) = start((2, 3, *size))
    k, s, p = (window[name] for name in ("kernel", "strides", "pads"))
    d = other.get("dilations", [1, 1])
    up = s[0] - 1 if other.get("ceil_mode") else 0
    space = [(size[a] + p[a] + p[2 + a] - (k[a] - 1) * d[a] - 1 + up) // s[a] + 1 for a in range(2)]
    writes = {"Y": graph.add_array("y", (2, 3, *space), dace.float32)}
    if where:
        writes["Workspace"] = graph.add_array("w", (2, 3, *space), dace.uint8)
    b.library(Pool, {"X": x}, writes, kind=kind, **window, **other)
    return finish(graph, *writes.values())


def opened(graph: Graph) -> Graph:
    new = graph.copy()
    (node,) = new.nodes()
    kernel = pool_kernel(new, node)
    assert isinstance(kernel, Kernel)
    new.remove(node)
    new.add_kernel(kernel)
    new.validate()
    return new


def images(graph: Graph) -> dict[str, np.ndarray]:
    """Many ties, infinities, NaN at borders and beside each other."""
    rng = np.random.default_rng(3)
    x = np.round(rng.standard_normal(graph.shape(graph.inputs[0])) * 2).astype(np.float32)
    x[0, 0, 0, 0] = x[0, 1, -1, -1] = x[0, 2, 1, 1] = x[0, 2, 1, 2] = np.nan
    x[1, 0] = -np.inf
    return {graph.inputs[0]: x}


def agree(graph: Graph, exact: bool) -> None:
    given = images(graph)
    with np.errstate(all="ignore"):
        before, after = interpret(graph, given, np.float64), interpret(opened(graph), given, np.float64)
    for name in graph.outputs:
        tolerance = 0 if exact else 4 * np.finfo(np.float64).eps
        np.testing.assert_allclose(after[name], before[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("size", [(7, 9), (8, 8), (3, 4)])
@pytest.mark.parametrize("where", [False, True])
def test_maxima_and_where_they_stand(name: str, size: tuple[int, int], where: bool) -> None:
    agree(pool(WINDOWS[name], where=where, size=size), exact=True)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("padded", [False, True])
def test_averages(name: str, padded: bool) -> None:
    agree(pool(WINDOWS[name], "average", count_include_pad=padded), exact=False)


@pytest.mark.parametrize("where", [False, True])
@pytest.mark.parametrize("size", [(7, 9), (8, 8), (10, 4)])
def test_the_last_windows_may_reach_beyond_the_image(size: tuple[int, int], where: bool) -> None:
    agree(pool(WINDOWS["overlapping"], where=where, size=size, ceil_mode=True), exact=True)


def test_windows_with_gaps() -> None:
    agree(pool(WINDOWS["squares"], dilations=[2, 3]), exact=True)


@pytest.mark.parametrize(
    ("window", "other", "reason"),
    [
        ({"kernel": [6, 6], "strides": [1, 1], "pads": [0] * 4}, {}, "a window of 36 elements; at most 32"),
        (WINDOWS["overlapping"], {"dilations": [2, 1]}, "of which the nearest element of the image is none"),
        ({"kernel": [2, 2], "strides": [4, 4], "pads": [0] * 4}, {"ceil_mode": True}, "may lie outside of the image"),
        (WINDOWS["overlapping"], {"ceil_mode": True, "kind": "average"}, "that reach beyond the padding"),
        ({"kernel": [1, 1], "strides": [1, 1], "pads": [1] * 4}, {}, "may lie outside of the image as a whole"),
    ],
)
def test_what_stays_a_library_node(window: Window, other: dict[str, Any], reason: str) -> None:
    graph = pool(window, **other)
    found = pool_kernel(graph, graph.nodes()[0])
    assert isinstance(found, str) and reason in found
