"""``python -m daceopt demo``: optimizes four models on the spot, checks outputs and gradients, and compares speed."""

from __future__ import annotations

import copy
import logging
import os
import tempfile
import time
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import daceopt
from daceopt import optimized_module
from daceopt.cost.measure import interleave
from daceopt.torch_internals import inductor

Call = Callable[[], Any]


class Swelu(nn.Module):
    """An activation that no library has: x * tanh(softplus(x)) * sigmoid(x)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tanh(nn.functional.softplus(x)) * torch.sigmoid(x)


class RmsNorm(nn.Module):
    """Root-mean-square normalization over the last dimension."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Novel(nn.Module):
    """RMS norm, a product, the activation nobody has, a product: (batch, length, size) -> the same."""

    def __init__(self, size: int = 256) -> None:
        super().__init__()
        self.norm, self.act = RmsNorm(size), Swelu()
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


def bert(dropout: float = 0.0) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A BERT encoder: hidden 256, 4 layers, batch 8, sequence 128."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return BertModel(config), (torch.randint(0, config.vocab_size, (8, 128)),)


def resnet() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A ResNet-18-sized network: batch 8, 3x64x64."""
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")
    return ResNetModel(config), (torch.randn(8, 3, 64, 64),)


def novel() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A module with an activation and a normalization of its own: batch 8, length 512, size 256."""
    return Novel(), (torch.randn(8, 512, 256),)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "BERT (4 x 256)": bert,
    "ResNet-18, 64x64": resnet,
    "novel activation": novel,
}


@dataclass
class DemoRow:
    """What the demo prints of one model. Errors are relative to the largest magnitude of a float64 run."""

    name: str
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)  # what -> (ours, PyTorch's float32)
    forward: dict[str, float] = field(default_factory=dict)  # who -> seconds
    training: dict[str, float] = field(default_factory=dict)
    kernels: tuple[int, int] = (0, 0)
    moved: tuple[float, float] = (0.0, 0.0)  # bytes
    cold: float = 0.0
    warm: float = 0.0
    peer_cold: float = 0.0

    def correct(self) -> bool:
        """Our error is what rounding explains: within four times PyTorch's own and some ulps."""
        return all(ours <= 4 * theirs + 4e-6 for ours, theirs in self.errors.values())


def arguments(parser: ArgumentParser) -> None:
    """It takes none."""


def run(options: Namespace) -> int:
    """Compare on the spot; 1 when a check failed."""
    return 0 if compare() else 1


def compare(seconds: float = 0.5, show: Callable[[str], None] = print) -> bool:
    """Run the demo, printing through ``show``; True when every check passed.

    ``seconds``: timing budget per contender.
    """
    torch.manual_seed(0)
    rows = []
    with _quiet(), _cold_caches():
        for name, make in MODELS.items():
            show(f"{name} ...")
            rows.append(_module_row(name, make, seconds))
            show(format_row(rows[-1]))
        show("ONNX file ...")
        rows.append(_onnx_row(seconds))
        show(format_row(rows[-1]))
    passed = all(row.correct() for row in rows)
    show("all outputs and gradients agree with float64 as far as rounding allows" if passed else "SOME CHECKS FAILED")
    return passed


# -------------------------------------------------------------------- one module


def _module_row(name: str, make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]], seconds: float) -> DemoRow:
    row = DemoRow(name)
    model, inputs = make()
    eager, peer, exact = copy.deepcopy(model), copy.deepcopy(model), copy.deepcopy(model).double()
    ours = optimized_module(model, fallback="raise")
    inputs64 = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    row.cold = _time(lambda: step(ours, inputs))
    with torch.no_grad():
        ours(*inputs)
    again = optimized_module(copy.deepcopy(eager), fallback="raise")
    row.warm = _time(lambda: step(again, inputs))
    for module in (ours, exact):  # compiling ran training steps, which moved the statistics of batch norms
        module.load_state_dict(eager.state_dict())
    for mode in ("train", "eval"):
        models = [getattr(m, mode)() for m in (ours, eager, exact)]
        row.errors |= {f"{mode} {k}": v for k, v in _errors(models, inputs, inputs64).items()}
    _statistics(row, ours)
    compiled = torch.compile(peer)
    row.peer_cold = _time(lambda: step(compiled, inputs))
    contenders = {"eager": eager, "torch.compile": compiled, "daceopt": ours}
    for module in contenders.values():
        module.eval()
    row.forward = interleave({k: _forward(m, inputs) for k, m in contenders.items()}, seconds=seconds)
    for module in contenders.values():
        module.train()
    row.training = interleave({k: _step(m, inputs) for k, m in contenders.items()}, seconds=seconds)
    return row


