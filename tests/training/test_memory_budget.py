"""Training steps with a memory budget: the same steps in less memory."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import pipeline, training_step
from daceopt.codegen.working_memory import plan_memory
from daceopt.errors import MemoryBudgetError
from daceopt.runtime.invocation import ExecutableEntry
from tests.capture.torch.interpreted import compile_interpreted
from tests.numerics import assert_within_rounding

BATCH, WIDTH = 96, 16


def _model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    layers = [m for _ in range(6) for m in (nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(dropout))]
    return nn.Sequential(*layers)


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(BATCH, WIDTH), torch.randint(0, WIDTH, (BATCH,))


def _steps(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, budget: Any, recipe: str = "cpu"
) -> tuple[list[float], list[torch.Tensor], list[Any]]:
    """Losses and parameters of three steps, and the pairs of programs that ran, interpreted."""
    pairs: list[Any] = []

    def compiled(fingerprint: str, load: Any, **options: Any) -> Any:
        pairs.append(compile_interpreted(fingerprint, load, through=options["recipe"]))
        return pairs[-1]

    monkeypatch.setattr(pipeline, "compile_graph", compiled)
    own = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(own.parameters(), lr=0.01)
    step = training_step(
        own, nn.CrossEntropyLoss(), optimizer, recipe=recipe, memory_budget=budget, fallback="raise", dynamic=False
    )
    torch.manual_seed(2)
    losses = [step(*_batch()).item() for _ in range(3)]
    return losses, [p.detach().clone() for p in own.parameters()], pairs


def test_a_step_within_a_budget_is_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, expected, all_of_it = _steps(monkeypatch, _model(), None)
    losses, parameters, pairs = _steps(monkeypatch, _model(), "60%")
    before, after = (plan_memory(p[0].graphs.program).peak for p in (all_of_it, pairs))
    assert after < 0.8 * before
    reference = _model().double()
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)
    for k in range(3):
        x, target = _batch()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(reference(x.double()), target)
        loss.backward()
        optimizer.step()
        assert losses[k] == pytest.approx(plain[k], rel=1e-5) == pytest.approx(loss.item(), rel=1e-5)
    for ours, usual, exact in zip(parameters, expected, reference.parameters(), strict=True):
        assert_within_rounding(ours, exact, usual)


def test_what_is_dropped_stays_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, expected, _ = _steps(monkeypatch, _model(0.3), None)
    losses, parameters, pairs = _steps(monkeypatch, _model(0.3), "50%")
    assert "again" in pairs[0].report["choice"] and " 0 nodes again" not in pairs[0].report["choice"]
    assert losses == pytest.approx(plain, rel=1e-5)
    for ours, usual in zip(parameters, expected, strict=True):
        torch.testing.assert_close(ours, usual, rtol=1e-4, atol=1e-5)


def test_what_is_computed_again_is_not_fused_with_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, pairs = _steps(monkeypatch, _model(), "60%")
    graph = pairs[0].graphs.forward
    sides = [{graph.apart[n] for n in graph.outputs_of(node) if n in graph.apart} for node in graph.nodes()]
    assert all(len(side) < 2 for side in sides)
    products = [side for node, side in zip(graph.nodes(), sides, strict=True) if node.label == "matmul"]
    assert products[:6] == [{False}] * 6 and products[6:] == [{True}] * len(products[6:]) != []


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x.view(8, -1, WIDTH))[0].reshape(-1, WIDTH))


def test_a_loop_runs_again_with_all_that_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the states and the results of a recurrence neither is stored where it runs again."""
    torch.manual_seed(0)
    model = _Recurrent()
    plain, expected, _ = _steps(monkeypatch, model, None)
    with pytest.raises(MemoryBudgetError) as error:
        _steps(monkeypatch, model, 64)
    found = re.search(r"possible is (\d+)", str(error.value))
    assert found is not None
    losses, parameters, pairs = _steps(monkeypatch, model, int(found[1]))
    assert plan_memory(pairs[0].graphs.program).peak <= int(found[1])
    assert losses == pytest.approx(plain, rel=1e-5)
    for ours, usual in zip(parameters, expected, strict=True):
        torch.testing.assert_close(ours, usual, rtol=1e-4, atol=1e-5)


def test_an_impossible_budget_is_an_error_whatever_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "compile_graph", lambda f, load, **o: compile_interpreted(f, load, o["recipe"]))
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = training_step(model, nn.CrossEntropyLoss(), optimizer, memory_budget=64, recipe="cpu")
    with pytest.raises(MemoryBudgetError, match="memory budget 64: 64 bytes; the least"):
        step(*_batch())


@pytest.mark.parametrize("share", [None, "70%"])
def test_a_built_step_allocates_what_was_planned(monkeypatch: pytest.MonkeyPatch, share: Any) -> None:
    """Convolutions, normalizations and relu: compiled, and beside a step in float64."""
    arenas: list[int] = []
    invoke = ExecutableEntry.invoke

    def noted(self: Any, inputs: Any, outputs: Any, saved: Any, seed: Any, symbols: Any, arena: int) -> None:
        arenas.append(arena + (0 if saved is None else saved.numel()))
        invoke(self, inputs, outputs, saved, seed, symbols, arena)

    monkeypatch.setattr(ExecutableEntry, "invoke", noted)
    pairs: list[Any] = []
    compiled = pipeline.compile_graph
    monkeypatch.setattr(pipeline, "compile_graph", lambda *a, **o: pairs.append(compiled(*a, **o)) or pairs[-1])
    torch.manual_seed(0)
    blocks = [m for _ in range(4) for m in (nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(4 * 8 * 8, 3))
    x, target = torch.randn(4, 4, 8, 8), torch.tensor([0, 2, 1, 1])
    usual, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    step = training_step(
        model,
        nn.CrossEntropyLoss(),
        torch.optim.SGD(model.parameters(), lr=0.05),
        recipe="cpu",
        memory_budget=share,
        fallback="raise",
        dynamic=False,
    )
    found, losses = step(x, target), []
    (pair,) = pairs
    assert arenas == [plan_memory(pair.graphs.program).peak]
    assert share is None or ", computes 0 nodes again" not in pair.report["choice"]
    for reference, values in ((usual, x), (exact, x.double())):
        losses.append(nn.functional.cross_entropy(reference(values), target))
        losses[-1].backward()
        torch.optim.SGD(reference.parameters(), lr=0.05).step()
    assert_within_rounding(found, losses[1].detach(), losses[0].detach())
    for ours, theirs, wanted in zip(model.parameters(), usual.parameters(), exact.parameters(), strict=True):
        assert_within_rounding(ours, wanted, theirs)
