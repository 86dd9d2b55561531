"""What ranks check of strategies that are timed: run by ``test_two_ranks``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

import daceopt
from daceopt.cost import measure
from daceopt.distributed.search import strategy_search
from daceopt.distributed.search.strategy import Strategy
from tests.distributed.equality import Net, Reference, adamw, batches, compare, equal_on_all_ranks, peer, sgd, train
from tests.numerics import assert_within_rounding

SECONDS = 3600.0  # what is tried depends on no clock
Wanted = Callable[[Strategy], bool]


@contextmanager
def fastest(model: Any, wanted: Wanted) -> Iterator[list[Strategy]]:
    """Within the block calls are made, and take as long as others, but for those with a strategy that is ``wanted``;
    the clock of each rank is another one. The strategies that were timed."""
    timed: list[Strategy] = []
    real, search = measure.sample, strategy_search.best_strategies

    def sample(calls: Mapping[str, Any], **options: Any) -> dict[str, list[float]]:
        real(calls, seconds=0, warmup=0, at_least=1)
        is_wanted = len(calls) > 1 and wanted(model.strategy)
        timed.append(model.strategy)
        return {name: [(0.5 if name == "own" and is_wanted else 1.0) + dist.get_rank()] for name in calls}

    def one_with_groups(problem: Any, groups: Any, module: Any, seconds: float, of_step: bool) -> list[Strategy]:
        return [s for s in search(problem, groups, module, 0.5, of_step) if s.groups][:1]

    measure.sample, strategy_search.best_strategies = sample, one_with_groups
    try:
        yield timed
    finally:
        measure.sample, strategy_search.best_strategies = real, search


def is_sharded(strategy: Strategy) -> bool:
    return any(bucket.sharded for bucket in strategy.buckets)


def a_step_takes_the_fastest() -> None:
    """The same on all ranks, and found again without timing anything."""
    torch.manual_seed(0)
    model, rank = Net(), dist.get_rank()
    every = [batches(r, 3) for r in range(dist.get_world_size())]
    loss = functional.cross_entropy
    for is_kept in (False, True):
        ours = daceopt.data_parallel(copy.deepcopy(model), tune=SECONDS, fallback="raise")
        theirs, exact = peer(model), Reference(model, adamw)
        optimizers = adamw(ours), adamw(theirs)
        step = daceopt.training_step(ours, loss, optimizers[0], fallback="raise")
        with fastest(ours, is_sharded) as timed:
            for k in range(3):
                step(*every[rank][k])
                train(theirs, optimizers[1], every[rank][k])
                exact.step([own[k] for own in every])
        step.gather_state()
        equal_on_all_ranks(ours)
        compare(ours, theirs, exact.model)
        (found,) = step.daceopt.stats.tuning
        assert is_sharded(ours.strategy) and found.name == "sharded", found.report()
        assert not (is_kept and timed) and found.trials[0].text == "auto"


def a_backward_takes_the_fastest() -> None:
    """One that groups operators, which holds for its graph alone: another batch takes the buckets."""
    model, rank = Net(), dist.get_rank()
    ours = daceopt.data_parallel(copy.deepcopy(model), tune=SECONDS, fallback="raise")
    theirs, exact = peer(model), Reference(model, sgd)
    with fastest(ours, lambda strategy: bool(strategy.groups)):
        for rows in (6, 4):
            every = [batches(r, 1, rows)[0] for r in range(dist.get_world_size())]
            for wrapped in (ours, theirs):
                wrapped.zero_grad()
                functional.cross_entropy(wrapped(every[rank][0]), every[rank][1]).backward()
            exact.optimizer.zero_grad()
            exact.backward(every)
            for p, q, r in zip(ours.parameters(), theirs.parameters(), exact.model.parameters()):
                if r.grad is not None:
                    assert_within_rounding(p.grad, r.grad, q.grad)
    assert ours.strategy.groups and not ours.reasons


CHECKS = [a_step_takes_the_fastest, a_backward_takes_the_fastest]
