"""Versions beside each other, kernels alone, measured reports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import daceopt
from daceopt.errors import Unsupported
from daceopt.passes.rounding import outputs, relative_error
from tests.explore.sessions import ReluTwice, chain, lowered, session


def test_versions_are_compared_without_building() -> None:
    at = lowered()
    fused = at.branch("fused").apply("map-fusion").apply("vectorization")
    found = fused.compare("main", seconds=None)
    assert found.kernels[0] > found.kernels[1] == fused.at.nodes and found.bytes[0] > found.bytes[1]
    assert found.graph and found.schedules and found.seconds is None and found.speedup is None
    assert "vector for" in "\n".join(line for line in found.schedules if line.startswith("+"))
    assert found.text().startswith("main, version 1 -> fused, version 3")
    same = fused.compare(fused, seconds=None)
    assert not same.graph and not same.schedules and "are the same" in str(same)
    backwards = at.compare(fused, seconds=None)
    assert backwards.bytes == found.bytes[::-1]


def test_versions_are_built_and_run_in_turns() -> None:
    at = session(1)
    found = at.branch("quick").apply("cpu").compare(seconds=0.02)
    assert found.seconds is not None and min(found.seconds) > 0 and found.speedup == found.seconds[0] / found.seconds[1]
    assert found.difference is not None and 0 <= found.difference[0] < 1e-5
    steps = "lower-operators{keep_rules=True}, differentiate, lower-operators"
    assert found.notes[0] == f"captured is not lowered yet: finished by {steps}"
    assert "times as fast" in str(found) and "<details>" in found._repr_html_()


def test_what_cancels_and_what_is_written_over_is_no_difference() -> None:
    """The gradient by a bias before a normalization is rounding alone; running statistics are new in each call."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    found = daceopt.explore(model, torch.randn(2, 3, 6, 6)).apply("cpu").compare(seconds=0.0)
    assert found.difference is not None and found.difference[0] < 1e-5


def test_a_wrong_version_shows_in_the_difference() -> None:
    at = daceopt.explore(chain("Relu", "Relu", "Exp"), np.ones((2, 3), np.float32))
    found = at.apply(ReluTwice("numbers")).compare(seconds=0.0)
    assert found.difference is not None and found.difference[0] > 0.5 and found.difference[1] == "output 0"


def test_one_kernel_alone() -> None:
    at = session(1).apply("cpu")
    report = at.report()
    for label in dict.fromkeys(k.label for k in report.kernels):
        row, found = report.kernel(label), at.measure(label, seconds=0.0)
        assert (found.row.bytes, found.row.flops, found.row.limit) == (row.bytes, row.flops, row.limit)
        assert 0 < found.seconds < 1 and found.share == row.limit / found.seconds and found.runs >= 15
        assert found.intensity == row.flops / row.bytes and "of the limit" in str(found)
    with pytest.raises(Unsupported, match="is an operator, not lowered yet"):
        session().measure("gelu")


def test_a_kernel_alone_computes_what_it_does_among_others() -> None:
    from daceopt.cost.standing_alone import alone

    graph = session(backward=False).apply("cpu").forward
    values = {
        n: np.random.default_rng(k).standard_normal(graph.shape(n)).astype(np.float32)
        for k, n in enumerate(graph.inputs)
    }
    for position, _ in enumerate(graph.nodes()):
        own = alone(graph, [position])
        own.validate()
        assert len(own.nodes()) == 1 and set(own.inputs) <= {*values}
        values |= dict(zip(own.outputs, outputs(own, {n: values[n] for n in own.inputs})))
    for name, exact in zip(graph.outputs, outputs(graph, {n: values[n] for n in graph.inputs})):
        assert relative_error(values[name], exact) < 1e-6


def test_sizes_that_are_open_are_those_of_the_call() -> None:
    model = daceopt.optimized_module(nn.Sequential(nn.Linear(6, 6), nn.Softmax(-1)), dynamic=True, backward=False)
    at = daceopt.explore(model, torch.randn(50, 6)).apply("cpu")
    assert at.forward.symbols and at.at.bytes > 50 * 6 * 4
    assert at.measure("softmax", seconds=0.0).row.bytes == at.report().kernel("softmax").bytes > 50 * 6 * 4
    assert 'extern "C"' in at.measure("softmax", seconds=0.0).text()


def test_measured_reports_finish_what_is_not_lowered() -> None:
    found = session(1).report(measure=True)
    assert any("not lowered yet: finished by" in note for note in found.notes)
    assert all(k.seconds is not None for k in found.kernels) and found.peak > 0
    plain = session().report()
    assert {k.library for k in plain.kernels} == {"operator"} and all(k.seconds is None for k in plain.kernels)
