"""Modules of float16 and bfloat16 through the recipe ``gpu``: products and convolutions take their factors as they are,
and round once. Here by torch's operators on the host; where there is a device, by cuBLAS and cuDNN."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import dace
import pytest
import torch
from torch import nn
from torch.nn import functional

from daceopt import optimized_module, pipeline, training_step
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Contraction, ConvolutionBase, takes_narrow
from daceopt.ir.scalar.types import from_torch
from tests.capture.torch.interpreted import compile_interpreted
from tests.modules.devices import on_device

HALVES = (torch.float16, torch.bfloat16)


class Sums(nn.Module):
    """Products with what is added to them: scaled, batched, of vectors; activations, which are rounded behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 24), nn.Linear(24, 16, bias=False)
        self.bias = nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.relu(self.first(x))
        y = torch.addmm(self.bias, h.flatten(0, 1), self.second.weight.t(), beta=0.5, alpha=2.0)
        scores = torch.baddbmm(x[:, :, :1], x, x.transpose(1, 2), alpha=0.25)
        return functional.gelu(y.unflatten(0, x.shape[:2])) + scores @ x + (x @ self.bias).unsqueeze(-1)


class Mixed(nn.Module):
    """Products of three types in one graph, whatever is around it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, dtype in zip(self.layers, (torch.float16, torch.bfloat16, torch.float32), strict=True):
            kind = x.dtype if x.dtype is torch.float64 else dtype
            weight, bias = (p.to(kind) for p in (layer.weight, layer.bias))
            x = functional.silu(functional.linear(x.to(kind), weight, bias)).to(x.dtype)
        return x


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))


def _images() -> nn.Module:
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, groups=2), nn.ConvTranspose2d(8, 4, 2, 2)
    return nn.Sequential(*layers, nn.Conv2d(4, 6, 1, bias=False))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (_perceptron, (5, 7, 16)),
    "images": (_images, (2, 3, 11, 11)),
    "lines": (
        lambda: nn.Sequential(nn.Conv1d(4, 8, 3, padding=2, dilation=2), nn.GELU(), nn.Conv1d(8, 4, 1)),
        (2, 4, 20),
    ),
    "recurrent": (lambda: nn.GRU(6, 8), (3, 2, 6)),
    "sums": (Sums, (2, 5, 16)),
}


def _gradients(net: nn.Module, x: torch.Tensor, autocast: torch.dtype | None) -> list[torch.Tensor]:
    """Result and gradients of a loss that is scaled, as what is small in float16 has to be."""
    net.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_()
    with torch.autocast(x.device.type, autocast or torch.float16, enabled=autocast is not None):
        y = net(x)
        y = y[0] if isinstance(y, tuple) else y
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).to(y.device, y.dtype)
    (y * weights).sum().mul(8).backward()
    return [y.detach(), x.grad, *(p.grad for p in net.parameters())]  # type: ignore[list-item]


def _assert_as_good(found: list[list[torch.Tensor]], dtype: torch.dtype) -> None:
    """Of (ours, eager PyTorch's, float64's): types are PyTorch's, errors hardly larger than its own."""
    for mine, theirs, exact in zip(*found, strict=True):
        assert (mine.dtype, mine.device, mine.shape) == (theirs.dtype, theirs.device, theirs.shape)
        error, peer = ((t.double() - exact).norm() for t in (mine, theirs))
        assert error <= 1.5 * peer + torch.finfo(dtype).eps * exact.norm(), f"off by {error}, eager by {peer}"


def _check(name: str, dtype: torch.dtype, autocast: bool, device: str, recipe: str) -> None:
    torch.manual_seed(0)
    make, shape = CASES[name]
    module = make().to(device)
    for parameter in module.parameters():  # of the numbers that the narrow type has, for all to compute the same
        parameter.data = parameter.data.to(dtype).float()
    wide = copy.deepcopy(module).double()
    module = module if autocast else module.to(dtype)
    ours = optimized_module(copy.deepcopy(module), recipe=recipe, fallback="raise")
    for _ in range(2):
        x = torch.randn(shape, device=device).to(dtype)
        given = x.float() if autocast else x
        found = [_gradients(net, given, dtype if autocast else None) for net in (ours, module)]
        _assert_as_good([*found, _gradients(wide, x.double(), None)], dtype)
    assert not ours.daceopt.stats.eager_calls


