"""The fastest strategy as measured: those of rules, and the best that are found in simulation, timed on all ranks."""

from __future__ import annotations

import logging
import platform
import time
from dataclasses import replace

import torch

from daceopt.cost.rates import rates
from daceopt.distributed.runtime.agreement import RULES, by_rule
from daceopt.distributed.runtime.exchange import Exchange
from daceopt.distributed.runtime.ranks import RankSearchers
from daceopt.distributed.search import allreduce_measurement, strategy_search
from daceopt.distributed.search.step_capture import lower
from daceopt.distributed.search.strategy import Strategy
from daceopt.errors import DaceoptError
from daceopt.passes.choice import Choice, recipe_for
from daceopt.passes.recipe import Recipe
from daceopt.programs.tuning.result import TuningRecord, TuningResult
from daceopt.programs.tuning.search import Contender, Make, Search
from daceopt.training.step_exchange import TunedGraph

logger = logging.getLogger("daceopt.dispatch")

_SHARE = 0.25  # of the time, for the search in simulation
_SIZES, _RUNS = tuple(1 << k for k in (10, 16, 22)), 3  # of all-reduces that the simulator's times come from


def tune(exchange: Exchange, seconds: float, graph: TunedGraph, make: Make) -> TuningResult:
    """Give ``exchange`` the strategy that is the fastest of those that all its ranks time, in about so many seconds;
    the one that it has is the first of them. ``make`` compiles with a recipe and the strategy of the exchange.

    All ranks call it in the same place. Raises WorkerError where one does not, and what compiling the first raises.
    """
    start = time.perf_counter()
    ranks, base = RankSearchers(exchange.watch), recipe_for("cpu", graph.recipe)
    first, exchange.tuner = exchange.strategy, None
    machines = ranks.all(platform.node())
    record = TuningRecord(f"{graph.fingerprint} {first.digest()} {machines}", base)
    texts = ranks.agree(record.ways())
    if texts is None:
        texts = _simulate(exchange, ranks, graph, seconds)
        record.keep_ways(texts)
    strategies = _by_name(exchange, graph, first, texts)
    recipes = [replace(_recipe(exchange, s, graph, base), name=name) for name, s in strategies.items()]

    def make_with(recipe: Recipe) -> Contender:
        exchange.use(strategies[recipe.name])
        return make(recipe)

    choice = Choice.of("strategies", *recipes)
    try:
        search = Search(record, choice, make_with, seconds, trains=True, varies=False, searchers=ranks, began=start)
        result = search.find()
    except BaseException:
        exchange.use(first)
        raise
    exchange.use(strategies[result.name], graph.fingerprint)
    return result


def _recipe(exchange: Exchange, strategy: Strategy, graph: TunedGraph, base: Recipe) -> Recipe:
    exchange.use(strategy, graph.fingerprint)
    recipe = exchange.step_recipe if graph.of_step else exchange.module_recipe
    return recipe(base, graph.fingerprint)


def _by_name(exchange: Exchange, graph: TunedGraph, first: Strategy, texts: list[str]) -> dict[str, Strategy]:
    """What is tried, each once; ``first`` is the first."""
    rules = {rule: by_rule(first.identity, rule) for rule in RULES if graph.of_step or rule != "sharded"}
    own = next((rule for rule, strategy in rules.items() if strategy == first), "as given")
    searched = map(Strategy.parse, texts)
    named = {own: first, **rules, **{f"searched {s.digest()[:8]}": s for s in searched}}
    unique = {strategy.digest(): name for name, strategy in reversed(named.items())}
    return {name: s for name, s in named.items() if unique[s.digest()] == name}


def _simulate(exchange: Exchange, ranks: RankSearchers, graph: TunedGraph, seconds: float) -> list[str]:
    """The strategies that rank 0 finds, for all; none where the program is not one to search."""
    from daceopt.distributed.search.estimator_training import load
    from daceopt.distributed.search.timed_step import time_step

    with exchange.watch.inside():
        reduction = allreduce_measurement.measure(exchange.group, _SIZES, _RUNS)
    strategies: list[Strategy] = []
    if exchange.rank == 0:
        try:
            cores = torch.get_num_threads()
            estimate = load(machine := rates().of_cores(cores)).estimate(machine)
            step = lower(graph.load(), exchange.base(graph.recipe))
            timed = time_step(step, estimate, reduction, cores=cores)
            strategies = strategy_search.best_strategies(
                timed.problem, timed.groups, exchange.model, _SHARE * seconds, graph.of_step
            )
        except DaceoptError as error:
            logger.info("strategies are not searched: %s", error)
    return ranks.agree([strategy.text() for strategy in strategies])
