"""What ranks check of whole networks, step by step: run by ``test_two_ranks``.

Each step is taken from the same state as DistributedDataParallel takes it, and one process in float64: of steps in a
row, one activation next to zero would make another run.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import daceopt
from benchmarks.models import data_parallel
from tests.distributed import ranks
from tests.distributed.equality import Reference, equal_on_all_ranks, loss_of, peer
from tests.distributed.searched import found_for
from tests.numerics import assert_within_rounding
from tests.training import networks
from tests.training.networks import Network

STEPS = 50
_BATCHES = 4
_RUNS = 16  # that roundings of the parameters spread

Values = dict[str, torch.Tensor]
State = tuple[dict[str, Any], dict[str, Any]]


def momentum(rate: float, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def values(model: nn.Module, optimizer: torch.optim.Optimizer) -> Values:
    """What a step leaves: parameters, what the optimizer keeps of each, and on rank 0, whose buffers count, buffers."""
    found: Values = {}
    for name, p in model.named_parameters():
        found[name] = p.detach()
        found |= {f"{name}, {k}": v for k, v in optimizer.state.get(p, {}).items() if torch.is_tensor(v)}
    return found | (dict(model.named_buffers()) if dist.get_rank() == 0 else {})


def put(model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    model.load_state_dict(state[0])
    optimizer.load_state_dict(copy.deepcopy(state[1]))


class Stepwise:
    """A network that is trained by ``data_parallel``, and what the same steps are elsewhere."""

    def __init__(self, found: Network, strategy: Any = "auto") -> None:
        make = partial(momentum, found.rates[0])
        self.loss, self.batches = found.loss, found.batches
        if strategy == "searched":
            step = daceopt.training_step(found.model, self.loss, make(found.model))
            strategy = found_for(step, found.model, self.batches[0], of_step=True)
        self.ours = daceopt.data_parallel(copy.deepcopy(found.model), strategy=strategy, fallback="raise")
        self.theirs = peer(found.model)
        self.exact = Reference(found.model, make, self.loss)
        self.rounded = Reference(found.model, make, self.loss, torch.float32)
        self.optimizers = make(self.ours), make(self.theirs)
        self.step = daceopt.training_step(self.ours, self.loss, self.optimizers[0], fallback="raise")

    def run(self, steps: int) -> None:
        """Raises AssertionError with the step and the name of what is not right behind it."""
        for k in range(steps):
            now = [self.batches[(k + r) % len(self.batches)] for r in range(dist.get_world_size())]
            before = copy.deepcopy((self.ours.module.state_dict(), self.optimizers[0].state_dict()))
            self._take(now, before)
            try:
                self._check(now, before)
            except AssertionError as error:
                raise AssertionError(f"step {k}, {error}") from None
        equal_on_all_ranks(self.ours)

    def _take(self, now: Sequence[tuple[torch.Tensor, ...]], before: State) -> None:
        rank = dist.get_rank()
        put(self.theirs.module, self.optimizers[1], before)
        self.step(*now[rank])
        self.step.gather_state()
        self.optimizers[1].zero_grad()
        loss_of(self.theirs, self.loss, now[rank]).backward()
        self.optimizers[1].step()
        put(self.exact.model, self.exact.optimizer, before)
        self.exact.step(now)

    def _check(self, now: Sequence[tuple[torch.Tensor, ...]], before: State) -> None:
        """All within rounding; where not, other roundings are as far off."""
        ours, theirs = values(self.ours.module, self.optimizers[0]), values(self.theirs.module, self.optimizers[1])
        exact = values(self.exact.model, self.exact.optimizer)
        assert ours.keys() == theirs.keys() == exact.keys()
        apart: dict[str, float] = {}
        for name, reference in exact.items():
            try:
                assert_within_rounding(ours[name], reference, theirs[name])
            except AssertionError as error:
                apart = apart or self._spread(now, before, exact)
                assert float((ours[name] - reference).abs().max()) <= 2 * apart[name], f"{name}: {error}"

    def _spread(self, now: Sequence[tuple[torch.Tensor, ...]], before: State, exact: Values) -> dict[str, float]:
        """How far off eager PyTorch's steps in float32 are, from parameters that are rounded in other ways."""
        found, rounded = dict.fromkeys(exact, 0.0), self.rounded
        for seed in range(_RUNS):
            put(rounded.model, rounded.optimizer, before)
            generator, eps = torch.Generator().manual_seed(seed), torch.finfo(torch.float32).eps
            with torch.no_grad():
                for p in rounded.model.parameters():
                    p.mul_(1 + torch.randint(-1, 2, p.shape, generator=generator) * eps)
            rounded.step(now)
            for name, value in values(rounded.model, rounded.optimizer).items():
                found[name] = max(found[name], float((value - exact[name]).abs().max()))
        return found


