"""What ranks check of updates in shards: run by ``test_sharded_update`` as two processes, and as four."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import daceopt
from daceopt.distributed.strategy import Bucket, Identity, Strategy
from tests.distributed import ranks
from tests.distributed.equality import Net, Reference, adamw, batches, compare, equal_on_all_ranks, peer, sgd

Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.002, amsgrad=True, weight_decay=0.01)


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    """Weights decay, other parameters do not, and have another rate."""
    named = list(model.named_parameters())
    decayed, others = ([p for _, p in named if (p.dim() > 1) is k] for k in (True, False))
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.01}], lr=0.002)


class Trained:
    """A model that is updated in shards, as DistributedDataParallel, and as one process in float64."""

    def __init__(self, make: Optimizer, strategy: Any = "sharded", clip: float | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        model = Net()
        self.make, self.clip, self.options = make, clip, options
        self.ours = daceopt.data_parallel(copy.deepcopy(model), strategy=strategy, fallback="raise")
        self.theirs, self.exact = peer(model), Reference(model, make)
        self.optimizers = make(self.ours), make(self.theirs)
        self.step = self._step(clip, options)
        self.every = [batches(rank, 4) for rank in range(dist.get_world_size())]
        self.steps = 0

    def _step(self, clip: float | None, options: Any) -> Any:
        return daceopt.training_step(
            self.ours, functional.cross_entropy, self.optimizers[0], clip_norm=clip, fallback="raise", **options
        )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            now = [own[self.steps % 4] for own in self.every]
            x, y = now[dist.get_rank()]
            self.step(x, y)
            self.optimizers[1].zero_grad()
            functional.cross_entropy(self.theirs(x), y).backward()
            self.exact.optimizer.zero_grad()
            self.exact.backward(now)
            for model, optimizer in ((self.theirs, self.optimizers[1]), (self.exact.model, self.exact.optimizer)):
                if self.clip is not None:
                    nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], self.clip)
                optimizer.step()
            self.steps += 1

    def check(self) -> None:
        equal_on_all_ranks(self.ours)
        compare(self.ours, self.theirs, self.exact.model)


def trained(make: Optimizer, steps: int, strategy: Any = "sharded", clip: float | None = None) -> Trained:
    found = Trained(make, strategy, clip)
    found.run(steps)
    found.check()
    return found


def by_momentum() -> None:
    trained(sgd, 50)


def without_state() -> None:
    trained(lambda m: torch.optim.SGD(m.parameters(), lr=0.05), 4)


def by_adam() -> None:
    trained(adam, 10)


def by_adamw() -> None:
    found = trained(adamw, 10)
    world = dist.get_world_size()
    for name, p in found.ours.module.named_parameters():  # a rank has the state of its part alone
        state = found.optimizers[0].state[p]
        assert name == "unused" or state["exp_avg"].shape == (-(-p.numel() // world),), name


def in_groups_clipped() -> None:
    trained(two_groups, 6, clip=0.05)
    trained(two_groups, 2, clip=1e6)


def some_buckets() -> None:
    """One bucket in shards, one reduced as a whole, clipped by the norm of both."""
    names = [n for n, p in Net().named_parameters() if p.requires_grad]
    buckets = Bucket((names[-1], names[0]), sharded=True), Bucket(tuple(names[1:-1]))
    for wait in ("use", "end"):
        strategy = Strategy(Identity.of(Net(), dist.get_world_size()), buckets, wait=wait)
        trained(adamw, 3, strategy, clip=0.05)
    strategy = Strategy(Identity.of(Net(), dist.get_world_size()), tuple(Bucket((n,), sharded=True) for n in names))
    trained(sgd, 3, strategy)


CHECKS = [by_momentum, without_state, by_adam, by_adamw, in_groups_clipped, some_buckets]
if __name__ == "__main__":
    ranks.main({check.__name__: check for check in CHECKS})
