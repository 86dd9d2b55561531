"""Attention in modules through the recipe ``gpu``: one operation of torch's in each direction.

Here with the kernels that torch has for the host; where there is a device, with flash, cuDNN's and the memory-efficient
one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from daceopt import optimized_module, training_step
from tests.modules.devices import on_device

WIDTH, HEADS = 64, 4


class _Heads(nn.Module):
    """Projections around attention, as people write it."""

    def __init__(
        self, spelled_out: bool = False, causal: bool = False, shared: int = HEADS, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.spelled_out, self.causal, self.shared, self.dropout = spelled_out, causal, shared, dropout
        self.repeated = False  # keys and values, for kernels that want a head of them for each of the queries
        self.size = WIDTH // HEADS
        self.mixed, self.out = nn.Linear(WIDTH, WIDTH + 2 * shared * self.size), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        parts = self.mixed(x).split([WIDTH, self.shared * self.size, self.shared * self.size], -1)
        q, k, v = (t.unflatten(-1, (-1, self.size)).transpose(1, 2) for t in parts)
        if self.repeated:
            k, v = (t.repeat_interleave(HEADS // self.shared, 1) for t in (k, v))
        if self.spelled_out:
            scores = q @ k.transpose(-1, -2) / self.size**0.5
            y = torch.softmax(scores if mask is None else scores + mask, -1) @ v
        else:
            y = functional.scaled_dot_product_attention(
                q, k, v, mask, self.dropout, self.causal, enable_gqa=self.shared != HEADS and not self.repeated
            )
        return self.out(y.transpose(1, 2).flatten(2))


def _layer(**settings: Any) -> nn.Module:
    settings = {"dropout": 0.0, "activation": "gelu", "batch_first": True} | settings
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, **settings)


Call = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _mask() -> torch.Tensor:
    return torch.rand(40, 40) > 0.3


CASES: dict[str, Callable[[], Call]] = {
    "layer": lambda: (_layer(), (torch.randn(2, 40, WIDTH),)),
    "layer, norm first": lambda: (_layer(norm_first=True), (torch.randn(2, 40, WIDTH),)),
    "function": lambda: (_Heads(), (torch.randn(2, 40, WIDTH),)),
    "spelled out": lambda: (_Heads(spelled_out=True), (torch.randn(2, 40, WIDTH),)),
    "causal": lambda: (_Heads(causal=True), (torch.randn(2, 40, WIDTH),)),
    "shared": lambda: (_Heads(shared=2), (torch.randn(2, 40, WIDTH),)),
    "masked": lambda: (_Heads(), (torch.randn(2, 40, WIDTH), _mask())),
    "added": lambda: (_Heads(), (torch.randn(2, 40, WIDTH), torch.randn(40, 40))),
    "shared, masked": lambda: (_Heads(shared=2), (torch.randn(2, 40, WIDTH), _mask())),
    "long": lambda: (_Heads(), (torch.randn(2, 64, WIDTH),)),
}
NARROW_TOO = {"layer", "function", "spelled out", "causal", "shared", "masked"}


def _fused(net: Any) -> int:
    """How many attentions became one operation."""
    return sum(len(r["sites"]) for r in net.daceopt.history if r["name"].startswith("attention-fusing"))


def _gradients(
    net: Any, inputs: tuple[torch.Tensor, ...], device: str, dtype: torch.dtype | None
) -> list[torch.Tensor]:
    net.zero_grad(set_to_none=True)
    x = inputs[0].clone().requires_grad_()
    with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
        y = net(x, *inputs[1:])
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).to(y.device, y.dtype)
    (y * weights).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in net.parameters())]


def _check(
    name: str, device: str, recipe: str, dtype: torch.dtype | None = None, kernels: tuple[SDPBackend, ...] | None = None
) -> None:
    """Results and gradients beside float64, where eager PyTorch's own are about as far away: by the kernel that it
    takes, and for float32 on a device, whose memory-efficient kernel rounds more than products do, by that one."""
    torch.manual_seed(0)
    module, inputs = CASES[name]()
    module, inputs = module.to(device), tuple(t.to(device) for t in inputs)
    wide = copy.deepcopy(module).double()
    net = optimized_module(copy.deepcopy(module), recipe=recipe, fallback="raise")
    doubles = tuple(t.double() if t.is_floating_point() else t for t in inputs)
    with sdpa_kernel(SDPBackend.MATH):
        exact = _gradients(wide, doubles, device, None)
    peers = [_gradients(module, inputs, device, dtype)]
    if device == "cuda" and dtype is None and isinstance(module, _Heads):
        fused = copy.deepcopy(module)
        fused.spelled_out, fused.repeated = False, fused.shared != HEADS
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            peers.append(_gradients(fused, inputs, device, None))
    with sdpa_kernel(list(kernels or SDPBackend.__members__.values())):
        ours = _gradients(net, inputs, device, dtype)
    assert _fused(net) == 1 and not net.daceopt.stats.eager_calls
    step = torch.finfo(dtype or torch.float32).eps
    for mine, right, *others in zip(ours, exact, *peers, strict=True):
        assert (mine.dtype, mine.device, mine.stride()) == (others[0].dtype, others[0].device, others[0].stride())
        error, *errors = ((t.double() - right).norm() for t in (mine, *others))
        peer = max(errors)
        assert error <= 1.5 * peer + 2 * step * right.norm(), f"off by {error}, eager by {peer}"


@pytest.mark.slow
@pytest.mark.share(6)
@pytest.mark.parametrize("name", CASES)
def test_a_module(name: str, emulated: None) -> None:
    _check(name, "cpu", "gpu")


@pytest.mark.slow
@pytest.mark.share(12)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(NARROW_TOO))
def test_autocast(name: str, dtype: torch.dtype, emulated: None) -> None:
    _check(name, "cpu", "gpu", dtype)


def test_attention_without_gradients(emulated: None) -> None:
    torch.manual_seed(0)
    module, x = _layer().eval(), torch.randn(2, 40, WIDTH)
    net = optimized_module(copy.deepcopy(module), recipe="gpu", fallback="raise")
    with torch.no_grad():
        torch.testing.assert_close(net(x), module(x), rtol=1e-5, atol=1e-5)
    assert _fused(net) == 1


class _Bare(nn.Module):
    """Arguments and results are those of the operation, or views of them."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = functional.scaled_dot_product_attention(q, k, v)
        return y, functional.scaled_dot_product_attention(k, q, v).transpose(1, 2)


