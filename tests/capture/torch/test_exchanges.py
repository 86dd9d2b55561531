"""Writes by ``.data``, and assignments to it: numbers, gradients and memory beside those of eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from daceopt import optimized_module, training_step
from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted
from tests.twins import normal


def _by_operator(w: torch.Tensor) -> None:
    w.data *= 2


def _by_value(w: torch.Tensor) -> None:
    w.data = w.data * 2 + 1


def _twice(w: torch.Tensor) -> None:
    w.data = torch.lerp(w.data, w.data * 2, 0.1)
    w.data *= 3
    w.data = w.data.clamp(-1, 1)


def _of_what_is_differentiated(w: torch.Tensor) -> None:
    w.data = w * 3


WRITES = {f.__name__: f for f in (_by_operator, _by_value, _twice, _of_what_is_differentiated)}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("is_recorded", [True, False])
def test_what_is_read_after_it_has_the_gradient_of_the_argument(write: Callable[..., Any], is_recorded: bool) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.set_grad_enabled(is_recorded):
            write(w)
        return F.linear(x, w), w.square(), w.sum() * x

    check(fn, normal(2, 4), normal(3, 4))


def test_a_value_of_the_call_is_written() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        value = x * 3
        value.data *= 2
        return value.square()

    check(fn, normal(2, 4))


def _read_on(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    value = w.data * 2
    w.data = value
    return F.linear(x, w) + value.sum()


def test_a_value_is_read_after_an_argument_has_got_its_memory() -> None:
    check(_read_on, normal(2, 4), normal(3, 4))


def _swap(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    before = w.data
    w.data = before * 2
    result = F.linear(x, w)
    w.data = before
    return result


def _view(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    row = w[0]
    w.data = w.data * 2
    return F.linear(x, w) + row.sum()


def _returned(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    value = w.data * 2
    w.data = value
    return F.linear(x, w), value


def _written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    value = w.data * 2
    w.data = value
    w.data.add_(1)
    return F.linear(x, w) + value.sum()


def _other_strides(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    w.data = (w.data * 2).t().contiguous().t()
    return F.linear(x, w)


def _of_an_argument(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    w.data = x.data[:3]
    return w * 2


def _read_before(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    result = F.linear(x, w)
    w.data.mul_(3)
    return result


def _exchanged_after(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    result = w * w
    w.data = w.data * 3
    return result + x.sum()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w = ctx.saved_tensors
        return gradient * w, gradient * x


def _read_before_by_a_custom_function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    result = _Product.apply(x[:3], w)
    w.data.mul_(3)
    return result


def _again_in_backward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: (_by_operator(w), x @ w.t())[1], x, use_reentrant=False)


REFUSED = {
    _swap: "or its own",
    _view: "is read after that got other memory",
    _returned: "is written or returned after",
    _written: "is written or returned after",
    _other_strides: "gets memory of another kind",
    _of_an_argument: "which another tensor has",
    _read_before_by_a_custom_function: "reads l_w_ before a later write",
    _again_in_backward: "or its own",
    _read_before: "after a later write by .data",
    _exchanged_after: "after a later write by .data",
}


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd")
@pytest.mark.parametrize(("fn", "reason"), REFUSED.items())
def test_what_could_be_told_from_a_copy_is_refused(fn: Callable[..., Any], reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        _compiled(fn)(normal(5, 4).requires_grad_(), normal(3, 4).requires_grad_())


def _compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    made: Callable[..., Any] = torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True, dynamic=False)(
        fn
    )
    return made


class _Masked(nn.Conv2d):
    """As PixelCNN's: each call sets weights to zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data *= torch.ones_like(self.weight).tril()
        return super().forward(x)


