"""Where the time of a call goes: parts that make up the whole, for calls of every kind."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import daceopt
from daceopt import optimized_module
from daceopt.explore import Report
from daceopt.modules import watched_call
from daceopt.modules.options import Options
from daceopt.modules.watched_call import WatchedModule

OFF = 0.35
"""By how much of the whole its parts may be off: calls that are timed and calls that are not take turns, on a machine
that others use as well."""


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).softmax(-1)
        print(end="")
        return self.last(y).tanh()


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x.tanh()).real.tanh()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.names.append("one more")
        return (x * len(self.names[-1]) + len(self.names)).tanh()


def _parts(model: nn.Module, x: torch.Tensor, **options: Any) -> Mapping[str, float]:
    watched = WatchedModule(model, [x], {}, Options(**options))
    return watched.parts(watched.forward)


@pytest.fixture(scope="module")
def trained() -> Report:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 128))
    return daceopt.explain(model, torch.randn(128, 128), recipe="cpu")


def test_the_parts_make_up_the_call_and_its_backward(trained: Report) -> None:
    assert [call.name for call in trained.calls] == ["call", "backward"]
    for _ in range(3):  # the machine may be disturbed while the calls of one kind run
        if all(abs(call.rest) <= OFF * call.seconds for call in trained.calls):
            break
        model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 128))
        trained.calls = daceopt.explain(model, torch.randn(128, 128), recipe="cpu").calls
    for call in trained.calls:
        assert abs(call.rest) <= OFF * call.seconds and min(call.parts.values()) >= 0
        assert {watched_call.GENERATED, watched_call.LIBRARIES, watched_call.PYTHON} <= call.parts.keys()
    forward = trained.calls[0]
    assert {watched_call.GUARDS, watched_call.BOUNDARY, watched_call.BINDING} <= forward.parts.keys()
    assert (forward.pieces, forward.eager, forward.compiles) == (1, 0, "")


def test_it_is_in_the_text_and_on_the_page(trained: Report) -> None:
    text, page = trained.text(), trained.html()
    for call in trained.calls:
        assert f"a steady {call.name}: " in text and f"A steady {call.name}: " in page
    assert "calls of libraries" in text and "calls of libraries" in page and "of the time" in page
    assert "what to do first" in text


def test_a_call_in_pieces_has_what_runs_between_them() -> None:
    with torch.no_grad():
        watched = WatchedModule(Broken(), [torch.randn(8, 64)], {}, Options(recipe="cpu"))
        parts = watched.parts(watched.forward)
    assert watched.pieces == (2, 0)
    assert parts[watched_call.DYNAMO] > 0 and watched_call.COMPILING not in parts


def test_calls_of_pytorch_from_inside() -> None:
    x = torch.randn(64, 64)
    assert _parts(Spectrum(), x, recipe="cpu")[watched_call.PYTORCH] > 0


@pytest.mark.usefixtures("small_in_eager")
def test_a_call_that_stays_in_eager_pytorch() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4)
    with torch.no_grad():
        (whole,) = daceopt.explain(model, x).calls  # past guards
    (piece,) = daceopt.explain(model, x, backward=False).calls
    for call in (whole, piece):
        assert call.pieces == call.eager == 1 and call.parts[watched_call.EAGER] > 0
        assert watched_call.GENERATED not in call.parts
    assert whole.parts.keys() == {watched_call.EAGER} and piece.parts[watched_call.GUARDS] > 0


def test_calls_that_compile_each_time_say_why() -> None:
    class Growing(nn.Module):
        def forward(self, x: torch.Tensor, state: dict[str, int]) -> torch.Tensor:
            state[str(len(state))] = 1
            return (x * len(state)).tanh()

    watched = WatchedModule(Growing(), [torch.ones(4), {}], {}, Options(recipe="cpu"))
    assert "state" in watched.compiles and watched.parts(watched.forward)[watched_call.COMPILING] > 0


def test_neither_the_model_nor_its_programs_are_changed() -> None:
    model = optimized_module(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)), recipe="cpu")
    x = torch.randn(8, 16)
    model(x)
    before, stats, rng = copy.deepcopy(model.state_dict()), model.daceopt.stats.calls, torch.get_rng_state()
    program = model.daceopt._dispatcher.graphs[-1].program
    run, executable = program.run, program.forward.executable
    daceopt.explain(model, x)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values()))
    assert torch.equal(rng, torch.get_rng_state()) and model.daceopt.stats.calls == stats
    assert program.run == run and program.forward.executable is executable
    assert "outputs" not in vars(program) and all(p.grad is None for p in model.parameters())
