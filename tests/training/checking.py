"""Training steps beside PyTorch's own loop, in float32 and in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from daceopt import pipeline, training_step
from daceopt.training.training_step import TrainingStep
from tests.capture.torch.interpreted import compile_interpreted
from tests.numerics import assert_within_rounding

Make = Callable[[nn.Module], torch.optim.Optimizer]
Batch = tuple[Any, ...]
CROSS = nn.CrossEntropyLoss()


@contextmanager
def interpreted() -> Iterator[None]:
    """Programs are interpreted inside, which takes milliseconds."""
    before = pipeline.compile_graph
    pipeline.compile_graph = compile_interpreted  # type: ignore[assignment]
    try:
        yield
    finally:
        pipeline.compile_graph = before


class Loop:
    """The loop that a step stands for."""

    def __init__(self, model: nn.Module, loss: Any, make: Make, accumulate: int = 1, **clip: float) -> None:
        self.model, self.loss, self.optimizer = model, loss, make(model)
        self._accumulate, self._clip, self._batch = accumulate, clip, 0

    def __call__(self, *batch: Any, inputs: int = 1) -> torch.Tensor:
        if self._batch % self._accumulate == 0:
            self.optimizer.zero_grad()
        self._batch += 1
        found = self.model(*batch[:inputs])
        value = found if self.loss is None else self.loss(found, *batch[inputs:])
        (value / self._accumulate).backward()
        if self._batch % self._accumulate == 0:
            parameters = [p for g in self.optimizer.param_groups for p in g["params"]]
            if "clip_norm" in self._clip:
                nn.utils.clip_grad_norm_(parameters, self._clip["clip_norm"])
            if "clip_value" in self._clip:
                nn.utils.clip_grad_value_(parameters, self._clip["clip_value"])
            self.optimizer.step()
        return value.detach()


def check(
    model: nn.Module, loss: Any, make: Make, batches: Sequence[Batch], inputs: int = 1, **options: Any
) -> TrainingStep:
    """Losses, parameters, buffers and the optimizer's state after each of ``batches`` are those of PyTorch's loop,
    within float64's idea of rounding."""
    ours, peer, exact = copy.deepcopy(model), copy.deepcopy(model), copy.deepcopy(model).double()
    given = {"fallback": "raise", **options}
    step = training_step(ours, loss, make(ours), **given)
    same = {k: v for k, v in options.items() if k in ("accumulate", "clip_norm", "clip_value")}
    loops = Loop(peer, loss, make, **same), Loop(exact, _wide(loss), make, **same)
    for batch in batches:
        found = step(*batch)
        theirs, reference = loops[0](*batch, inputs=inputs), loops[1](*map(_wide, batch), inputs=inputs)
        assert found.shape == theirs.shape and not found.requires_grad
        assert_within_rounding(found, reference, theirs)
        compare(step.optimizer, ours, loops[0], loops[1])
    return step


def compare(optimizer: torch.optim.Optimizer, ours: nn.Module, peer: Loop, exact: Loop) -> None:
    """Hold a model and its optimizer against the loops."""
    for (name, a), b, c in zip(ours.state_dict().items(), *(x.model.state_dict().values() for x in (peer, exact))):
        assert a.dtype == b.dtype, name
        assert_within_rounding(a, c, b)
    found, theirs, reference = (o.state_dict()["state"] for o in (optimizer, peer.optimizer, exact.optimizer))
    assert found.keys() == theirs.keys()
    for k, state in theirs.items():
        assert found[k].keys() == state.keys()
        for name, value in state.items():
            assert found[k][name].dtype == value.dtype and found[k][name].stride() == value.stride()
            assert_within_rounding(found[k][name], reference[k][name], value)


def _wide(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    return value.double() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


def perceptron() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))


def batches(count: int, rows: int = 5) -> list[Batch]:
    """Inputs of six features and labels of four classes."""
    torch.manual_seed(2)
    return [(torch.randn(rows, 6), torch.randint(0, 4, (rows,))) for _ in range(count)]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)