def _forward(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Call:
    def call() -> None:
        with torch.no_grad():
            model(*inputs)

    return call


def _step(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Call:
    return lambda: step(model, inputs)


def step(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """One forward and backward pass of the squared first output."""
    for parameter in model.parameters():
        parameter.grad = None
    loss(model(*inputs)).backward()


def loss(result: object) -> torch.Tensor:
    """The mean square of the main tensor: a scalar."""
    return first(result).square().mean()


def first(result: Any) -> torch.Tensor:
    """The main tensor of a model's result (transformers return dataclasses)."""
    return result if isinstance(result, torch.Tensor) else result[0]


def _time(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _errors(models: list[nn.Module], inputs: Any, inputs64: Any) -> dict[str, tuple[float, float]]:
    ours, theirs, exact = (_results(m, x) for m, x in zip(models, (inputs, inputs, inputs64)))
    return {
        what: (error(ours[what], exact[what]), error(theirs[what], exact[what])) for what in ("outputs", "gradients")
    }


def _results(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> dict[str, list[torch.Tensor]]:
    """Outputs and gradients of one step; the random state and the buffers do not change."""
    state = copy.deepcopy(model.state_dict())
    for parameter in model.parameters():
        parameter.grad = None
    output = model(*inputs)
    loss(output).backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    model.load_state_dict(state)
    return {"outputs": [first(output).detach()], "gradients": gradients}


def error(results: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Largest difference over all tensors, each relative to the largest magnitude of all."""
    scale = max(float(e.abs().max()) for e in exact) or 1.0
    return max(float((f.double() - e).abs().max()) for f, e in zip(results, exact)) / scale


def _statistics(row: DemoRow, model: nn.Module) -> None:
    stats = model.daceopt.stats
    row.kernels, row.moved = stats.kernels, stats.bytes_moved


# -------------------------------------------------------------------- an ONNX file


def _onnx_row(seconds: float) -> DemoRow:
    import numpy as np
    import onnxruntime

    row = DemoRow("ONNX file (novel, exported)")
    model, (x,) = novel()
    model.eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "novel.onnx"
        torch.onnx.export(model, (x,), str(path), dynamo=True, verbose=False)
        start = time.perf_counter()
        ours = daceopt.from_onnx(str(path), fallback=False)
        row.cold = time.perf_counter() - start
        row.warm = _time(lambda: daceopt.from_onnx(str(path), fallback=False))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        array = x.numpy()
        exact = copy.deepcopy(model).double()(x.double()).detach()
        result, theirs = ours(array), session.run(None, {name: array})[0]
        result = result[0] if isinstance(result, (tuple, list)) else result
        pair = (error([torch.from_numpy(np.asarray(f))], [exact]) for f in (result, theirs))
        row.errors["outputs"] = (next(pair), next(pair))
        contenders = {"onnxruntime": lambda: session.run(None, {name: array}), "daceopt": lambda: ours(array)}
        row.forward = interleave(contenders, seconds=seconds)
        row.kernels, row.moved = ours.stats.kernels, ours.stats.bytes_moved
    return row


# -------------------------------------------------------------------- printing


def format_row(row: DemoRow) -> str:
    """A few lines of text."""
    lines = [
        f"  error  {what:<16} {ours:.1e}  (PyTorch float32: {theirs:.1e})"
        for what, (ours, theirs) in row.errors.items()
    ]
    for label, times in (("forward", row.forward), ("training step", row.training)):
        if times:
            lines.append(f"  {label:<14} " + "   ".join(f"{who} {t * 1e3:.2f} ms" for who, t in times.items()))
    moved = f"{_mega(row.moved[0])} -> {_mega(row.moved[1])}"
    lines.append(f"  kernels {row.kernels[0]} -> {row.kernels[1]}, bytes moved {moved}")
    peer = f" (torch.compile {row.peer_cold:.1f} s)" if row.peer_cold else ""
    lines.append(f"  compile cold {row.cold:.1f} s{peer}, warm {row.warm:.2f} s")
    return "\n".join(lines)


def _mega(count: float) -> str:
    return f"{count / 1e6:.1f} MB"


@contextmanager
def _cold_caches() -> Iterator[None]:
    """Cold compile times are measured cold: what an earlier run left on disk serves neither side."""
    before = os.environ.get("DACEOPT_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="daceopt-demo-") as folder, inductor.without_caches():
        os.environ["DACEOPT_CACHE_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("DACEOPT_CACHE_DIR")
            if before is not None:
                os.environ["DACEOPT_CACHE_DIR"] = before


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of third parties between the results."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch").setLevel(logging.ERROR)
        yield
