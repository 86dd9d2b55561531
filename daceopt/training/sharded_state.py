"""The state of an optimizer of which each rank has a part: that of the elements which it updates (Rajbhandari et al.,
ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020, section 5.1: stage 1).

A shard replaces the whole tensor, in ``optimizer.state``, and says whose it is. Whole tensors are taken apart
by the next step, so a checkpoint that holds all of the state is loaded as ever, by any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from daceopt.errors import StateInShards, Unsupported
from daceopt.ir.data.shards import shard_elements
from daceopt.training.step_exchange import StepExchange

_MARK = "_daceopt_shard"  # of a tensor that is one: (rank, world)


class ShardedState:
    """What of ``optimizer`` the ranks of ``exchange`` share among them."""

    def __init__(self, optimizer: torch.optim.Optimizer, exchange: StepExchange) -> None:
        self._optimizer, self._exchange = optimizer, exchange
        self._place = exchange.rank, exchange.world

    def elements(self) -> Mapping[int, int]:
        """Identity of a parameter -> elements of each rank, of those that are updated in shards."""
        sharded = self._exchange.sharded_parameters().values()
        return {id(p): shard_elements(p.numel(), self._exchange.world) for p in sharded if p.numel()}

    def own(self, tensor: torch.Tensor, elements: int) -> torch.Tensor:
        """This rank's shard of a whole tensor; itself, where it is that. Raises Unsupported for another rank's."""
        place = place_of(tensor)
        if place is not None:
            if place != self._place:
                ours = _place_text(self._place)
                raise Unsupported(
                    f"the optimizer's state is the shard of {_place_text(place)}; expected that of {ours}"
                )
            if tensor.shape != (elements,):
                raise Unsupported(f"the optimizer has a shard of shape {list(tensor.shape)}; expected [{elements}]")
            return tensor
        own = tensor.detach().reshape(-1)[self._place[0] * elements :][:elements]
        shard = self.empty(tensor, elements)
        shard[: own.numel()] = own
        return shard

    def empty(self, like: torch.Tensor, elements: int) -> torch.Tensor:
        """A shard of zeros."""
        shard = torch.zeros(elements, dtype=like.dtype, device=like.device)
        shard.__dict__[_MARK] = self._place
        return shard

    def gather(self, to: int | None = None) -> None:
        """All ranks: whole tensors in the place of shards, on all of them, or on rank ``to`` of the group alone.

        Raises WorkerError where ranks are not at the same place, ValueError for a rank that the group does not have.
        """
        rank, world = self._place
        if to is not None and not 0 <= to < world:
            raise ValueError(f"to={to}: expected None or a rank of the group, 0 to {world - 1}")
        guard = _guard_of(self._optimizer)
        if not (any(_shards(self._optimizer)) if guard is None else guard.is_spread):
            return
        held = list(self._shards())
        self._exchange.agree([f"{of}: {name}" for of, _, name, _ in held], "the optimizer's state")
        for _, parameter, name, shard in held:
            rows = self._exchange.gather(shard)
            if to in (None, rank):
                whole = torch.empty_like(parameter, memory_format=torch.preserve_format, requires_grad=False)
                self._optimizer.state[parameter][name] = whole.copy_(rows[: parameter.numel()].view(parameter.shape))
        if guard is not None:
            guard.is_spread = to is not None

    def spread(self) -> None:
        """From now on each rank has shards, and what needs the whole is refused."""
        guard = _guard_of(self._optimizer)
        if guard is None:
            guard = ShardGuard()
            self._optimizer.register_state_dict_pre_hook(guard)
            self._optimizer.register_step_pre_hook(guard)
        guard.is_spread = True

    def _shards(self) -> Iterator[tuple[str, torch.Tensor, str, torch.Tensor]]:
        """Name, parameter, name of a state and this rank's shard of it, whether it is whole here or not."""
        elements = self.elements()
        for of, parameter in self._exchange.sharded_parameters().items():
            for name, value in sorted((self._optimizer.state.get(parameter) or {}).items()):
                if isinstance(value, torch.Tensor) and name != "step" and id(parameter) in elements:
                    yield of, parameter, name, self.own(value, elements[id(parameter)])


class ShardGuard:
    """What stands before ``state_dict`` and ``step`` of an optimizer: neither can do with shards.

    ``is_spread``: whether ranks may have some, the same on all of them: a single one may have gathered what others
    have parts of.
    """

    is_spread = False

    def __call__(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Raises StateInShards where there are some."""
        first = next(_shards(optimizer), None)
        if first is not None:
            rank, world = place_of(first[2]) or (0, 1)
            raise StateInShards(
                f"the optimizer's state is spread over {world} ranks, of which this one has the part of {rank}; call "
                "gather_state() of the training step on all ranks first"
            )


def place_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """(rank, world) of a shard, None for a whole tensor."""
    place: tuple[int, int] | None = getattr(tensor, _MARK, None)
    return place


def _guard_of(optimizer: torch.optim.Optimizer) -> ShardGuard | None:
    """None before the first step in shards, and in a copy, whose hooks are gone."""
    return next((h for h in optimizer._optimizer_step_pre_hooks.values() if isinstance(h, ShardGuard)), None)


def _shards(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, str, torch.Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, value in (optimizer.state.get(parameter) or {}).items():
                if isinstance(value, torch.Tensor) and place_of(value) is not None:
                    yield parameter, name, value


def _place_text(place: tuple[int, int]) -> str:
    return f"rank {place[0]} of {place[1]}"