@pytest.mark.slow
@pytest.mark.share(6)
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "module"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_a_module(name: str, dtype: torch.dtype, autocast: bool, emulated: None) -> None:
    _check(name, dtype, autocast, "cpu", "gpu")


@on_device
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "module"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_a_module_on_a_device(name: str, dtype: torch.dtype, autocast: bool) -> None:
    """But for what autocast does inside of recurrent layers, which is cuDNN's own."""
    if (name, autocast) != ("recurrent", True):
        _check(name, dtype, autocast, "cuda", "auto")


@on_device
@pytest.mark.parametrize("name", ["perceptron", "sums"])
def test_sums_in_float16_where_the_user_allows_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch then multiplies no float16 into float32, which products with more to add take from it otherwise."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True)
    _check(name, torch.float16, True, "cuda", "auto")


# -------------------------------------------------------------------- training


Batch = tuple[torch.Tensor, float]  # and by what its loss is multiplied


def _scaled_steps(module: nn.Module, device: str, batches: list[Batch]) -> tuple[list[float], list[torch.Tensor]]:
    """Training as users of float16 do it; the scale behind each step, and the parameters at the end."""
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)
    optimizer = torch.optim.SGD(module.parameters(), 0.05, momentum=0.9)
    scales = []
    for x, factor in batches:
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16):
            loss = functional.mse_loss(module(x), x[..., :4].float().clamp(-1, 1)) * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, [p.detach() for p in module.parameters()]


def _check_scaler(device: str, recipe: str) -> None:
    """Steps with infinite gradients, of operands or of the loss, are skipped where eager PyTorch skips them."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    ours = optimized_module(copy.deepcopy(module), recipe=recipe, fallback="raise")
    kinds = ((1.0, 1.0), (1.0, 1.0), (1.0, 1e7), (1.0, 1.0), (1e9, 1.0), (1.0, 1.0), (1.0, 1.0))
    batches = [(x * torch.randn(8, 16, device=device), factor) for x, factor in kinds]
    (scales, mine), (expected, theirs) = (_scaled_steps(m, device, batches) for m in (ours, module))
    assert scales == expected == [2.0**k for k in (10, 11, 10, 10, 9, 9, 10)]
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=2e-3, atol=2e-4)
    assert not ours.daceopt.stats.eager_calls


def test_a_scaler_of_gradients(emulated: None) -> None:
    _check_scaler("cpu", "gpu")


@on_device
def test_a_scaler_of_gradients_on_a_device() -> None:
    _check_scaler("cuda", "auto")


class Overflowing(nn.Module):
    """A product whose results leave float16, read as float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[300.0, 1.0], [300.0, -1.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight).float()


def _check_overflow(device: str, recipe: str) -> None:
    """Infinite results, and gradients that overflow or vanish, are those of products of float16 in PyTorch."""
    module, x = Overflowing().to(device), torch.tensor([[300.0, 1.0], [1e-4, 0.0]], device=device)
    ours, found = optimized_module(copy.deepcopy(module), recipe=recipe, fallback="raise"), []
    for net in (ours, module):
        given = x.clone().requires_grad_()
        with torch.autocast(device, torch.float16):
            y = net(given)
        y.backward(torch.tensor([[1e3, 0.0], [1e3, 1e-7]], device=device))
        found.append((y.detach(), given.grad, net.weight.grad))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)
    (y, _, dw), _ = found
    assert y.isinf().any() and dw.isinf().any() and (dw == 0).any()


def test_what_overflows(emulated: None) -> None:
    _check_overflow("cpu", "gpu")


@on_device
def test_what_overflows_on_a_device() -> None:
    _check_overflow("cuda", "auto")


