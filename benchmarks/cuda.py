"""Modules on a CUDA device: Rausch et al., DaCeML, figure 5, beside eager PyTorch, torch.compile and the byte limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from benchmarks.contenders import COMPILED, EAGER
from benchmarks.harness import OURS, Budget, Result, at_most, case
from daceopt import optimized_module
from daceopt.cost.measure import interleave, on_stream

_FIGURE_5: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer norm": (lambda: nn.LayerNorm(1024), (8192, 1024)),
    "mish": (nn.Mish, (8, 32, 224, 224)),
    "softmax": (lambda: nn.Softmax(-1), (8192, 2048)),
}
_BOUND = 1.1
COPY = "a copy of the input"
"""As many bytes as forward must move; with the backward, two and a half times as many: the incoming gradient, what it
is computed from, and the gradient."""


@case
def cuda_kernels(budget: Budget) -> Iterator[Result]:
    """Figure 5 on a device: time of a call on its stream; nothing where torch sees no device."""
    if without_device("cuda-kernels"):
        return
    for name, (make, shape) in _FIGURE_5.items():
        if budget.wants(name):
            for training in (False, True):
                yield _measure(name, make, shape, training, budget)


def without_device(case: str) -> bool:
    """Whether ``case`` cannot be measured, which is said."""
    if not torch.cuda.is_available():
        print(f"{case}: not measured, torch sees no CUDA device")
    return not torch.cuda.is_available()


def _measure(
    name: str, make: Callable[[], nn.Module], shape: tuple[int, ...], training: bool, budget: Budget
) -> Result:
    torch._dynamo.reset()
    module = make().cuda()
    contenders = {
        EAGER: module,
        COMPILED: torch.compile(make().cuda()),
        OURS: optimized_module(make().cuda(), fallback="raise"),
    }
    x = torch.randn(shape, device="cuda", requires_grad=training)
    calls = {who: on_stream(_call(m, x, training), ahead=True) for who, m in contenders.items()}
    y = torch.empty_like(x, requires_grad=False)
    calls[COPY] = on_stream(lambda: y.copy_(x.detach()), ahead=True)
    values = {who: 1e3 * s for who, s in interleave(calls, seconds=budget.seconds).items()}
    limit = values.pop(COPY) * (2.5 if training else 1.0)
    measure = "forward + backward" if training else "forward"
    goal = at_most(values[OURS] / limit, _BOUND, f"at most {_BOUND}x the time of copying as many bytes")
    return Result(name, measure, "ms", values, *goal, limit=limit)


def _call(module: nn.Module, x: torch.Tensor, training: bool) -> Callable[[], object]:
    seed = torch.randn_like(x)

    def step() -> None:
        x.grad = None
        module(x).backward(seed)

    def forward() -> object:
        with torch.no_grad():
            return module(x)

    return step if training else forward
