"""What ranks check of updates in shards: run by ``test_two_ranks``, also as four."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import daceopt
from daceopt.distributed.search.strategy import Bucket, Identity, Strategy
from daceopt.errors import StateInShards, Unsupported
from tests.distributed import ranks
from tests.distributed.equality import Net, Reference, adamw, batches, compare, equal_on_all_ranks, peer, sgd
from tests.numerics import assert_within_rounding

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
    trained(sgd, 8)


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


def in_groups_hardly_clipped() -> None:
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


def refused(error: type[Exception], text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except error as found:
        assert text in str(found), str(found)
    else:
        raise AssertionError(f"expected {error.__name__}: {text}")


def checkpoints() -> None:
    """What ``gather_state`` leaves is PyTorch's own; a run that is resumed from it goes on bit for bit."""
    found = trained(adamw, 3)
    _needs_gathering(found)
    found.step.gather_state()  # of which rank 0 has the whole already
    found.step.gather_state()
    saved = copy.deepcopy((found.ours.state_dict(), found.optimizers[0].state_dict()))
    _is_pytorchs(saved[1], found)
    found.run(3)
    found.check()
    _resumes_in_shards(found, saved)
    _resumes_without_shards(found, saved)


def _needs_gathering(found: Trained) -> None:
    """Nobody takes a part of the state for the whole; leaves the whole on rank 0."""
    optimizer, world, rank = found.optimizers[0], dist.get_world_size(), dist.get_rank()
    refused(StateInShards, f"spread over {world} ranks", optimizer.state_dict)
    refused(StateInShards, "gather_state() of the training step", optimizer.step)
    refused(ValueError, f"to={world}", lambda: found.step.gather_state(world))
    found.step.gather_state(to=0)
    if rank == 0:
        optimizer.state_dict()
    else:
        refused(StateInShards, f"the part of {rank}", optimizer.state_dict)


def _is_pytorchs(saved: dict[str, Any], found: Trained) -> None:
    theirs = found.optimizers[1].state_dict()
    assert saved["param_groups"] == theirs["param_groups"]
    named = [n for n, _ in found.ours.named_parameters()]
    for k, state in found.exact.optimizer.state_dict()["state"].items():
        for name, exact in state.items():
            own, peers = saved["state"][k][name], theirs["state"][k][name]
            assert own.shape == exact.shape and own.stride() == peers.stride(), (named[k], name)
            assert_within_rounding(own, exact, peers)


def _resumes_in_shards(found: Trained, saved: tuple[Any, Any]) -> None:
    """Three more steps end at the parameters that ``found`` has."""
    after = [p.detach().clone() for p in found.ours.parameters()]
    found.ours.load_state_dict(saved[0])
    optimizer = found.optimizers[0]
    optimizer.load_state_dict(copy.deepcopy(saved[1]))
    optimizer.state_dict()  # whole: loaded
    found.step.gather_state()
    _go_on(daceopt.training_step(found.ours, functional.cross_entropy, optimizer, fallback="raise"), found)
    assert all(torch.equal(p, q) for p, q in zip(found.ours.parameters(), after))


def _resumes_without_shards(found: Trained, saved: tuple[Any, Any]) -> None:
    elsewhere = daceopt.data_parallel(Net(), fallback="raise")
    elsewhere.load_state_dict(saved[0])
    optimizer = adamw(elsewhere)
    optimizer.load_state_dict(copy.deepcopy(saved[1]))
    _go_on(daceopt.training_step(elsewhere, functional.cross_entropy, optimizer, fallback="raise"), found)
    compare(elsewhere, found.theirs, found.exact.model)


def _go_on(step: Any, found: Trained) -> None:
    """With the batches of ``found`` behind those that came before the checkpoint."""
    for k in range(3, 6):
        step(*found.every[dist.get_rank()][k % 4])


def channels_last_halves() -> None:
    """Parameters of a half type, in another order of axes, with fewer elements than ranks, and with none."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
            self.scale, self.none = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.zeros(0, 3))
            self.narrow = nn.Parameter(torch.randn(5, 7).bfloat16())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = functional.gelu(self.conv(x)).mean((2, 3)) * self.scale + self.none.sum()
            return hidden @ self.narrow.float()

    torch.manual_seed(0)
    model = Mixed()
    models = [daceopt.data_parallel(copy.deepcopy(model), strategy=s, fallback="raise") for s in ("sharded", "auto")]
    optimizers = [sgd(m) for m in models]
    steps = [
        daceopt.training_step(m, functional.cross_entropy, o, clip_value=0.1, accumulate=2, fallback="raise")
        for m, o in zip(models, optimizers)
    ]
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(4):
        x, y = torch.randn(4, 3, 6, 6, generator=generator), torch.randint(0, 7, (4,), generator=generator)
        for step in steps:
            step(x, y)
    steps[0].gather_state()
    for p, q in zip(*(m.parameters() for m in models)):
        assert p.stride() == q.stride() and torch.allclose(p, q, rtol=1e-5, atol=1e-6)
    states = [o.state_dict()["state"] for o in optimizers]
    assert states[0].keys() == states[1].keys()
    for k, state in states[0].items():
        for name, own in state.items():
            other = states[1][k][name]
            assert own.dtype == other.dtype and own.stride() == other.stride()
            rounding = 2 if own.dtype == torch.bfloat16 else 64  # whose sums over ranks gloo rounds one by one
            if own.numel():
                apart, largest = (own.double() - other.double()).abs().max(), other.double().abs().max()
                assert apart <= rounding * torch.finfo(own.dtype).eps * largest, (k, name)


def in_parts_between() -> None:
    """A step that cannot be one program updates as PyTorch does, by the whole state."""
    found = trained(adamw, 2)
    handle = found.optimizers[0].register_step_post_hook(lambda *_: None)
    found.step = daceopt.training_step(found.ours, functional.cross_entropy, found.optimizers[0], fallback="silent")
    found.run(1)
    assert found.step.reasons == {"the optimizer has hooks": 1}
    handle.remove()
    found.run(2)
    assert found.step.reasons == {"the optimizer has hooks": 1}
    found.check()


def what_no_rank_has_is_refused() -> None:
    found = Trained(sgd, keep_gradients=True)
    refused(Unsupported, "no rank has whole gradients", lambda: found.step(*found.every[dist.get_rank()][0]))
    found = trained(sgd, 1)
    other = daceopt.data_parallel(copy.deepcopy(found.ours.module), fallback="raise")
    for p, q in zip(found.ours.parameters(), other.parameters()):
        q.data = p.data
    whole = daceopt.training_step(found.ours.module, functional.cross_entropy, found.optimizers[0], fallback="raise")
    refused(Unsupported, "is a shard of it", lambda: whole(*found.every[dist.get_rank()][0]))


CHECKS = [
    by_momentum,
    by_adamw,
    in_groups_clipped,
    some_buckets,
    checkpoints,
    channels_last_halves,
    in_parts_between,
    what_no_rank_has_is_refused,
]
MORE = [by_adam, without_state, in_groups_hardly_clipped, checkpoints, channels_last_halves]

if __name__ == "__main__":
    ranks.main({check.__name__: check for check in MORE})
