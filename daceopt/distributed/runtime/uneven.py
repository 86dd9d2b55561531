"""What a rank without batches does while others have some: it takes part in what they exchange."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

from daceopt.distributed.runtime.exchange import Exchange
from daceopt.errors import WorkerError
from daceopt.ir.nodes.collective import ENDED, Exchanged


class ShadowHook(JoinHook):
    """One iteration of the others, with zeros; the model of the last at the end. As DistributedDataParallel's."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def main_hook(self) -> None:
        """The exchanges of one iteration, in the order of ``DataParallel``."""
        exchange = self._exchange
        source = self.common_rank(exchange, -1)
        syncs = self.tell_sync(exchange, False)
        if exchange.synced_before:
            exchange.broadcast_buffers(source)
        exchange.synced_before = syncs
        if not syncs:
            return
        with exchange.watch.inside():
            for _, count, dtype in self._exchanges_behind({*exchange.tell(ENDED)} - {ENDED}):
                zeros = torch.zeros(count, dtype=getattr(torch, dtype), device=exchange.device)
                dist.all_reduce(zeros, group=exchange.group)

    def _exchanges_behind(self, numbers: set[int]) -> list[Exchanged]:
        """What is behind the one number that the others have ``told``. Raises WorkerError where they do not agree,
        or have told nobody."""
        reason = self._exchange.watch.published_reason(next(iter(numbers))) if len(numbers) == 1 else None
        if reason is None:
            raise WorkerError("ranks that have not ended (join) do not exchange the same gradients")
        return [(names, int(count), str(dtype)) for names, count, dtype in json.loads(reason)]

    def post_hook(self, is_last_joiner: bool) -> None:
        """All take the model of one that ended last."""
        exchange = self._exchange
        exchange.broadcast_all(self.common_rank(exchange, exchange.group.rank() if is_last_joiner else -1))

    @staticmethod
    def common_rank(exchange: Exchange, own: int) -> int:
        """The last rank of those that do not say -1."""
        highest = torch.tensor([own], device=exchange.told_on)
        with exchange.watch.inside():
            dist.all_reduce(highest, dist.ReduceOp.MAX, group=exchange.group)
        return int(highest)

    @staticmethod
    def tell_sync(exchange: Exchange, syncs: bool) -> bool:
        """Whether a rank that has not ended exchanges gradients in this iteration."""
        highest = torch.tensor([int(syncs)], device=exchange.told_on)
        with exchange.watch.inside():
            dist.all_reduce(highest, dist.ReduceOp.MAX, group=exchange.group)
        return bool(highest)