class _Bounded(nn.Linear):
    """Its rows have a norm of at most 0.3."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=0.3)
        return super().forward(x)


class _Clipped(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for parameter in self.parameters():
            parameter.data.clamp_(-0.2, 0.2)
        result: torch.Tensor = super().forward(x)
        return result


class _Averaged(nn.Module):
    """A network beside the average of what it was, as of BYOL."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4))
        self.target = copy.deepcopy(self.online)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.online.parameters()):
                old.data = old.data * 0.9 + new.data * 0.1
            self.mean.data = self.mean.data * 0.5 + x.mean(0)
            target = self.target(x)
        result: torch.Tensor = self.online(x - self.mean) - target
        return result


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _Bounded(4, 4), _Bounded(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(x).relu())
        return result


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "masked": (lambda: nn.Sequential(_Masked(2, 3, 3), nn.ReLU(), _Masked(3, 2, 3)), (2, 2, 6, 6)),
    "bounded": (lambda: nn.Sequential(_Bounded(4, 5), nn.ReLU(), _Bounded(5, 3)), (3, 4)),
    "clipped": (lambda: _Clipped(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)), (3, 4)),
    "averaged": (_Averaged, (3, 4)),
    "tied": (_Tied, (3, 4)),
}


@pytest.mark.share(2)
@pytest.mark.parametrize(("make", "shape"), MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("calls", [1, 2])
def test_steps_of_training(make: Callable[[], nn.Module], shape: tuple[int, ...], calls: int) -> None:
    """Also where a module is called twice before backward."""
    torch.manual_seed(0)
    own = make().double()
    twin = copy.deepcopy(own)
    _train(own, _compiled(own), shape, calls)
    _train(twin, twin, shape, calls)
    for (name, ours), theirs in zip(own.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=lambda text, name=name: f"{name}: {text}")


def _train(module: nn.Module, call: Callable[..., Any], shape: tuple[int, ...], calls: int) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for k in range(3):
        optimizer.zero_grad()
        sum(call(normal(*shape) + i + k).square().mean() for i in range(calls)).backward()
        optimizer.step()


def test_what_had_the_memory_before_keeps_it() -> None:
    """Autograd is not told of any write, and what is written in place stays where it is."""
    module = nn.Sequential(_Bounded(4, 5), _Clipped(nn.Linear(5, 5))).double()
    weights = module[0].weight, module[1][0].weight
    versions, former = [w._version for w in weights], [w.data for w in weights]
    before = former[0].clone()
    _compiled(module)(normal(3, 4) * 3).sum().backward()
    assert torch.equal(former[0], before) and not torch.equal(weights[0], before)
    assert former[1].data_ptr() == weights[1].data_ptr()
    assert weights[0].untyped_storage().nbytes() == weights[0].nbytes
    assert [w._version for w in weights] == versions


def test_a_gradient_of_what_another_call_has_changed_is_refused() -> None:
    """Eager PyTorch computes with some of the old numbers, and some new ones."""

    def fn(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        mean.data = mean.data * 0.5 + x.detach()
        return (x - mean) * x * mean

    call, mean, x = _compiled(fn), normal(4), normal(4).requires_grad_()
    first = call(x, mean)
    second = call(x, mean)
    second.sum().backward()
    with pytest.raises(RuntimeError, match=r"changed by \.data in a later call"):
        first.sum().backward()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_gradient_of_a_gradient_wants_what_was_there_before(write: Callable[..., Any]) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        write(w)
        return (x * w).square()

    x, w = normal(3).requires_grad_(), normal(3).requires_grad_()
    result = _compiled(fn)(x, w)
    with pytest.raises(RuntimeError, match="was written into since"):
        torch.autograd.grad(result.sum(), (x, w), create_graph=True)


def test_a_compiled_module_is_whole() -> None:
    module = nn.Sequential(_Masked(2, 3, 3), nn.ReLU(), nn.Flatten(), _Bounded(48, 3))
    twin, x = copy.deepcopy(module), normal(2, 2, 6, 6).float()
    own = optimized_module(module, fallback="raise")
    for call in (own, twin):
        for _ in range(2):
            call(x).square().sum().backward()
    for ours, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)


def test_an_optimizer_does_not_update_what_forward_writes() -> None:
    module = _Clipped(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(Exception, match="which the optimizer updates, is written in forward"):
        training_step(module, nn.MSELoss(), optimizer, fallback="raise")(normal(3, 4).float(), normal(3, 1).float())
