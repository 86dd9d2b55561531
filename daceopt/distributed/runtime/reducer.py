"""Gradients averaged over ranks behind a backward pass: for what no program exchanges while it computes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from daceopt.distributed.runtime.exchange import Exchange
from daceopt.errors import WorkerError
from daceopt.ir.nodes.collective import ENDED, listed_number
from daceopt.torch_internals import autograd_engine, torch_operators


class Reducer:
    """Averages ``.grad`` of all parameters, what was accumulated before included, once the backward pass is over.

    Hooks stand on the parameters from the first call that needs them until it is over.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._hooks: list[Any] = []
        self._is_queued = False

    def arm(self) -> None:
        """Let the next backward pass end with an exchange."""
        if not self._hooks:
            parameters = [p for p in self._exchange.model.parameters() if p.requires_grad]
            self._hooks = [p.register_post_accumulate_grad_hook(self._on_computed) for p in parameters]

    def disarm(self) -> None:
        """The next backward pass exchanges nothing here."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _on_computed(self, _: torch.Tensor) -> None:
        if not self._is_queued:
            self._is_queued = True
            autograd_engine.call_after_backward(self._exchange_all)

    def _exchange_all(self) -> None:
        self._is_queued = False
        self.disarm()
        self.average()

    def average(self) -> None:
        """Average ``.grad`` over ranks, bucket by bucket. Raises WorkerError, on all ranks, where a parameter has a
        gradient on some ranks only."""
        exchange = self._exchange
        named = {n: p for n, p in exchange.model.named_parameters() if p.requires_grad}
        present = [n for n, p in named.items() if p.grad is not None]
        with torch.no_grad(), exchange.watch.inside():
            buckets = exchange.buckets(present)
            number = sequence(present)
            exchange.publish(number, buckets)
            self._agree(number, present, list(named))
            waiting = [self._start([named[n] for n in names]) for names, _, _ in buckets]
            for flat, parameters, work in waiting:
                work.wait()
                torch_operators.foreach_copy([p.grad for p in parameters], _parts(flat, parameters))

    def _agree(self, number: int, present: list[str], names: list[str]) -> None:
        """All ranks tell the ``number`` of the gradients that they have, where programs tell their sequences."""
        exchange = self._exchange
        if len({*exchange.tell(number)} - {ENDED}) == 1:
            return
        flags = torch.tensor([n in present for n in names], dtype=torch.uint8, device=exchange.told_on)
        every = [torch.empty_like(flags) for _ in range(exchange.world)]
        dist.all_gather(every, flags, group=exchange.group)
        for k, name in enumerate(names):
            absent = [r for r, own in enumerate(every) if not own[k]]
            if 0 < len(absent) < exchange.world:
                raise WorkerError(f"parameter {name} has no gradient on rank {absent[0]}, and one on others")
        raise WorkerError("some ranks exchange gradients in a program, and others do not")

    def _start(self, parameters: list[nn.Parameter]) -> tuple[torch.Tensor, list[nn.Parameter], Any]:
        flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None]).div_(self._exchange.world)
        return flat, parameters, dist.all_reduce(flat, group=self._exchange.group, async_op=True)


def sequence(names: list[str]) -> int:
    """What stands for an exchange of the gradients of these parameters behind a backward pass."""
    return listed_number("behind the backward pass", names)


def _parts(flat: torch.Tensor, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    pieces = torch.split(flat, [p.numel() for p in parameters])
    return [piece.view(p.shape) for piece, p in zip(pieces, parameters)]
