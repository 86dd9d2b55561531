"""What ranks have to agree on before the first step: they find out who differs, and in what."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from torch import nn

from daceopt.distributed.runtime.bucketing import alone, by_size, in_shards
from daceopt.distributed.runtime.faults import Watch
from daceopt.distributed.search.strategy import Identity, Strategy
from daceopt.errors import StrategyError, WorkerError

RULES = ("auto", "none", "sharded")
Chosen = str | os.PathLike[str] | Strategy


def agree(model: nn.Module, watch: Watch, strategy: Chosen, tune: float | None = None) -> Strategy:
    """The strategy of all ranks of the group of ``watch`` for ``model``: rank 0 reads a file for all of them.

    Raises WorkerError, on every rank, where they have other parameters, buffers, versions or options, and StrategyError
    where the strategy is for something else.
    """
    group = watch.group
    identity = Identity.of(model, group.size())
    answer = _tell(identity, model, strategy) if group.rank() == 0 else _ranks_own(identity, model, strategy)
    answer["tune"] = tune
    everyone: list[Any] = [None] * group.size()
    with watch.inside():
        dist.all_gather_object(everyone, answer, group=group)
    first = everyone[0]
    for rank, other in enumerate(everyone):
        texts = first["identity"].differences(other["identity"])
        texts += [
            f"{w}: {other[w]}, expected {first[w]}" for w in ("buffers", "strategy", "tune") if other[w] != first[w]
        ]
        if texts:
            raise WorkerError(f"rank {rank} differs from rank 0: {'; '.join(texts[:8])}")
    if first["error"]:
        raise StrategyError(first["error"])
    return Strategy.parse(first["text"]).check(identity)


def _ranks_own(identity: Identity, model: nn.Module, strategy: Chosen) -> dict[str, Any]:
    buffers = {n: f"{b.dtype}{list(b.shape)}" for n, b in model.named_buffers()}
    digest = strategy.digest() if isinstance(strategy, Strategy) else str(strategy)
    return {"identity": identity, "buffers": buffers, "strategy": digest, "error": "", "text": ""}


def _tell(identity: Identity, model: nn.Module, strategy: Chosen) -> dict[str, Any]:
    """What rank 0 says: its own, and the strategy or why there is none."""
    own = _ranks_own(identity, model, strategy)
    try:
        return {**own, "text": _choose(identity, strategy).check(identity).text()}
    except (StrategyError, OSError) as error:
        return {**own, "error": str(error)}


def _choose(identity: Identity, strategy: Chosen) -> Strategy:
    if isinstance(strategy, Strategy):
        return strategy
    return by_rule(identity, str(strategy)) if strategy in RULES else Strategy.load(strategy)


def by_rule(identity: Identity, rule: str) -> Strategy:
    """The strategy that one of ``RULES`` makes."""
    buckets = (alone if rule == "none" else by_size)(identity.weights)
    return Strategy(identity, in_shards(buckets) if rule == "sharded" else buckets)
