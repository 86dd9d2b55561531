"""``simulate``: from a module, a file or a graph to a report; outputs are the model's, and the HTML stands alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import daceopt
from daceopt import recipes
from daceopt.cost import machines
from daceopt.errors import DaceoptError
from daceopt.explore.simulation.simulation_page import occupancy
from daceopt.explore.simulation.simulation_report import SimulationReport
from daceopt.ir.graph.placements import LEVELS
from tests.numerics import assert_within_rounding

LOCAL = recipes.get("layer-wise") + "core-binding"


class Small(nn.Module):
    """Two convolutions, a residual, a pool and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.pool, self.last = nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Linear(8 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, 16, 16] -> [N, 10]."""
        y = torch.relu(self.first(x))
        return self.last(self.pool(torch.relu(self.norm(self.second(y)) + y)).flatten(1))


@pytest.fixture(scope="module")
def model() -> Small:
    torch.manual_seed(0)
    return Small().train()


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def found(model: Small, x: torch.Tensor) -> SimulationReport:
    return daceopt.simulate(model, x, recipe=LOCAL)


def test_outputs_are_the_models(model: Small, x: torch.Tensor, found: SimulationReport) -> None:
    assert model.training and model.norm.training
    with torch.no_grad():
        exact = model.double().eval()(x.double()).numpy()
        eager = model.float()(x).numpy()
    model.train()
    (ours,) = found.outputs
    assert_within_rounding(ours, exact, eager)


def test_local_buffers_save_memory_traffic_and_time(model: Small, x: torch.Tensor, found: SimulationReport) -> None:
    plain = daceopt.simulate(model, x, recipe="layer-wise", keep="memory", pipelined=False)
    assert plain.run.places_by_level()["memory"] == len(plain.placements) == plain.run.kernels
    assert found.run.places_by_level()["memory"] == 1
    assert found.traffic["memory"] < plain.traffic["memory"]
    assert found.cycles < plain.cycles and found.seconds == pytest.approx(found.cycles / 1e9, rel=1e-4)
    assert set(found.traffic) == {*LEVELS, "exchange"}
    assert {step.name.partition("{")[0] for step in found.history} >= {"core-binding", "lower-operators"}


def test_a_graph_is_taken_as_it_is(found: SimulationReport) -> None:
    again = daceopt.simulate(found.graph, *found.values.values())
    assert again.cycles == found.cycles and again.traffic == found.traffic
    np.testing.assert_array_equal(again.outputs[0], found.outputs[0])
    with pytest.raises(DaceoptError, match="takes 1 inputs"):
        daceopt.simulate(found.graph, 1, 2)


def test_the_html_needs_nothing_else(found: SimulationReport, tmp_path: Path) -> None:
    page = found.to_html(tmp_path / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and page.count("<svg") == 2 + len(found.run.busy)
    assert not re.search(r"(?:src|href)\s*=|https?://|@import", page)
    assert "Small" in found._repr_html_() and "<html" not in found._repr_html_()
    assert str(found).startswith("Small on stcp920: ") and f"{found.cycles} cycles" in str(found)


def test_moments_add_up_to_what_units_did(found: SimulationReport) -> None:
    for unit, shares in occupancy(found.run, 40).items():
        assert sum(shares) / 40 == pytest.approx(found.run.busy[unit], abs=1e-6)


def test_names_are_escaped(found: SimulationReport, tmp_path: Path) -> None:
    found.title, title = "<script>alert(1)</script>", found.title
    try:
        assert "<script>alert" not in found.to_html(tmp_path / "report.html").read_text()
    finally:
        found.title = title


def test_other_machines(model: Small, x: torch.Tensor, found: SimulationReport) -> None:
    times = {m: daceopt.simulate(found.graph, x, machine=m).seconds for m in ("stcp920", "ascend910", "ipu", "h200")}
    assert all(0 < seconds < 1 for seconds in times.values()) and len(set(times.values())) == 4


def test_instances_compute_the_same_with_less_traffic(model: Small, x: torch.Tensor) -> None:
    """On a cluster whose shared buffer has room for the half of a batch."""
    stcp = machines.get("stcp920")
    small = replace(stcp, name="small", local=replace(stcp.local, size=4096, reserved=1024))
    small = replace(small, shared=replace(stcp.shared, size=22_000, reserved=2_000))
    plain = daceopt.simulate(model, x, machine=small, recipe="layer-wise", keep="memory", pipelined=False)
    split = daceopt.simulate(model, x, machine=small)
    groups = split.graph.sub_graphs
    assert any(group.is_split and group.count > 1 for group in groups)
    assert split.traffic["memory"] < plain.traffic["memory"] and split.cycles < plain.cycles
    assert_within_rounding(split.outputs[0], plain.outputs[0].astype(np.float64), plain.outputs[0])


@pytest.mark.parametrize("machine", ["stcp920", "h200", "goya"])
def test_it_is_never_slower_than_layer_by_layer(model: Small, x: torch.Tensor, machine: str) -> None:
    plain = daceopt.simulate(model, x, machine=machine, recipe="layer-wise", keep="memory", pipelined=False)
    ours = daceopt.simulate(model, x, machine=machine)
    assert ours.seconds <= plain.seconds
    assert "instances for shared buffers" in ours.choice and "no instances" in ours.choice
    assert f"plan: {ours.choice}" in str(ours)


def test_what_is_no_model() -> None:
    with pytest.raises(TypeError, match="takes an nn.Module, an ONNX file or a Graph, not int"):
        daceopt.simulate(3)


def test_a_broken_graph_says_why() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            torch._dynamo.graph_break()
            return y * 2

    with pytest.raises(DaceoptError, match="no single graph"):
        daceopt.simulate(Broken(), torch.ones(4), recipe="layer-wise")
