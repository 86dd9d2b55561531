"""``data_parallel``: a model whose gradients are averages over the ranks of a process group, as those of PyTorch's
DistributedDataParallel are, exchanged by its compiled backward program while it computes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from daceopt.distributed.runtime.agreement import agree
from daceopt.distributed.runtime.exchange import Exchange
from daceopt.distributed.runtime.faults import Watch
from daceopt.distributed.runtime.parallel_backend import ParallelDispatcher
from daceopt.distributed.runtime.reducer import Reducer
from daceopt.distributed.runtime.tuning import tune
from daceopt.distributed.runtime.uneven import ShadowHook
from daceopt.distributed.search.strategy import Strategy
from daceopt.errors import DaceoptError, Unsupported, WorkerError
from daceopt.modules import options as checked
from daceopt.modules.dispatch import Dispatcher, note
from daceopt.modules.options import Options
from daceopt.runtime.places import common_device
from daceopt.training.objective import Objective

if TYPE_CHECKING:
    from daceopt.passes.recipe import Recipe


def data_parallel(
    model: nn.Module,
    *,
    group: dist.ProcessGroup | None = None,
    strategy: str | os.PathLike[str] | Strategy = "auto",
    recipe: str | Recipe = "auto",
    dynamic: object = None,
    fallback: str = "warn",
    broadcast_buffers: bool = True,
    tune: bool | float | str | None = None,
) -> DataParallel:
    """``model`` on each rank of ``group`` (None: all), with gradients that are averages over the ranks.

    Like DistributedDataParallel: parameters and buffers are those of the group's rank 0 at first, buffers in each
    forward (``broadcast_buffers``); ``no_sync`` and ``join`` mean what they mean there, and so do the keys of
    ``state_dict`` ("module." before the model's own, which are loaded as well). What is summed over ranks starts in the
    compiled backward program as soon as it is computed. A model that is no single graph exchanges behind its backward
    pass, with the reason in ``reasons``.

    strategy  "auto": buckets of 25 MB, the first of 1 MB, in the reverse order of parameters; "sharded": the same, of
              which each rank of a ``training_step`` updates a part, and holds the optimizer's state of that part;
              "none": each gradient alone; a file or a ``Strategy`` that was searched. Rank 0 reads the file for all
    recipe, dynamic, fallback    as for ``optimized_module``; "auto" is ``disco``
    tune      seconds (True: 10; "2min") in which all ranks time the first program that exchanges with this strategy,
              with those of rules, and with the best that a search in simulation finds; the fastest is ``strategy`` from
              then on, and is kept in the cache

    Works in ``training_step``, whose program updates the parameters of a bucket once it is reduced. Raises TypeError
    for what is no module, ValueError for one without trained parameters and for a group without this rank, RuntimeError
    where torch.distributed is not initialized, WorkerError where ranks differ, StrategyError for a strategy that is for
    something else.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"data_parallel takes an nn.Module, not {type(model).__name__}")
    options = checked.check(recipe, None, dynamic, fallback, None, tune)
    return DataParallel(model, _group(group), strategy, options, broadcast_buffers)


