"""Algorithms by torch's operators, on arrays of the host: what the templates give, and PyTorch gives there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from daceopt import libs
from daceopt.libs.torch_algorithms import TorchAlgorithms
from tests.libs import test_algorithms as templates
from tests.libs.harness import RunFailed, buffers, compile_graph
from tests.libs.test_algorithms import Call, indices, program, sample

INTEGERS = ["int8", "int64", "uint8"]  # the narrowest, the widest and the unsigned of those that torch orders and sums


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(TorchAlgorithms, "targets", ("cpu",))
    with libs.prefer(Algorithm="torch_algorithms"):
        yield


@pytest.mark.parametrize(
    "check",
    [
        templates.test_top_indices,
        templates.test_ranked_index,
        templates.test_cumulate,
        templates.test_running_extremum,
        templates.test_searchsorted,
    ],
    ids=lambda check: check.__name__.removeprefix("test_"),
)
def test_as_the_templates(check: Callable[[templates.Types], None]) -> None:
    check([*templates.FLOATS, *INTEGERS])


@pytest.mark.parametrize(
    "check",
    [templates.test_top_indices_of_many_lanes, templates.test_few_of_long_rows, templates.test_bitcast],
    ids=lambda check: check.__name__.removeprefix("test_"),
)
def test_as_the_templates_for_some_types(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("dtype", templates.FLOATS)
def test_product_gradient(dtype: str) -> None:
    templates.test_product_gradient(dtype)


@pytest.mark.parametrize("extent", [1, 2, 7, 33])
def test_product_gradient_of_long_lines(extent: int) -> None:
    """Spans of 1, 2, 4, ... elements meet at any extent; zeros stand at both ends and in the middle."""
    rng = np.random.default_rng(extent)
    x, dy = (rng.integers(-2, 3, (2, extent, 3)).astype(np.float64) for _ in range(2))
    x[0, :, 0] = rng.choice([-1.0, 1.0], extent)
    x[0, [0, extent // 2, -1], 1] = 0
    for switches in np.ndindex(2, 2):
        templates.compare(Call("product_gradient", [x, dy], [np.zeros_like(x)], [2, extent, 3, *switches]))


def test_scatter_rows() -> None:
    """Bools are replaced only."""
    calls = []
    for dtype in [*templates.FLOATS, *INTEGERS, "bool"]:
        for rows, width, places in ((5, 3, [4, 0, 4, 4]), (6, 1, [[0, 1], [1, 5]]), (3, 2, []), (2, 0, [1])):
            for reduction in range(1 if dtype == "bool" else 5):
                where = np.array(places, np.int64)
                data, updates = sample(dtype, (rows, width)), sample(dtype, (where.size, width), seed=1)
                parameters = [rows, width, where.size, reduction]
                calls.append(Call("scatter_rows", [data, where, updates], [np.zeros_like(data)], parameters))
    templates.compare(*calls)


def test_what_sizes_alone_forbid_is_refused() -> None:
    x = sample("float32", (1, 3, 1))
    for message, call in (
        ("k is larger", Call("top_indices", [x], [indices(1, 4, 1)], [1, 3, 1, 4, 1, 0])),
        ("no element of that rank", Call("ranked_index", [x], [indices(1, 1, 1)], [1, 3, 1, 0, 3])),
    ):
        graph, feeds, results = program([call])
        arrays = {**feeds, **results}
        with pytest.raises(RunFailed, match=message):
            compile_graph(graph)(*(arrays[n] for n in buffers(graph)))


def test_algorithms_of_onnx_are_refused() -> None:
    x = np.ones((1, 4, 1), np.float32)
    graph, *_ = program([Call("determinant", [x.reshape(1, 2, 2)], [np.zeros(1, np.float32)], [1, 2])])
    (node,) = graph.nodes()
    assert libs.why_not("torch_algorithms", node, graph) == "torch has no form of determinant here"
