"""Training under autocast to bfloat16, and products of float32 at torch's three precisions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import nn

from benchmarks.contenders import COMPILED, EAGER, Call, torch_modules
from benchmarks.harness import OURS, Budget, Result, at_least, case
from daceopt import optimized_module
from daceopt.cost.measure import interleave

PRECISIONS = ("highest", "high", "medium")


@case
def autocast(budget: Budget) -> Iterator[Result]:
    """Milliseconds of forward and backward under autocast, and of ours in float32."""
    for name, make in NETWORKS.items():
        torch.manual_seed(0)
        module, x = make()
        calls = {who: _step(m, x) for who, m in torch_modules(module).items()}
        calls["float32"] = _step(optimized_module(copy.deepcopy(module), fallback="raise"), x, enabled=False)
        values = {who: s * 1e3 for who, s in interleave(calls, seconds=budget.seconds, warmup=3).items()}
        yield Result("autocast", name, "ms", values, *at_least(values, 1.3, EAGER, COMPILED))


@case
def precision(budget: Budget) -> Iterator[Result]:
    """Milliseconds of forward and backward in float32 at each precision of its products."""
    before = torch.get_float32_matmul_precision()
    try:
        for name, make in NETWORKS.items():
            torch.manual_seed(0)
            module, x = make()
            ours = optimized_module(module, fallback="raise")
            calls = {p: _at(p, _step(ours, x, enabled=False)) for p in PRECISIONS}
            values = {who: s * 1e3 for who, s in interleave(calls, seconds=budget.seconds, warmup=3).items()}
            values[OURS] = values.pop("high")
            yield Result("precision", name, "ms", values, *at_least(values, 1.6, "highest"))
    finally:
        torch.set_float32_matmul_precision(before)


def encoder() -> tuple[nn.Module, torch.Tensor]:
    """A layer of BERT-base, 4 sequences of 128 tokens."""
    layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True, activation="gelu")
    return layer, torch.randn(4, 128, 768)


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    """Two convolutions with normalization and relu, 8 images."""
    return nn.Sequential(*_convolution(64, 64, 1), *_convolution(64, 128, 2)), torch.randn(8, 64, 56, 56)


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    """Two linear layers of 512 and 2048 features, GELU and a normalization, 1024 rows."""
    layers = nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512)
    return nn.Sequential(*layers), torch.randn(1024, 512)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "encoder": encoder,
    "convolutions": convolutions,
    "perceptron": perceptron,
}


def _convolution(channels: int, wide: int, stride: int) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, wide, 3, stride=stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(wide), nn.ReLU()]


def _step(module: nn.Module, x: torch.Tensor, enabled: bool = True) -> Call:
    def call() -> None:
        for parameter in module.parameters():
            parameter.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            y = module(x)
        y.float().square().mean().backward()

    return call


def _at(precision: str, call: Call) -> Call:
    def run() -> object:
        torch.set_float32_matmul_precision(precision)
        return call()

    return run