# ---------------------------------------------------------------- networks


def of_evaluation(make: Callable[..., data_parallel.Step], rate: float = 0.01, **sizes: Any) -> Network:
    """A network of DisCo's evaluation in these sizes: it computes its loss itself."""
    torch.manual_seed(3)
    made = [make(**sizes) for _ in range(_BATCHES)]
    return Network(made[0].module, None, [step.batch for step in made], (rate, rate))


_TEXT = {"batch": 2, "vocabulary": 61}
_BERT = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "batch": 2,
    "length": 8,
}
_BERT |= {"max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_VGG = {"batch": 2, "classes": 5, "width": 4, "inner": 16}
_RESNET = {"batch": 4, "edge": 32, "classes": 5, "width": 4}
TRANSLATOR = {**_TEXT, "length": 6, "size": 16, "heads": 2, "inner": 32, "dropout": 0.0}
_REFORMER = {**_TEXT, "length": 32, "size": 16, "heads": 2, "chunk": 8}

SMALL: dict[str, Callable[[], Network]] = {
    "VGG-19": partial(of_evaluation, data_parallel.vgg19, **_VGG, edge=8, depths=(1, 2)),
    "ResNet-50": partial(of_evaluation, data_parallel.resnet50, **_RESNET, depths=(1,)),
    "Transformer": partial(of_evaluation, data_parallel.transformer, **TRANSLATOR, layers=1),
    "RNNLM": partial(of_evaluation, data_parallel.rnnlm, **_TEXT, length=5, size=16),
    "BERT": partial(of_evaluation, data_parallel.bert, **_BERT, layers=1),
    "Reformer": partial(of_evaluation, data_parallel.reformer, **_REFORMER, layers=1),
}
DEEP: dict[str, Callable[[], Network]] = {
    "VGG-19": partial(of_evaluation, data_parallel.vgg19, **_VGG, edge=32),
    "ResNet-50": partial(of_evaluation, data_parallel.resnet50, **_RESNET),
    "Transformer": partial(of_evaluation, data_parallel.transformer, **TRANSLATOR),
    "BERT": partial(of_evaluation, data_parallel.bert, **_BERT),
    "Reformer": partial(of_evaluation, data_parallel.reformer, **_REFORMER),
}
"""As deep as in the benchmarks."""


def trained(make: Callable[[], Network], strategy: str = "auto", steps: int = STEPS) -> Callable[[], None]:
    return lambda: Stepwise(make(), strategy).run(steps)


CHECKS = {name: trained(SMALL[name], steps=3 * _BATCHES) for name in ("Transformer",)}
BROAD = {name: trained(make) for name, make in SMALL.items() if name not in CHECKS}
MORE = {name: trained(partial(networks.build, name)) for name in ("unet", "vit")}
MORE |= {f"{name}, deep": trained(make) for name, make in DEEP.items()}
MORE["ResNet-50, deep, searched"] = trained(DEEP["ResNet-50"], "searched")
MORE |= {f"{name}, {s}": trained(SMALL[name], s) for name in ("RNNLM", "VGG-19") for s in ("sharded", "searched")}

if __name__ == "__main__":
    ranks.main({"broad": BROAD, "more": MORE}[os.environ["CHECKS"]])
