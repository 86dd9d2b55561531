"""Products in bfloat16 by autocast, and products of float32 at torch's three precisions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.contenders import Call, step
from benchmarks.harness import OURS, Budget, Result, at_least, case
from benchmarks.models.suite import SUITE
from daceopt import optimized_module
from daceopt.cost.measure import interleave

PRECISIONS = ("highest", "high", "medium")
NETWORKS = ("bert_layer", "gpt2", "vit", "mlp_mixer")


class Mixed(nn.Module):
    """``model`` under autocast to bfloat16; float64, which autocast leaves alone, stays exact."""

    def __init__(self, model: nn.Module, device: str = "cpu") -> None:
        super().__init__()
        self.model, self._device = model, device

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self._device, dtype=torch.bfloat16):
            return self.model(*arguments)


@case
def precision(budget: Budget) -> Iterator[Result]:
    """Milliseconds of forward and backward in float32 at each precision of its products, networks of products."""
    before = torch.get_float32_matmul_precision()
    try:
        for name in filter(budget.wants, NETWORKS):
            torch._dynamo.reset()  # what an earlier case compiled must not count towards the limit of recompilations
            torch.manual_seed(0)
            model, inputs = SUITE[name]()
            call = step(optimized_module(model.train(), fallback="raise"), inputs)
            calls = {p: _at(p, call) for p in PRECISIONS}
            values = {who: s * 1e3 for who, s in interleave(calls, seconds=budget.seconds, warmup=3).items()}
            values[OURS] = values.pop("high")
            yield Result("precision", name, "ms", values, *at_least(values, 1.6, "highest"))
    finally:
        torch.set_float32_matmul_precision(before)


def _at(precision: str, call: Call) -> Call:
    def run() -> object:
        torch.set_float32_matmul_precision(precision)
        return call()

    return run
