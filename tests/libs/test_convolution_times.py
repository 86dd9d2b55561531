"""Times of convolutions: measured once, kept, and only where they can be known."""

from __future__ import annotations

from typing import Any

import dace
import pytest
import torch

from daceopt import libs
from daceopt.cost.limits import Limits
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes import blocked
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights
from daceopt.libs import convolution_times
from daceopt.libs.convolution_times import times
from tests.process_memory import bytes_in_use
from tests.transformations.lowered import size_symbol

pytestmark = pytest.mark.skipif("onednn" not in libs.names(), reason="oneDNN's wheels are not installed")


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests assume another machine, and measure nothing."""
    monkeypatch.setattr(convolution_times, "assumed_limits", lambda: None)


def call(
    kind: type = Convolution,
    batch: Any = 2,
    channels: int = 32,
    dtype: Any = dace.float32,
    edge: int = 12,
    group: int | None = None,
) -> tuple[Any, Graph]:
    """A convolution with padding, depthwise unless ``group`` is given."""
    graph, group = Graph("calls"), group or channels
    image, weights = (batch, channels, edge, edge), (channels, channels // group, 3, 3)
    operands = {
        Convolution: ({"X": image, "W": weights}, {"Y": image}),
        ConvolutionBackwardData: ({"dY": image, "W": weights}, {"dX": image}),
        ConvolutionBackwardWeights: ({"X": image, "dY": image}, {"dW": weights}),
    }
    reads, writes = ({c: graph.add_array(c, s, dtype) for c, s in side.items()} for side in operands[kind])
    node = kind(pads=[1] * 4, group=group)
    graph.add_node(node, reads, writes)
    return node, graph


@pytest.mark.parametrize("kind", [Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights])
def test_all_layouts(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_times, "LEAST_FLOPS", 0.0)
    found = times(*call(kind))
    assert found is not None and all(1e-7 < seconds < 1.0 for seconds in found)
    convolution_times._lookup.cache_clear()
    monkeypatch.setattr(convolution_times, "_measure", lambda _: pytest.fail("measured twice"))
    assert times(*call(kind)) == found


def test_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_times, "LEAST_FLOPS", 0.0)
    one = [times(*call(kind)) for kind in (Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights)]
    together = times(*call(), passes=(0, 1, 2))
    assert together == pytest.approx([sum(column) for column in zip(*one)])


def test_threads_of_others_stay_after_a_measurement_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_times, "LEAST_FLOPS", 0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 2)
    try:
        assert times(*call(edge=28)) is not None
        assert torch.get_num_threads() == threads + 2
    finally:
        torch.set_num_threads(threads)


def test_images_in_blocks_are_the_same_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_times, "LEAST_FLOPS", 0.0)
    node, graph = call()
    expected = times(node, graph)
    blocked.block(graph, [node.operands(graph)["Y"]])
    assert times(node, graph) == expected


def test_many_images_are_known_by_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_times, "LEAST_FLOPS", 0.0)
    monkeypatch.setattr(convolution_times.system, "cores", lambda: 2)
    few = times(*call(batch=8), passes=(0, 1, 2))
    assert few is not None
    monkeypatch.setattr(convolution_times, "_measure", lambda _: pytest.fail("measured another batch"))
    assert times(*call(batch=32), passes=(0, 1, 2)) == pytest.approx([4 * seconds for seconds in few])


def test_weights_that_outlast_calls_are_prepared_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying them takes as long as small images take, in a layout that differs from the others' by its own speed."""
    monkeypatch.setattr(convolution_times, "LEAST_FLOPS", 0.0)
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(convolution_times, "_lookup", seen.append)
    node, graph = call()
    graph.inputs.append(node.operands(graph)["W"])
    times(node, graph)
    times(node, graph, passes=(0,))  # of a training step, which changes them
    graph.saved.append(node.operands(graph)["X"])
    times(node, graph)
    assert [numbers[1] for numbers in seen] == [True, False, False]


def test_what_measuring_takes_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as copies in blocks, of 26 MB each, in memory that a thread of a program keeps for its next call."""
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(convolution_times, "_lookup", asked.append)
    monkeypatch.setattr(convolution_times, "LEAST_FLOPS", 0.0)
    for edge in (12, 160):
        times(*call(ConvolutionBackwardData, batch=4, channels=64, edge=edge, group=1))
    small, large = asked
    convolution_times._measure(small)
    before = bytes_in_use()
    convolution_times._measure(large)
    assert bytes_in_use() - before < 4 << 20


def test_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert times(*call(channels=1)) is None
    monkeypatch.setattr(convolution_times, "LEAST_FLOPS", 0.0)
    assert times(*call(batch=size_symbol())) is None
    assert times(*call(dtype=dace.float64)) is None
    with libs.prefer(Convolution="aten"):
        assert times(*call()) is None
    monkeypatch.setattr(convolution_times, "assumed_limits", lambda: Limits(64))
    assert times(*call()) is None
