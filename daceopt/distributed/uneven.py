"""What a rank without batches does while others have some: it takes part in what they exchange."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

from daceopt.distributed.exchange import Exchange
from daceopt.distributed.reducer import sequence
from daceopt.errors import WorkerError
from daceopt.ir.nodes.collective import ENDED, sequence_number

if TYPE_CHECKING:
    from daceopt.distributed.data_parallel import DataParallel


class ShadowHook(JoinHook):
    """One iteration of the others, with zeros; the model of the last at the end. As DistributedDataParallel's."""

    def __init__(self, owner: DataParallel) -> None:
        self._owner, self._exchange = owner, owner.daceopt_exchange

    def main_hook(self) -> None:
        """The exchanges of one iteration, in the order of ``DataParallel``."""
        owner, exchange = self._owner, self._exchange
        source = self.common_rank(exchange, -1)
        syncs = self.tell_sync(exchange, False)
        if owner.synced_before:
            exchange.broadcast_buffers(source)
        owner.synced_before = syncs
        if not syncs:
            return
        group = exchange.group
        told = [torch.empty(1, dtype=torch.int64) for _ in range(exchange.world)]
        with exchange.watch.inside():
            dist.all_gather(told, torch.tensor([ENDED]), group=group)
            buckets = _buckets(exchange)
            self._check({int(t) for t in told} - {ENDED}, buckets)
            for _, count, dtype in buckets:
                dist.all_reduce(torch.zeros(count, dtype=getattr(torch, dtype)), group=group)

    def _check(self, told: set[int], buckets: list[tuple[list[str], int, str]]) -> None:
        """Raises WorkerError where others exchange something else than the gradients of all parameters."""
        names = [w.name for w in self._exchange.strategy.identity.weights]
        if told - {sequence_number(buckets, self._exchange.world), sequence(names)}:
            raise WorkerError("ranks that have not ended (join) exchange gradients of some parameters only")

    def post_hook(self, is_last_joiner: bool) -> None:
        """All take the model of one that ended last."""
        exchange = self._exchange
        exchange.broadcast_all(self.common_rank(exchange, exchange.group.rank() if is_last_joiner else -1))

    @staticmethod
    def common_rank(exchange: Exchange, own: int) -> int:
        """The last rank of those that do not say -1."""
        found = torch.tensor([own])
        with exchange.watch.inside():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=exchange.group)
        return int(found)

    @staticmethod
    def tell_sync(exchange: Exchange, syncs: bool) -> bool:
        """Whether a rank that has not ended exchanges gradients in this iteration."""
        found = torch.tensor([int(syncs)])
        with exchange.watch.inside():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=exchange.group)
        return bool(found)


def _buckets(exchange: Exchange) -> list[tuple[list[str], int, str]]:
    """Names, elements and element type of each bucket; parameters without elements are in none."""
    weights = {w.name: w for w in exchange.strategy.identity.weights if 0 not in w.shape}
    found = [[n for n in b.parameters if n in weights] for b in exchange.strategy.buckets]
    return [(names, sum(prod(weights[n].shape) for n in names), weights[names[0]].dtype) for names in found if names]
