"""The graph of a model that exchanges gradients: two programs, of which one does so in its backward."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from daceopt.capture.torch.traced import Traced
from daceopt.distributed.runtime.exchange import Exchange
from daceopt.ir.control.imported import Reduction
from daceopt.modules.backend import Backend, CompiledGraph, load_graph
from daceopt.modules.by_size import own_mode
from daceopt.modules.description import identity
from daceopt.modules.dispatch import Dispatcher
from daceopt.modules.options import Options
from daceopt.modules.repeated_call import repeatable
from daceopt.passes.recipe import Recipe
from daceopt.programs.tuning.search import Contender
from daceopt.runtime.seeds import own_random_numbers
from daceopt.training.step_exchange import TunedGraph, Tuner


class ParallelDispatcher(Dispatcher):
    """Dispatches calls of a model whose programs exchange gradients, while ``exchanges``."""

    is_alone = False

    def __init__(self, options: Options, exchange: Exchange) -> None:
        super().__init__(options)
        self.exchange, self.exchanges = exchange, True

    def _backend(self) -> Backend:
        return _ParallelBackend(self)


class _ParallelBackend(Backend):
    """Compiles graphs of which parameters are arguments as :class:`_ParallelGraph`."""

    orders_arguments = False

    leaves_small = False  # calls that look alike exchange gradients, or do not

    def __init__(self, dispatcher: ParallelDispatcher) -> None:
        super().__init__(dispatcher.options, dispatcher.stats, dispatcher._refuse)
        self.dispatcher = dispatcher

    def add(self, traced: Traced, inputs: Sequence[object]) -> Any:
        reduction = self.dispatcher.exchange.reduction(dict(enumerate(inputs)))
        if reduction is None or not torch.is_grad_enabled():
            return super().add(traced, inputs)
        return _ParallelGraph(self, traced, inputs, reduction)


class _ParallelGraph:
    """Calls of one graph, with gradients of this rank or averages over all."""

    def __init__(
        self, backend: _ParallelBackend, traced: Traced, inputs: Sequence[object], reduction: Reduction
    ) -> None:
        self._backend, self.traced, self._reduction = backend, traced, reduction
        self._averaging: CompiledGraph | None = None
        self._own: Any = None  # without an exchange, compiled where it is needed
        self._lock = threading.RLock()
        self._choose(inputs)

    def _choose(self, arguments: Sequence[object]) -> Any:
        exchanges = self._backend.dispatcher.exchanges
        program = self._averaging if exchanges else self._own
        return program or self._make(exchanges, arguments)

    def _make(self, exchanges: bool, arguments: Sequence[object]) -> Any:
        with self._lock, own_mode():
            if exchanges:
                self._averaging = self._averaging or self._compile(arguments)
                return self._averaging
            self._own = self._own or Backend.add(self._backend, self.traced, arguments)
            return self._own

    def _compile(self, arguments: Sequence[object]) -> CompiledGraph:
        backend, exchange = self._backend, self._backend.dispatcher.exchange
        if exchange.tuner is not None:
            self._tune(exchange.tuner, arguments)
        graph = self._graph(exchange.module_recipe(backend.options.recipe, identity(self.traced)))
        backend.keep(graph, arguments)
        return graph

    def _graph(self, recipe: Recipe) -> CompiledGraph:
        pair = self._backend.pair(self.traced, recipe, self._reduction)
        watched = self._backend.dispatcher.exchange.watch_pair(pair)
        return CompiledGraph(self._backend, self.traced, watched, is_average=True)

    def _tune(self, tuner: Tuner, arguments: Sequence[object]) -> None:
        """Let ranks find out how to exchange the fastest."""
        traced = self.traced

        def make(recipe: Recipe) -> Contender:
            graph = self._graph(recipe)
            return Contender(repeatable(graph.run, arguments, traced.requires_grad, trains=True), graph.pair.code)

        load = partial(load_graph, traced, self._reduction, "cpu")
        graph = TunedGraph(identity(traced), load, False, self._backend.options.recipe)
        with own_random_numbers(arguments):
            self._backend.stats.record_tuning(tuner(graph, make))

    def __call__(self, *arguments: object) -> Any:
        return self._choose(arguments)(*arguments)