class DataParallel(nn.Module, Joinable):
    """What :func:`data_parallel` gives; ``module`` is the model."""

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup,
        strategy: str | os.PathLike[str] | Strategy,
        options: Options,
        broadcast_buffers: bool = True,
    ) -> None:
        nn.Module.__init__(self)
        Joinable.__init__(self)
        _check(module)
        self.module, self._options = module, options
        watch = Watch(group)
        exchange = Exchange(module, watch, agree(module, watch, strategy, options.tune))
        exchange.broadcasts_buffers = broadcast_buffers
        exchange.tuner = None if options.tune is None else partial(tune, exchange, options.tune)
        exchange.broadcast_all()
        self.daceopt_exchange = exchange
        self.daceopt_reducer = Reducer(exchange)
        self.require_backward_grad_sync = True
        self.reasons: dict[str, int] = {}  # why calls exchange behind the backward pass, and how many for each
        self._refusal = exchange.refusal
        if self._refusal and options.fallback == "raise":
            raise Unsupported(self._refusal)
        whole = Options(options.recipe, None, options.dynamic, "raise", None)
        self._dispatcher = ParallelDispatcher(whole, exchange)
        self._in_pieces = Dispatcher(Options(options.recipe, None, options.dynamic, options.fallback))
        self._called = (Objective(module, None, 0),)  # in a tuple: it is no submodule
        self.register_load_state_dict_pre_hook(_take_plain_keys)

    @property
    def strategy(self) -> Strategy:
        """How gradients are exchanged."""
        return self.daceopt_exchange.strategy

    def forward(self, *arguments: object, **kwargs: object) -> Any:
        """The model's result; a backward pass from it leaves averages over ranks in ``.grad``."""
        if self.daceopt_exchange.is_traced:  # the program that is traced exchanges what it computes
            return self.module(*arguments, **kwargs)
        return self._exchanging(arguments, kwargs)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("a process group cannot be copied; copy or pickle `.module`, or save `state_dict()`")

    @torch.compiler.disable
    def _exchanging(self, arguments: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        syncs = self.require_backward_grad_sync and torch.is_grad_enabled()
        self._enter(syncs)
        behind = syncs and (bool(self._refusal) or self.daceopt_exchange.has_own)
        self.daceopt_reducer.disarm()
        if not self._refusal:
            self._dispatcher.exchanges = syncs and not behind
            try:
                result = self._dispatcher.call(self._called[0], Objective.forward, arguments, kwargs)
                return self._leave_call(result, syncs, behind)
            except WorkerError:
                raise
            except DaceoptError as error:
                self._refusal = str(error).splitlines()[0]
                if self._options.fallback == "raise":
                    raise
        result = self._in_parts(arguments, kwargs)
        return self._leave_call(result, syncs, syncs)

    def _enter(self, syncs: bool) -> None:
        """What precedes a forward: word to those that have joined, and rank 0's buffers."""
        exchange = self.daceopt_exchange
        Join.notify_join_context(self)
        source = 0
        if self._join_config.enable:
            source = ShadowHook.common_rank(exchange, exchange.group.rank())
            ShadowHook.tell_sync(exchange, syncs)
        if exchange.synced_before:
            exchange.broadcast_buffers(source)
        exchange.synced_before = syncs

    def _leave_call(self, result: object, syncs: bool, behind: bool) -> Any:
        if behind:
            self.daceopt_reducer.arm()
            self.daceopt_exchange.has_own = False
        elif torch.is_grad_enabled() and not syncs:
            self.daceopt_exchange.has_own = True
        return result

    def _in_parts(self, arguments: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        message = f"{type(self.module).__name__} exchanges gradients behind its backward pass: {self._refusal}"
        note(self.reasons, self._refusal, message, self._options.fallback)
        return self._in_pieces.call(self._called[0], Objective.forward, arguments, kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within the block gradients stay those of this rank; the first backward pass behind it averages what was
        accumulated."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        refusal = self.daceopt_exchange.refusal
        self.daceopt_exchange.refusal = "a step in no_sync would update by gradients of one rank"
        try:
            yield
        finally:
            self.require_backward_grad_sync = before
            self.daceopt_exchange.refusal = refusal

    # ---------------------------------------------------------------- uneven inputs

    @contextmanager
    def join(
        self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
    ) -> Iterator[None]:
        """Ranks may have different numbers of batches: those that have ended take part in the exchanges of the others
        with zeros, and all have the same model at the end. ValueError unless it divides by the initial world size."""
        refusal = self.daceopt_exchange.refusal
        self.daceopt_exchange.refusal = "ranks may have ended (join), which take part in plain steps only"
        try:
            with Join(
                [self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size
            ):
                yield
        finally:
            self.daceopt_exchange.refusal = refusal

    def join_hook(self, **kwargs: object) -> JoinHook:
        """What this rank does once it has ended."""
        if not kwargs.get("divide_by_initial_world_size", True):
            raise ValueError("divide_by_initial_world_size=False; expected True: gradients are averages over all ranks")
        return ShadowHook(self.daceopt_exchange)

    @property
    def join_device(self) -> torch.device:
        return self.daceopt_exchange.device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        return self.daceopt_exchange.group


def _take_plain_keys(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """A checkpoint of the model itself is one of ours, too."""
    own = f"{prefix}module."
    keys = [k for k in state if k.startswith(prefix)]
    if keys and not any(k.startswith(own) for k in keys):
        for key in keys:
            state[own + key.removeprefix(prefix)] = state.pop(key)


def _group(group: object) -> dist.ProcessGroup:
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("torch.distributed is not initialized; call torch.distributed.init_process_group first")
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, dist.ProcessGroup):
        raise ValueError(f"rank {dist.get_rank()} is not in the group, {group!r}; expected a group with this rank")
    return chosen


def _check(module: nn.Module) -> None:
    trained = [p for p in module.parameters() if p.requires_grad]
    if not trained:
        raise ValueError(f"{type(module).__name__} has no parameter that is trained; expected one or more")
    common_device(dict(chain(module.named_parameters(), module.named_buffers())))
