"""The memory between forward and backward: what is overwritten when, and what PyTorch promises of it all the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import optimized_module
from daceopt.codegen.working_memory import plan_memory
from daceopt.errors import DaceoptError
from daceopt.runtime.executable import Executable
from tests.numerics import assert_within_rounding

WIDTH, ROWS = 32, 24


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(WIDTH, WIDTH), nn.GELU())))


@pytest.fixture(scope="module")
def ours() -> nn.Module:
    torch._dynamo.reset()
    module = optimized_module(_network(), fallback="raise", dynamic=False)
    module(_x(torch.float32)).sum().backward()
    (graph,) = module.forward.dispatcher.graphs
    assert graph.pair.backward.manifest.consumes  # else these tests say nothing
    return module


@pytest.fixture(autouse=True)
def _fresh(ours: nn.Module) -> None:
    ours.zero_grad()


def _x(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()


def _weights(y: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)


def _check(ours: nn.Module, run: Any) -> None:
    """``run(module, x)`` gives tensors: as in eager PyTorch, beside float64."""
    results = [run(ours, _x(torch.float32))]
    for module, dtype in ((_network().double(), torch.float64), (_network(), torch.float32)):
        results.append(run(module, _x(dtype)))
    for mine, exact, usual in zip(*results, strict=True):
        assert_within_rounding(mine, exact, usual)


def test_one_backward_after_the_other(ours: nn.Module) -> None:
    def run(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        y = module(x)
        found = []
        for k in range(3):
            loss = (y * _weights(y) * (k + 1)).sum()
            found += torch.autograd.grad(loss, [x, *module.parameters()], retain_graph=k < 2)
        return found

    _check(ours, run)


def test_the_last_of_several_frees_what_was_saved(ours: nn.Module) -> None:
    y = ours(_x(torch.float32))
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


def test_calls_that_wait_for_their_backward_keep_their_own(ours: nn.Module) -> None:
    def run(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        calls = [module(x * (k + 1)) for k in range(3)]
        found = []
        for y in (calls[1], calls[0], calls[2]):
            found += torch.autograd.grad((y * _weights(y)).sum(), [x, *module.parameters()], retain_graph=y is calls[1])
        return [*found, *torch.autograd.grad((calls[1] * 2).sum(), [*module.parameters()])]

    _check(ours, run)


def test_batches_of_gradients_each_read_what_was_saved(ours: nn.Module) -> None:
    def run(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        y = module(x)
        seeds = torch.stack([_weights(y) * (k + 1) for k in range(3)])
        return list(torch.autograd.grad(y, [x, *module.parameters()], seeds, is_grads_batched=True))

    _check(ours, run)


def test_a_backward_that_failed_cannot_run_on_what_it_has_overwritten(
    ours: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = ours(_x(torch.float32))
    run = Executable.run

    def failing(self: Executable, *arguments: Any) -> None:
        run(self, *arguments)
        raise DaceoptError("late")

    monkeypatch.setattr(Executable, "run", failing)
    with pytest.raises(DaceoptError, match="late"):
        y.sum().backward()
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


def test_what_hooks_packed_is_what_they_unpack(ours: nn.Module) -> None:
    def run(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
            y = module(x)
        first = torch.autograd.grad((y * _weights(y)).sum(), [x, *module.parameters()], retain_graph=True)
        return [*first, *torch.autograd.grad((y * _weights(y)).sum(), [x, *module.parameters()])]

    _check(ours, run)


def test_intermediates_stand_in_memory_that_nobody_needs(ours: nn.Module) -> None:
    """Beside the saved block there is next to nothing."""
    (graph,) = ours.forward.dispatcher.graphs
    memory = plan_memory(graph.pair.graphs.program)
    array = 4 * WIDTH * ROWS
    assert memory.saved_bytes >= 3 * array
    assert max(d.arena for d in memory.directions) <= array
    assert max(m.bytes for d in memory.directions for m in d.moments) <= memory.peak


def test_attention_keeps_no_weights() -> None:
    torch._dynamo.reset()

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 24)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.inner(x).chunk(3, -1)
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    torch.manual_seed(0)
    usual = Attention()
    ours, exact = optimized_module(copy.deepcopy(usual), fallback="raise", dynamic=False), copy.deepcopy(usual).double()
    x = torch.randn(2, 3, 64, 8)
    results = []
    for module, values in ((ours, x), (exact, x.double()), (usual, x)):
        y = module(values)
        results.append([y, *torch.autograd.grad((y * _weights(y)).sum(), list(module.parameters()))])
    for mine, wanted, theirs in zip(*results, strict=True):
        assert_within_rounding(mine.detach(), wanted.detach(), theirs.detach())
    (graph,) = ours.forward.dispatcher.graphs
    weights = 2 * 3 * 64 * 64 * 4
    assert plan_memory(graph.pair.graphs.program).saved_bytes < weights