def _check_step(dtype: torch.dtype, autocast: bool, device: str, recipe: str) -> None:
    """Parameters after each of three steps are about as far from float64's as eager PyTorch's."""
    torch.manual_seed(0)
    module = _perceptron().to(device)
    wide = copy.deepcopy(module).double()
    module = module if autocast else module.to(dtype)
    wide.load_state_dict({k: v.double() for k, v in module.state_dict().items()})
    ours = copy.deepcopy(module)
    step = training_step(ours, nn.MSELoss(), torch.optim.SGD(ours.parameters(), 0.1), recipe=recipe, fallback="raise")
    others = [(m, torch.optim.SGD(m.parameters(), 0.1)) for m in (module, wide)]
    for _ in range(3):
        x, target = torch.randn(8, 16, device=device).to(dtype), torch.randn(8, 4, device=device).to(dtype)
        given = (x.float(), target.float()) if autocast else (x, target)
        with torch.autocast(device, dtype, enabled=autocast):
            step(*given)
        for net, optimizer in others:
            narrow = net is module
            with torch.autocast(device, dtype, enabled=autocast and narrow):
                y, expected = (net(given[0]), given[1]) if narrow else (net(x.double()), target.double())
                loss = functional.mse_loss(y, expected)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for mine, theirs, exact in zip(ours.parameters(), module.parameters(), wide.parameters(), strict=True):
        error, peer = ((p.double() - exact).norm() for p in (mine, theirs))
        assert mine.dtype == theirs.dtype and error <= 2 * peer + torch.finfo(dtype).eps * exact.norm()


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "module"])
def test_a_training_step(autocast: bool, emulated: None) -> None:
    _check_step(torch.float16, autocast, "cpu", "gpu")


@on_device
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "module"])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_training_step_on_a_device(dtype: torch.dtype, autocast: bool) -> None:
    _check_step(dtype, autocast, "cuda", "auto")


# -------------------------------------------------------------------- graphs


class _Derived:
    """Stands in for ``pipeline.compile_graph``: keeps the graphs of a recipe, and interprets them."""

    def __init__(self, recipe: str):
        self._recipe = recipe
        self.graphs: list[Graph] = []

    def __call__(self, fingerprint: str, load: Callable[[str], Any], **_: Any) -> Any:
        self.graphs += [g for g, _ in pipeline.source_of(load, self._recipe).derive().directions()]
        return compile_interpreted(fingerprint, load, self._recipe)

    def products(self) -> list[tuple[Graph, Any]]:
        return [(g, n) for g in self.graphs for n in g.nodes() if isinstance(n, (Contraction, ConvolutionBase))]


def _derived(
    monkeypatch: pytest.MonkeyPatch, recipe: str, module: nn.Module, x: torch.Tensor, dtype: torch.dtype
) -> _Derived:
    found = _Derived(recipe)
    monkeypatch.setattr("daceopt.pipeline.compile_graph", found)
    torch._dynamo.reset()
    with torch.autocast("cpu", dtype):
        optimized_module(copy.deepcopy(module), fallback="raise")(x)
    return found


def test_no_casts_are_left_around_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of float16 are those of bfloat16: weights are rounded for the products, nothing is widened for them."""
    module, x = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 4)), torch.randn(8, 16)
    counts = []
    for dtype in HALVES:
        found = _derived(monkeypatch, "gpu", module, x, dtype)
        products = found.products()
        assert len(products) == 5 and all(takes_narrow(n, g) for g, n in products)
        assert {g.dtype(g.reads(n)["A"]) for g, n in products} == {from_torch(dtype)}
        counts.append([len(g.kernels()) for g in found.graphs])
    (forward, backward), (narrow_forward, narrow_backward) = counts
    assert forward == narrow_forward
    assert backward - narrow_backward == 2  # gradients of weights: what overflows float16 is infinite in float32, too


def test_the_cpu_multiplies_float16_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 4)), torch.randn(2, 3, 5, 5)
    for recipe in ("cpu", "apollo", "graphturbo"):
        products = _derived(monkeypatch, recipe, module, x, torch.float16).products()
        assert len(products) == 5
        assert all({g.dtype(a) for a in n.operands(g).values()} == {dace.float32} for g, n in products)


def test_products_of_three_types_in_one_graph(emulated: None) -> None:
    torch.manual_seed(0)
    module, x = Mixed(), torch.randn(5, 16)
    ours = optimized_module(copy.deepcopy(module), recipe="gpu", fallback="raise")
    found = [_gradients(net, x, None) for net in (ours, module)]
    _assert_as_good([*found, _gradients(copy.deepcopy(module).double(), x.double(), None)], torch.bfloat16)
    numbers = str(ours.daceopt.source())
    for kind in ("kFloat16", "kBfloat16", "kFloat32"):
        assert "{A, daceopt::Number::" + kind in numbers
