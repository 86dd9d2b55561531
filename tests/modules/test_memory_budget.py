"""Modules with a memory budget: what they allocate, what their gradients are, and what they say."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import daceopt
from daceopt import optimized_module
from daceopt.capture.torch.eager_memory import saved_bytes
from daceopt.codegen.working_memory import plan_memory
from daceopt.errors import MemoryBudgetError
from daceopt.runtime.invocation import ExecutableEntry
from tests.numerics import assert_within_rounding

WIDTH, ROWS = 64, 256
ARRAY = 4 * WIDTH * ROWS


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(WIDTH, WIDTH), nn.GELU())))


def _gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    y = model(x)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def _eager(model: nn.Module, x: torch.Tensor) -> int:
    """What autograd saves beside arguments, counted on real tensors."""
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    given = {t.untyped_storage().data_ptr() for t in (x, *model.parameters(), *model.buffers())}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        _kept = model(x)
    return sum(s.nbytes() for address, s in storages.items() if address not in given)


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """(outputs, saved block, arena) in bytes, of each program that ran."""
    found: list[tuple[int, int, int]] = []
    invoke = ExecutableEntry.invoke

    def noted(
        self: Any, inputs: Any, outputs: Any, saved: torch.Tensor | None, seed: Any, symbols: Any, arena: int
    ) -> None:
        found.append((sum(t.nbytes for t in outputs), 0 if saved is None else saved.numel(), arena))
        invoke(self, inputs, outputs, saved, seed, symbols, arena)

    monkeypatch.setattr(ExecutableEntry, "invoke", noted)
    return found


def test_a_module_stays_within_its_budget_with_the_same_gradients(allocated: list[tuple[int, int, int]]) -> None:
    model, x = _network(), torch.randn(ROWS, WIDTH)
    budget = int(0.75 * _eager(model, x))
    assert _eager(model, x) == 11 * ARRAY  # all but the result itself, which nothing needs
    ours = optimized_module(copy.deepcopy(model), memory_budget="75%", fallback="raise")
    found = _gradients(ours, x)
    (forward, backward) = allocated
    taken = backward[1] + max(forward[2], backward[2])
    assert 0 < taken <= budget and forward[1] == backward[1]
    (graph,) = ours.forward.dispatcher.graphs
    plan = plan_memory(graph.pair.graphs.program)
    assert plan.peak == taken  # what was planned is what is allocated, to the byte
    assert plan.saved_bytes == backward[1] and [d.arena for d in plan.directions] == [forward[2], backward[2]]
    assert forward[0] == ARRAY  # the result
    assert backward[0] == sum(p.nbytes for p in model.parameters())  # the gradients
    expected = _gradients(copy.deepcopy(model).double(), x.double())
    for ours_, eager, exact in zip(found, _gradients(model, x), expected, strict=True):
        assert_within_rounding(ours_, exact, eager)


def test_a_budget_that_is_impossible_says_what_is_possible_and_what_holds_it() -> None:
    ours = optimized_module(_network(), memory_budget=ARRAY)
    with pytest.raises(MemoryBudgetError, match=rf"{ARRAY} bytes; the least .* possible is \d+.*most is held by \w+"):
        ours(torch.randn(ROWS, WIDTH))


def test_a_budget_that_is_impossible_for_open_sizes() -> None:
    ours = optimized_module(_network(), memory_budget=ARRAY, dynamic=True)
    with pytest.raises(MemoryBudgetError, match=r"the least .* possible is \d+"):
        ours(torch.randn(ROWS, WIDTH))


def test_a_budget_is_ignored_where_nothing_is_differentiated() -> None:
    ours = optimized_module(_network(), memory_budget=64, fallback="raise")
    with torch.no_grad():
        assert ours(torch.randn(3, WIDTH)).shape == (3, WIDTH)


def test_explain_shows_the_peak_and_what_is_alive() -> None:
    ours = optimized_module(_network(), memory_budget="75%", fallback="raise")
    report = daceopt.explain(ours, torch.randn(ROWS, WIDTH), measure=False)
    assert report.reason == ""
    assert 0 < report.saved < report.peak <= 0.75 * 11 * ARRAY
    assert max(row.bytes for row in report.memory) <= report.peak
    assert {row.direction for row in report.memory} == {"forward", "backward"}
    text, page = str(report), report.html()
    assert "memory: at most" in text and "saved for the backward" in text
    assert page.count("<title>") > len(report.memory)
    assert any(note.startswith("memory: ") for note in report.notes)


def test_what_eager_saves_is_known_without_running_it() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.line = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = nn.functional.dropout(torch.relu(self.norm(self.conv(x))), 0.5)
            return self.line(nn.functional.max_pool2d(y, 2).mean((2, 3)))

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(6, 4, num_layers=2, batch_first=True, dropout=0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0]  # by oneDNN, whose workspace has no size where tensors are fake

    examples = (_network(), (5, WIDTH)), (Net(), (2, 3, 9, 9)), (Recurrent(), (2, 7, 6))
    for model, x in ((m, torch.randn(shape)) for m, shape in examples):
        found: list[int] = []

        def backend(graph: Any, inputs: Any, found: list[int] = found, **_: Any) -> Any:
            from daceopt.modules.description import describe

            state = torch.random.get_rng_state()
            found.append(saved_bytes(describe(graph, inputs)))
            assert torch.equal(torch.random.get_rng_state(), state)  # nobody's random numbers are drawn
            return graph.forward

        with torch._dynamo.config.patch(allow_rnn=True):
            torch.compile(model, backend=backend, dynamic=False)(x)
        assert found == [_eager(model, x)]
        torch._dynamo.reset()
