"""What ranks check of ``data_parallel``: run by ``test_two_ranks``."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import daceopt
from daceopt.distributed.runtime.exchange import Exchange
from daceopt.distributed.search.strategy import Bucket, Identity, Strategy
from daceopt.errors import Unsupported, WorkerError
from tests.distributed import ranks
from tests.numerics import assert_within_rounding

Batch = tuple[torch.Tensor, torch.Tensor]
ROWS, FEATURES, CLASSES = 6, 8, 3


class Net(nn.Module):
    """Buffers, a shared weight, a parameter that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(FEATURES, 12), nn.BatchNorm1d(12), nn.Linear(12, CLASSES)
        self.again = nn.Linear(FEATURES, 12)
        self.again.weight = self.up.weight
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.norm(self.up(x) + torch.tanh(self.again(x)))))


def batches(rank: int, count: int, rows: int = ROWS) -> list[Batch]:
    """Those of one rank, as all ranks know them."""
    generator = torch.Generator().manual_seed(100 + rank)
    draw = [torch.randn(rows, FEATURES, generator=generator) for _ in range(count)]
    return [(x, torch.randint(0, CLASSES, (rows,), generator=generator)) for x in draw]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.002)


def loss_of(model: nn.Module, loss: Any, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Of a model that computes it itself (``loss`` is None), or of its result and the last tensor of the batch."""
    return model(*batch) if loss is None else loss(model(*batch[:-1]), batch[-1])  # type: ignore[no-any-return]


class Reference:
    """All ranks in one process, in float64: the mean of the losses on their batches; buffers are those of rank 0."""

    def __init__(
        self,
        model: nn.Module,
        make: Callable[[nn.Module], torch.optim.Optimizer],
        loss: Any = functional.cross_entropy,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.model, self.loss, self.dtype = copy.deepcopy(model).to(dtype), loss, dtype
        self.optimizer = make(self.model)

    def backward(self, every: Sequence[tuple[torch.Tensor, ...]]) -> None:
        before = [b.clone() for b in self.model.buffers()]
        after: list[torch.Tensor] = []
        for batch in every:
            with torch.no_grad():
                for buffer, old in zip(self.model.buffers(), before):
                    buffer.copy_(old)
            same = tuple(t.to(self.dtype) if t.is_floating_point() else t for t in batch)
            (loss_of(self.model, self.loss, same) / len(every)).backward()
            after = after or [b.clone() for b in self.model.buffers()]
        with torch.no_grad():
            for buffer, new in zip(self.model.buffers(), after):
                buffer.copy_(new)

    def step(self, every: Sequence[tuple[torch.Tensor, ...]]) -> None:
        self.optimizer.zero_grad()
        self.backward(every)
        self.optimizer.step()


def train(wrapped: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(wrapped(batch[0]), batch[1]).backward()
    optimizer.step()


def peer(model: nn.Module) -> DistributedDataParallel:
    return DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=True)


def compare(ours: nn.Module, theirs: nn.Module, exact: nn.Module) -> None:
    """Parameters; and buffers, once all have those of rank 0."""
    for wrapped in (ours, theirs):
        for buffer in wrapped.buffers():
            dist.broadcast(buffer, 0)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    states = (m.state_dict().values() for m in (ours, theirs, exact))
    for name, a, b, c in zip(exact.state_dict(), *states):
        try:
            assert_within_rounding(a, c, b)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def equal_on_all_ranks(model: nn.Module) -> None:
    for name, p in model.named_parameters():
        own = [torch.empty_like(p) for _ in range(dist.get_world_size())]
        dist.all_gather(own, p.detach())
        assert all(torch.equal(own[0], other) for other in own), name


def trained(make: Callable[[nn.Module], torch.optim.Optimizer], strategy: Any, steps: int, whole: bool) -> None:
    """As DistributedDataParallel, and as one process in float64."""
    torch.manual_seed(dist.get_rank())  # parameters are those of rank 0 at first, whoever made others
    ours = daceopt.data_parallel(Net(), strategy=strategy, fallback="raise")
    torch.manual_seed(0)
    model = Net()
    theirs, exact = peer(model), Reference(model, make)
    optimizers = make(ours), make(theirs)
    loss = functional.cross_entropy
    step = daceopt.training_step(ours, loss, optimizers[0], fallback="raise") if whole else None
    every = [batches(rank, 4) for rank in range(dist.get_world_size())]
    for k in range(steps):
        now = [own[k % 4] for own in every]
        if step is None:
            train(ours, optimizers[0], now[dist.get_rank()])
        else:
            step(*now[dist.get_rank()])
        train(theirs, optimizers[1], now[dist.get_rank()])
        exact.step(now)
    assert not ours.reasons
    equal_on_all_ranks(ours)
    compare(ours, theirs, exact.model)


def by_backward() -> None:
    trained(sgd, "auto", 12, whole=False)


def by_training_step() -> None:
    trained(sgd, "auto", 50, whole=True)


def by_adamw_each_gradient_alone() -> None:
    trained(adamw, "none", 10, whole=True)


def by_a_file() -> None:
    names = [n for n, p in Net().named_parameters() if p.requires_grad]
    buckets = (Bucket((names[-1], names[0])), Bucket(tuple(names[1:-1])))
    strategy = Strategy(Identity.of(Net(), dist.get_world_size()), buckets, wait="end")
    trained(sgd, strategy, 4, whole=True)


def gradients(wrapped: Any, own: list[Batch], quiet: int) -> None:
    """Two passes, of which the first ``quiet`` are in ``no_sync``."""
    for k, (x, y) in enumerate(own):
        if k < quiet:
            with wrapped.no_sync():
                functional.cross_entropy(wrapped(x), y).backward()
        else:
            functional.cross_entropy(wrapped(x), y).backward()


def accumulated(quiet: int) -> None:
    model = Net()
    ours, theirs = daceopt.data_parallel(copy.deepcopy(model), fallback="raise"), peer(model)
    exact = Reference(model, sgd)
    every = [batches(rank, 2) for rank in range(dist.get_world_size())]
    for _ in range(2):  # the second time everything is compiled, and gradients of the first are there still
        for wrapped in (ours, theirs):
            gradients(wrapped, every[dist.get_rank()], quiet)
        for k in range(2):
            exact.backward([own[k] for own in every])
    for (name, p), q, r in zip(ours.named_parameters(), theirs.parameters(), exact.model.parameters()):
        assert (p.grad is None) == (r.grad is None), name
        if p.grad is not None:
            assert_within_rounding(p.grad, r.grad, q.grad)


def without_no_sync() -> None:
    accumulated(0)


def with_no_sync() -> None:
    accumulated(1)


def micro_batches() -> None:
    """``accumulate`` of a training step reduces once."""
    model = Net()
    ours, exact = daceopt.data_parallel(copy.deepcopy(model), fallback="raise"), Reference(model, sgd)
    loss = functional.cross_entropy
    step = daceopt.training_step(ours, loss, sgd(ours), accumulate=2, clip_norm=0.1, fallback="raise")
    theirs = peer(model)
    optimizer = sgd(theirs)
    every = [batches(rank, 4) for rank in range(dist.get_world_size())]
    for k in range(4):
        step(*every[dist.get_rank()][k])
    for k in (0, 2):
        for wrapped, chosen in ((theirs, optimizer), (None, exact.optimizer)):
            chosen.zero_grad()
            for j in (k, k + 1):
                if wrapped is None:
                    exact.backward([own[j] for own in every])
                else:
                    functional.cross_entropy(
                        wrapped(every[dist.get_rank()][j][0]), every[dist.get_rank()][j][1]
                    ).backward()
            parameters = [p for p in (wrapped or exact.model).parameters() if p.grad is not None]
            for p in parameters:
                p.grad /= 2
            nn.utils.clip_grad_norm_(parameters, 0.1)
            chosen.step()
    compare(ours, theirs, exact.model)


class Used(Net):
    """Without the parameter that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        del self.unused


def uneven_batches() -> None:
    """A rank that has no more batches shadows the others, with zeros; then all have the model of the last."""
    model = Used()
    ours, theirs = daceopt.data_parallel(copy.deepcopy(model), fallback="raise"), DistributedDataParallel(model)
    exact = copy.deepcopy(model).double()
    every = [batches(rank, 2 + rank) for rank in range(dist.get_world_size())]
    for wrapped in (ours, theirs):
        optimizer = sgd(wrapped)
        with wrapped.join():
            for batch in every[dist.get_rank()]:
                train(wrapped, optimizer, batch)
    optimizer = sgd(exact)
    for k in range(max(map(len, every))):
        now = [own[k] for own in every if k < len(own)]
        optimizer.zero_grad()
        for x, y in now:  # buffers are those of one rank: not compared
            (functional.cross_entropy(exact(x.double()), y) / dist.get_world_size()).backward()
        optimizer.step()
    equal_on_all_ranks(ours)
    for a, b, c in zip(ours.parameters(), theirs.parameters(), exact.parameters()):
        assert_within_rounding(a, c, b)
    for a, b in zip(ours.buffers(), theirs.buffers()):
        assert_within_rounding(a, b.double() if b.is_floating_point() else b)


class TwoHeads(nn.Module):
    """Of two heads a call uses one; a parameter has no elements."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0))
        self.body, self.heads = nn.Linear(6, 5), nn.ModuleList(nn.Linear(5, 3) for _ in range(2))

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](self.body(x).tanh()) + self.nothing.sum()  # type: ignore[no-any-return]


def uneven_batches_of_some_parameters() -> None:
    """Those that have ended learn which gradients the others exchange: in a program, and behind a backward pass."""
    model, world = TwoHeads(), dist.get_world_size()
    exact = copy.deepcopy(model).double()
    ours = daceopt.data_parallel(copy.deepcopy(model), fallback="raise")
    theirs = DistributedDataParallel(model, find_unused_parameters=True)
    calls = [(k, torch.randn(4, 6, generator=torch.Generator().manual_seed(k))) for k in range(4 * world)]
    own = calls[: 4 + 4 * dist.get_rank()]
    for wrapped in (ours, theirs):
        optimizer = sgd(wrapped)
        with wrapped.join():
            for (k, x), (_, y) in zip(own[::2], own[1::2]):
                optimizer.zero_grad()
                with wrapped.no_sync() if k % 4 == 0 else nullcontext():
                    wrapped(x, k // 4 % 2).square().mean().backward()
                if k % 4 == 0:
                    wrapped(y, k // 4 % 2).square().mean().backward()
                optimizer.step()
    optimizer = sgd(exact)
    for k in range(0, len(calls), 2):
        optimizer.zero_grad()
        ranks_left = sum(k < 4 + 4 * rank for rank in range(world))
        for x in [calls[k][1], calls[k + 1][1]][: 2 if k % 4 == 0 else 1]:
            (exact(x.double(), k // 4 % 2).square().mean() * ranks_left / world).backward()
        optimizer.step()
    equal_on_all_ranks(ours)
    for a, b, c in zip(ours.parameters(), theirs.parameters(), exact.parameters()):
        assert_within_rounding(a, c, b)


def checkpoints() -> None:
    """Keys are those of DistributedDataParallel; a checkpoint of the model itself is taken, too."""
    model = Net()
    ours, theirs = daceopt.data_parallel(copy.deepcopy(model)), peer(model)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    other = Net()
    for state in (peer(other).state_dict(), other.state_dict()):
        ours.load_state_dict(copy.deepcopy(model.state_dict()))
        ours.load_state_dict(state)
        assert torch.equal(
            ours.module.up.weight, other.up.weight if "up.weight" in state else state["module.up.weight"]
        )


def evaluation() -> None:
    """Without gradients nothing is exchanged but buffers, and results are the model's."""
    model = Net()
    ours, exact = daceopt.data_parallel(copy.deepcopy(model), fallback="raise"), copy.deepcopy(model).double().eval()
    with torch.no_grad():
        x = batches(dist.get_rank(), 1)[0][0]
        assert_within_rounding(ours.eval()(x), exact(x.double()), model.eval()(x))


class Breaking(Net):
    """No single graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 1e6:
            return super().forward(-x)
        return super().forward(x)


def in_parts() -> None:
    model = Breaking()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs, exact = daceopt.data_parallel(copy.deepcopy(model)), peer(model), Reference(model, sgd)
        optimizers = sgd(ours), sgd(theirs)
        every = [batches(rank, 3) for rank in range(dist.get_world_size())]
        for k in range(3):
            for wrapped, optimizer in zip((ours, theirs), optimizers):
                train(wrapped, optimizer, every[dist.get_rank()][k])
            exact.step([own[k] for own in every])
    assert len(ours.reasons) == 1
    equal_on_all_ranks(ours)
    compare(ours, theirs, exact.model)


def ddp_of_an_optimized_module() -> None:
    model = Net()
    inner = daceopt.optimized_module(copy.deepcopy(model), fallback="raise")
    ours, theirs = DistributedDataParallel(inner, find_unused_parameters=True), peer(model)
    exact, optimizers = Reference(model, sgd), (sgd(ours), sgd(theirs))
    every = [batches(rank, 3) for rank in range(dist.get_world_size())]
    for k in range(3):
        for wrapped, optimizer in zip((ours, theirs), optimizers):
            train(wrapped, optimizer, every[dist.get_rank()][k])
        exact.step([own[k] for own in every])
    compare(ours, theirs, exact.model)


def raises(error: type[BaseException], match: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except error as found:
        assert match in str(found), str(found)
        return
    raise AssertionError(f"no {error.__name__} with {match!r}")


def differing_models() -> None:
    width = 3 + dist.get_rank()
    model = nn.Linear(2, width)
    raises(WorkerError, "rank 1 differs from rank 0: parameter weight is float32[4, 2]", lambda: parallel(model))


def differing_strategies() -> None:
    chosen = ("auto", "none")[dist.get_rank()]
    raises(WorkerError, "rank 1 differs from rank 0: strategy: none, expected auto", lambda: parallel(Net(), chosen))
    told = "rank 1 differs from rank 0: tune: 30.0, expected None"
    tune = (None, "30s")[dist.get_rank()]
    raises(WorkerError, told, lambda: daceopt.data_parallel(Net(), tune=tune))


def a_strategy_for_more_ranks() -> None:
    names = tuple(n for n, _ in Net().named_parameters())
    chosen = Strategy(Identity.of(Net(), 7), (Bucket(names),))
    raises(daceopt_error("StrategyError"), "2 workers, expected 7", lambda: parallel(Net(), chosen))
    raises(daceopt_error("StrategyError"), "No such file", lambda: parallel(Net(), "missing.json"))


def daceopt_error(name: str) -> type[BaseException]:
    import daceopt.errors

    return getattr(daceopt.errors, name)  # type: ignore[no-any-return]


def parallel(model: nn.Module, strategy: Any = "auto") -> Any:
    return daceopt.data_parallel(model, strategy=strategy, fallback="raise")


def a_group_without_this_rank() -> None:
    group = dist.new_group([0])
    if dist.get_rank() == 0:
        ours = daceopt.data_parallel(nn.Linear(FEATURES, CLASSES), group=group, fallback="raise")
        model = copy.deepcopy(ours.module).double()
        x, y = batches(0, 1)[0]
        functional.cross_entropy(ours(x), y).backward()
        functional.cross_entropy(model(x.double()), y).backward()
        assert_within_rounding(ours.module.weight.grad, model.weight.grad)
    else:
        raises(ValueError, "rank 1 is not in the group", lambda: daceopt.data_parallel(Net(), group=group))
    dist.barrier()


def a_gradient_on_one_rank_only() -> None:
    """The last check: the group is at different places on different ranks behind it."""
    ours = parallel(Net())
    x, y = batches(dist.get_rank(), 1)[0]
    if dist.get_rank() == 0:
        ours.module.norm.weight.requires_grad_(False)
    raises(WorkerError, "is about to exchange other gradients", lambda: functional.cross_entropy(ours(x), y).backward())


def one_rank_compiles() -> None:
    """The other takes the program from the cache that they share."""
    ours = daceopt.data_parallel(nn.Linear(5, 2), fallback="raise")
    ours(torch.ones(3, 5)).sum().backward()
    (graph,) = ours._dispatcher.graphs
    built = torch.tensor([not graph.pair.cached], dtype=torch.int64)
    dist.all_reduce(built)
    assert int(built) == 1


def as_on_a_device() -> None:
    """Where no program exchanges, gradients are averaged behind the backward pass; steps run in parts."""
    refusal, Exchange._refusal = Exchange._refusal, lambda self: "the model is far"  # type: ignore[method-assign]
    try:
        raises(Unsupported, "the model is far", lambda: parallel(Net()))
        model = Net()
        ours, theirs = daceopt.data_parallel(copy.deepcopy(model), fallback="silent"), peer(model)
        exact, optimizers = Reference(model, sgd), (sgd(ours), sgd(theirs))
        step = daceopt.training_step(ours, functional.cross_entropy, optimizers[0], fallback="silent")
        every = [batches(rank, 4) for rank in range(dist.get_world_size())]
        for k in range(4):
            now = [own[k] for own in every]
            if k % 2:
                step(*now[dist.get_rank()])
            else:
                train(ours, optimizers[0], now[dist.get_rank()])
            train(theirs, optimizers[1], now[dist.get_rank()])
            exact.step(now)
            with ours.no_sync():
                pass
        assert ours.reasons == {"the model is far": 4} and step.reasons == {"the model is far": 2}
        equal_on_all_ranks(ours)
        compare(ours, theirs, exact.model)
    finally:
        Exchange._refusal = refusal  # type: ignore[method-assign]


def second_derivatives() -> None:
    ours = parallel(Net())
    x, y = batches(dist.get_rank(), 1)[0]
    loss = functional.cross_entropy(ours(x), y)
    first = lambda: torch.autograd.grad(loss, ours.module.down.weight, create_graph=True)  # noqa: E731
    raises(Unsupported, "a gradient of a gradient", first)


CHECKS = (
    *(by_backward, by_training_step, with_no_sync, uneven_batches, uneven_batches_of_some_parameters),
    *(checkpoints, evaluation, in_parts, ddp_of_an_optimized_module, one_rank_compiles),
    *(differing_models, differing_strategies, a_strategy_for_more_ranks, a_group_without_this_rank),
    *(a_gradient_on_one_rank_only, micro_batches, as_on_a_device),
)

MORE = (by_adamw_each_gradient_alone, by_a_file, without_no_sync, second_derivatives)

if __name__ == "__main__":
    ranks.main({check.__name__: check for check in MORE})
