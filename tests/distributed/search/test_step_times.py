"""Library calls and kernels of a step, measured by themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from daceopt.cost.rates import rates
from daceopt.distributed.search import step_times
from daceopt.distributed.search.program_operators import ProgramOperators, by_roofline
from daceopt.distributed.search.step_capture import CapturedStep, capture
from daceopt.distributed.search.training_graph import KernelGroup
from daceopt.ir.control.region import Region
from daceopt.ir.nodes.library import Contraction


class Net(nn.Module):
    """Products, two of them alike, and what is repeated; computes its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.same, self.lstm = nn.Linear(40, 40), nn.Linear(40, 40), nn.LSTM(40, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(self.same(torch.tanh(self.up(x))))[0].square().sum()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def step() -> CapturedStep:
    torch.manual_seed(0)
    return capture(Net(), (torch.randn(6, 2, 40),), world=2)


def test_what_is_alike_is_timed_once(step: CapturedStep, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []
    run = step_times._time
    monkeypatch.setattr(step_times, "_time", lambda nodes, cores: timed.append(len(nodes)) or run(nodes, cores))
    found = step_times.measure(step)
    every = [n for graph in step.program.directions() for n in graph.nodes()]
    wanted = [n for n in every if isinstance(n, Contraction | Region)]
    assert len(wanted) >= 6 and set(wanted) <= set(found.calls), "products and repetitions stand alone"
    assert not found.kernels
    assert all(0 < seconds < 1 for seconds in found.calls.values())
    assert sum(timed) < len(found.calls)
    first = list(timed)
    assert step_times.measure(step) == found and timed == first, "the second time all are known"
    more = step_times.measure(step, kernels=True)
    assert more.calls == found.calls and more.kernels


def test_operators_take_what_was_measured(step: CapturedStep) -> None:
    calls = step_times.measure(step).calls
    plain, known = (ProgramOperators(step.program, rates(), c) for c in ({}, dict.fromkeys(calls, 0.25)))
    seconds = [c.seconds for c in known.graph.computations]
    assert seconds.count(0.25) == len(calls)
    rest = [(a, b.seconds) for a, b in zip(seconds, plain.graph.computations) if a != 0.25]
    assert all(a == b for a, b in rest), "others keep their roofline"
    assert [c.name for c in known.graph.computations] == [c.name for c in plain.graph.computations]


def test_groups_take_what_their_kernels_took(step: CapturedStep) -> None:
    """All of it: what no group writes by name is shared among those of which no kernel writes by name."""
    operators = ProgramOperators(step.program, rates())
    fusible = [k for k, c in enumerate(operators.graph.computations) if c.fusible]
    groups, estimate = [KernelGroup.single(k) for k in fusible], by_roofline(rates())
    first, second, *_ = (next(iter(operators.reach.operators[k].writes)) for k in fusible)
    kernels = [(frozenset([first, second]), 0.5), (frozenset(["forward/another"]), 0.25)]
    known = step_times.of_groups(kernels, operators, groups, estimate)
    assert set(known) == {g.members for g in groups}
    assert sum(known.values()) == pytest.approx(0.75)
    chosen = step_times.prefer_known(known, estimate)
    assert {chosen(operators.reach, groups[0]), chosen(operators.reach, groups[1])} >= {0.5}
    copied = KernelGroup(groups[0].tree, groups[0].members, frozenset())
    assert chosen(operators.reach, copied) == estimate(operators.reach, copied)
