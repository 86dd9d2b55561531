"""What ranks check of strategies that were searched: run by ``test_two_ranks``."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.nn import functional

import daceopt
from daceopt.cost.rates import rates
from daceopt.distributed.search import allreduce_measurement
from daceopt.distributed.search.allreduce_time import AllReduceTime
from daceopt.distributed.search.backtracking import SearchEffort
from daceopt.distributed.search.program_operators import ProgramOperators, by_roofline
from daceopt.distributed.search.step_capture import capture
from daceopt.distributed.search.strategy import Strategy
from daceopt.distributed.search.strategy_search import problem_of, rule_groups, search
from daceopt.errors import FallbackWarning, StrategyError, Unsupported
from daceopt.explore.simulation.measured_step import both
from tests.distributed.equality import (
    Breaking,
    Net,
    Reference,
    adamw,
    batches,
    compare,
    equal_on_all_ranks,
    peer,
    sgd,
    train,
)
from tests.distributed.sharded import Trained

CLIP = 0.05
MEASURE = allreduce_measurement.measure


def found_for(subject: Any, model: Any, args: Any, of_step: bool) -> Strategy:
    """The same on all ranks: kernels by the roofline of one machine, a seed, and no clock."""
    world, machine = dist.get_world_size(), rates()
    captured = capture(subject, args, world=world)
    operators = ProgramOperators(captured.program, machine)
    problem = problem_of(operators, by_roofline(machine), AllReduceTime.ring(world, 1e8, 5e-5))
    groups = rule_groups(captured, operators)
    return search(problem, groups, model, SearchEffort(patience=20), of_step=of_step).strategy


def of_a_step() -> Strategy:
    torch.manual_seed(0)
    model = Net()
    step = daceopt.training_step(model, functional.cross_entropy, adamw(model), clip_norm=CLIP)
    return found_for(step, model, batches(0, 1)[0], of_step=True)


def steps_enact_groups_of_steps() -> None:
    """Operators of the update among them."""
    strategy = of_a_step()
    assert any("update" in name for group in strategy.groups for name in group.nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        found = Trained(adamw, strategy, CLIP)
        found.run(4)
    found.check()
    (grouped,) = (r for r in found.step.daceopt.history if r["name"].startswith("operator-grouping"))
    assert len(grouped["sites"]) == len(strategy.groups)


def groups_of_another_graph_are_refused() -> None:
    """Another optimizer makes another graph; and that of the model alone has other groups."""
    ours = daceopt.data_parallel(Net(), strategy=of_a_step(), fallback="raise")
    x, y = batches(dist.get_rank(), 1)[0]
    step = daceopt.training_step(ours, functional.cross_entropy, sgd(ours), clip_norm=0.1, fallback="raise")
    try:
        step(x, y)
    except (StrategyError, Unsupported) as error:
        assert "Search" in str(error), str(error)
    else:
        raise AssertionError("a strategy for another step was enacted")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        functional.cross_entropy(ours(x), y).backward()
    assert any("takes its buckets only" in str(w.message) for w in told), [str(w.message) for w in told]


def a_step_that_is_no_program_still_averages() -> None:
    """What fails while a step is traced leaves the exchange to its parts, in shards or not."""
    model = Breaking()
    every = [batches(rank, 3) for rank in range(dist.get_world_size())]
    for strategy in ("auto", "sharded"):
        ours = daceopt.data_parallel(copy.deepcopy(model), strategy=strategy, fallback="silent")
        theirs, exact = peer(model), Reference(model, sgd)
        optimizers = sgd(ours), sgd(theirs)
        step = daceopt.training_step(ours, functional.cross_entropy, optimizers[0], fallback="silent")
        for k in range(3):
            step(*every[dist.get_rank()][k])
            train(theirs, optimizers[1], every[dist.get_rank()][k])
            exact.step([own[k] for own in every])
        assert sum(step.reasons.values()) == 3
        equal_on_all_ranks(ours)
        compare(ours, theirs, exact.model)


def a_step_is_measured_and_simulated() -> None:
    """Exchanges are those of the strategy, in both; what is measured is whole: nothing lies between two nodes. The
    all-reduces of the simulation are timed in two sizes (``test_allreduce_measurement`` has all)."""
    torch.manual_seed(0)
    model, batch = Net(), batches(dist.get_rank(), 1)[0]
    for strategy, exchanges, sums in (("auto", 1, 1), ("sharded", 2, 1)):
        plain = copy.deepcopy(model)
        ours = daceopt.data_parallel(copy.deepcopy(model), strategy=strategy, fallback="raise")
        step, alone = (daceopt.training_step(m, functional.cross_entropy, adamw(m)) for m in (ours, plain))
        with patch.object(allreduce_measurement, "measure", partial(MEASURE, sizes=(1 << 10, 1 << 16), runs=1)):
            found = both(step, alone, batch, ours.strategy)
        lanes = {name: [e for e in events if e.lane == "communication"] for name, events in found.items()}
        assert list(found) == ["measured", "simulated"]
        told = sum("AgreementWait" in e.name for e in lanes["measured"])
        assert (len(lanes["measured"]) - told, len(lanes["simulated"])) == (exchanges, sums), lanes
        own = [e for e in found["measured"] if e.lane != "communication"]
        assert abs(sum(e.end - e.start for e in own) - max(e.end for e in own)) <= 1e-9
        equal_on_all_ranks(ours)


CHECKS = [
    a_step_is_measured_and_simulated,
    a_step_that_is_no_program_still_averages,
    steps_enact_groups_of_steps,
    groups_of_another_graph_are_refused,
]
