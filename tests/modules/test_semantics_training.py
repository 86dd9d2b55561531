"""What people do while they train does with an optimized module what it does with the module, in float64 as well."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from daceopt import optimized_module
from tests.numerics import assert_within_rounding
from tests.twins import normal

pytestmark = pytest.mark.usefixtures("interpreted")

Make = Callable[[], nn.Module]


def _image() -> torch.Tensor:
    return normal(3, 2, 4, 5).float()


def _rows() -> torch.Tensor:
    return normal(6, 4).float()


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def _made(make: Make) -> nn.Module:
    """With the same weights each time."""
    torch.manual_seed(0)
    return make()


def _beside(
    make: Make, scenario: Callable[[nn.Module, torch.dtype], list[torch.Tensor]], fallback: str = "raise"
) -> Any:
    """``scenario`` of an optimized module, beside the module in float32 and in float64; returns the optimized one."""
    ours = optimized_module(_made(make), fallback=fallback)
    found = scenario(ours, torch.float32)
    exact = scenario(_made(make).double(), torch.float64)
    usual = scenario(_made(make), torch.float32)
    for mine, wanted, theirs in zip(found, exact, usual, strict=True):
        assert mine.dtype == theirs.dtype
        assert_within_rounding(mine.detach(), wanted.detach(), theirs.detach())
    return ours


def _gradients(module: nn.Module, y: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    y.square().sum().backward()
    return [y, *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def test_a_cumulative_average_of_statistics() -> None:
    """Its factor is a number that the layer makes of a buffer: in one program it stays a tensor."""

    def scenario(module: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        found = []
        for k in range(4):
            if k == 3:
                module[1].reset_running_stats()
            found += _gradients(module, module(_image().to(dtype) * (k + 1) + k))
            found += [module[1].running_mean.clone(), module[1].running_var.clone(), module[1].num_batches_tracked + 0]
        return [*found, module.eval()(_image().to(dtype))]

    _beside(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, momentum=None), nn.ReLU()), scenario)


_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@pytest.mark.parametrize("kind, momentum", [*itertools.product(_LAYERS, [None, 0.3]), (nn.SyncBatchNorm, 0.3)])
def test_an_empty_batch_leaves_running_statistics(kind: type[nn.Module], momentum: float | None) -> None:
    """The layer counts it, and gradients by its weights are zero."""
    spaces = {nn.BatchNorm1d: 0, nn.BatchNorm3d: 3}.get(kind, 2)

    def scenario(module: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        found = []
        for images in (5, 7, 0, 3):
            x = normal(images, 4, *[2] * spaces).to(dtype).exp()
            found += [*_gradients(module, module(x)), *(buffer.clone() for buffer in module.buffers())]
        return found

    _beside(lambda: nn.Sequential(kind(4, momentum=momentum), nn.Tanh()), scenario)


def test_batch_normalization_whose_momentum_is_a_tensor() -> None:
    """Read outside of training, and where no statistics are kept, it changes nothing."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            for name, value in {
                "mean": torch.full((3,), 2.0),
                "var": torch.full((3,), 3.0),
                "share": torch.tensor(0.3),
            }.items():
                self.register_buffer(name, value)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = nn.functional.batch_norm(x, self.mean, self.var, self.weight, None, self.training, self.share)
            return kept + nn.functional.batch_norm(x, None, None, training=True, momentum=self.share)

    def scenario(module: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        found = []
        for training in (True, False):
            found += _gradients(module.train(training), module(_rows()[:, :3].to(dtype)))
            found += [buffer.clone() for buffer in module.buffers()]
        return found

    _beside(Layer, scenario)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_all_or_nothing(p: float) -> None:
    def scenario(module: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        x = _rows().to(dtype).requires_grad_()
        found = _gradients(module, module(x))
        assert x.grad is not None
        return [*found, x.grad, module.eval()(x)]

    _beside(lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(p), nn.Linear(5, 3)), scenario)


class _Nested(nn.Module):
    """A checkpointed region with another inside of it."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.reentrant = reentrant

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.second(x))

    def _outer(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self._inner, torch.tanh(self.first(x)), use_reentrant=self.reentrant)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(checkpoint(self._outer, x, use_reentrant=self.reentrant))


def test_checkpoints_inside_of_checkpoints() -> None:
    def scenario(module: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        return _gradients(module, module(_rows().to(dtype).requires_grad_()))

    _beside(lambda: _Nested(reentrant=False), scenario)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")  # of the outer one's forward
@pytest.mark.parametrize("reentrant", [False, True])
def test_an_optimized_module_in_checkpoints_inside_of_checkpoints(reentrant: bool) -> None:
    def scenario(module: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return checkpoint(module, x * 2, use_reentrant=reentrant).sin()

        return _gradients(module, checkpoint(inner, _rows().to(dtype).requires_grad_(), use_reentrant=reentrant))

    _beside(_perceptron, scenario)


class _Symmetric(nn.Module):
    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


def _parametrized() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    parametrize.register_parametrization(module[0], "weight", _Symmetric())
    parametrizations.weight_norm(module[2])
    return module


@pytest.mark.parametrize("make", [_parametrized, lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)))])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weights_that_are_computed(make: Make) -> None:
    def scenario(module: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        optimizer, found = torch.optim.SGD(module.parameters(), lr=0.1), []
        for _ in range(3):
            found += _gradients(module, module(_rows().to(dtype)))
            optimizer.step()
        return found

    _beside(make, scenario)


def test_a_parametrization_that_comes_and_goes() -> None:
    def scenario(module: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        found = [module(_rows().to(dtype))]
        parametrize.register_parametrization(module[0], "weight", _Symmetric())
        found += _gradients(module, module(_rows().to(dtype)))
        parametrize.remove_parametrizations(module[0], "weight")
        return [*found, *_gradients(module, module(_rows().to(dtype)))]

    _beside(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()), scenario)


def test_averages_of_weights() -> None:
    def scenario(module: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        average = torch.optim.swa_utils.AveragedModel(
            module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8), use_buffers=True
        )
        optimizer, found = torch.optim.SGD(module.parameters(), lr=0.01), []
        for _ in range(3):
            found += _gradients(module, module(_rows().to(dtype)))
            optimizer.step()
            average.update_parameters(module)
            found.append(average(_rows().to(dtype)))
        assert all(p.grad is None or not p.grad.any() for p in average.parameters())
        return [*found, *average.module.parameters()]

    _beside(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), scenario)


def test_parameters_that_are_frozen_and_thawed_between_steps() -> None:
    def scenario(module: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        optimizer, found = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), []
        for frozen in (False, True, False, True, False):
            module[0].requires_grad_(not frozen)
            module.zero_grad()
            found += _gradients(module, module(_rows().to(dtype)))
            assert (module[0].weight.grad is None) == frozen
            optimizer.step()
        return [*found, *module.parameters()]

    ours = _beside(_perceptron, scenario)
    assert ours.daceopt.stats.programs <= 2


def test_training_and_evaluation_in_turn_compile_one_program_each() -> None:
    def scenario(module: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        found = []
        for _ in range(3):
            found += _gradients(module.train(), module(_image().to(dtype)))
            with torch.no_grad():
                found.append(module.eval()(_image().to(dtype)))
        return found

    ours = _beside(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Dropout(1.0)), scenario)
    assert ours.daceopt.stats.programs == 2


class _Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.first(x)).exp() * 0.5
        return self.third(torch.sigmoid(self.second(y)))


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_a_child_whose_hook_was_there_before(kind: str) -> None:
    """Forward hooks are compiled in; around a child with a hook of the backward, the rest still is."""

    def scenario(module: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        seen: list[torch.Tensor] = []
        hooks = {
            "forward": lambda m, a, y: seen.append(y.sum()),
            "forward_pre": lambda m, a: seen.append(a[0].sum()),
            "full_backward": lambda m, d, g: seen.append(g[0].sum()),
        }
        getattr(module.second, f"register_{kind}_hook")(hooks[kind])
        found = _gradients(module, module(_rows().to(dtype)))
        assert len(seen) == 1
        return [*found, *seen]

    ours = _beside(_Blocks, scenario, "silent")
    assert ours.daceopt.stats.programs >= 1