def test_operands_and_results_of_any_layout(emulated: None) -> None:
    """What PyTorch promises of strides holds for results and gradients that the operation itself writes."""
    torch.manual_seed(0)
    net = optimized_module(_Bare(), recipe="gpu", fallback="raise")
    whole = [torch.randn(2, 40, 4, 8) for _ in range(3)]
    wide = torch.randn(2, 4, 40, 48)
    for operands in (
        [t.transpose(1, 2).contiguous() for t in whole],
        [t.transpose(1, 2) for t in whole],
        list(wide[..., :24].split(8, -1)),
        list(wide[..., 1::2].split(8, -1)),
    ):
        found = []
        for module in (net, _Bare()):
            given = [t.detach().requires_grad_() for t in operands]
            first, second = module(*given)
            loss = (first * torch.arange(8.0)).sum() + (second * torch.arange(8.0)).pow(2).sum()
            found.append([first.detach(), second.detach(), *torch.autograd.grad(loss, given)])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert _fused(net) == 2


def test_weights_dropped_at_random_are_those_of_other_targets(emulated: None) -> None:
    x, found = torch.randn(2, 40, WIDTH), []
    module = _Heads(dropout=0.3)
    for recipe in ("gpu", "cpu"):
        torch.manual_seed(3)
        net = optimized_module(copy.deepcopy(module), recipe=recipe, fallback="raise")
        found.append(net(x).detach())
        assert _fused(net) == 0
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_a_gradient_of_a_gradient_is_of_products(emulated: None) -> None:
    """The first gradient is that of the operation, what is differentiated again is spelled out."""

    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(q, k, v)

    def gradients(net: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(0)
        inputs = [torch.randn(2, 2, 5, 8, requires_grad=True) for _ in range(3)]
        first = torch.autograd.grad(net(*inputs).pow(3).sum(), inputs, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.pow(2).sum() for g in first), inputs)]

    net = optimized_module(Attention(), recipe="gpu", fallback="raise")
    with sdpa_kernel(SDPBackend.MATH):
        expected = gradients(Attention())
    for ours, theirs in zip(gradients(net), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def _check_step(device: str, recipe: str, dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    plain = _layer().to(device)
    ours, wide = copy.deepcopy(plain), copy.deepcopy(plain).double()
    step = training_step(ours, nn.MSELoss(), torch.optim.SGD(ours.parameters(), 0.1), recipe=recipe, fallback="raise")
    others = [(m, torch.optim.SGD(m.parameters(), 0.1)) for m in (plain, wide)]
    for _ in range(2):
        x, target = (torch.randn(2, 40, WIDTH, device=device) for _ in range(2))
        with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
            step(x, target)
        for module, optimizer in others:
            kind = next(module.parameters()).dtype
            optimizer.zero_grad()
            narrow = dtype is not None and kind is torch.float32
            with torch.autocast(device, dtype or torch.bfloat16, enabled=narrow):
                loss = functional.mse_loss(module(x.to(kind)), target.to(kind))
            loss.backward()
            optimizer.step()
    eps = torch.finfo(dtype or torch.float32).eps
    for mine, single, exact in zip(ours.parameters(), plain.parameters(), wide.parameters(), strict=True):
        error, peer = ((p.double() - exact).norm() for p in (mine, single))
        assert error <= 2 * peer + 2 * eps * exact.norm()


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_training_step(dtype: torch.dtype | None, emulated: None) -> None:
    _check_step("cpu", "gpu", dtype)


# -------------------------------------------------------------------- on a device


@on_device
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_a_module_on_a_device(name: str, dtype: torch.dtype | None) -> None:
    """With the kernel that torch takes."""
    _check(name, "cuda", "auto", dtype)


_FLASH, _WHOLE = (SDPBackend.FLASH_ATTENTION,), (SDPBackend.EFFICIENT_ATTENTION,)


@on_device
@pytest.mark.parametrize(
    ("name", "dtype", "kernels"),
    [
        *((name, torch.bfloat16, _FLASH) for name in ("layer", "function", "spelled out", "causal", "shared", "long")),
        *((name, torch.float16, _FLASH) for name in ("function", "causal")),
        *((name, dtype, _WHOLE) for name in ("layer", "causal", "masked", "added") for dtype in (None, torch.bfloat16)),
        *((name, torch.bfloat16, (SDPBackend.CUDNN_ATTENTION,)) for name in ("layer", "function", "causal", "long")),
        *((name, dtype, (SDPBackend.MATH,)) for name in ("masked", "shared") for dtype in (None, torch.bfloat16)),
    ],
)
def test_each_kernel_of_a_device(name: str, dtype: torch.dtype | None, kernels: tuple[SDPBackend, ...]) -> None:
    _check(name, "cuda", "auto", dtype, kernels)


@on_device
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_training_step_on_a_device(dtype: torch.dtype | None) -> None:
    _check_step("cuda", "auto", dtype)


@on_device
def test_a_row_without_a_key_is_zero_on_a_device() -> None:
    module = _Heads().cuda()
    mask = torch.rand(40, 40, device="cuda") > 0.3
    mask[3] = False
    x = torch.randn(2, 40, WIDTH, device="cuda")
    found = _gradients(optimized_module(copy.deepcopy(module), fallback="raise"), (x, mask), "cuda", None)
    assert all(t.isfinite().all() for t in found)
    torch.testing.assert_close(found[0][:, 3], module.out.bias.detach().expand(2, -1), rtol=1e-5, atol=1e-5)
