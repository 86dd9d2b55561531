"""``python -m daceopt search``: searches how operators and gradients of a step are fused on several workers."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from daceopt.commands import model
from daceopt.distributed.search.allreduce_time import AllReduceTime, bandwidth_of, duration_of
from daceopt.distributed.search.backtracking import SearchEffort
from daceopt.distributed.search.strategy_search import SearchOutcome, search
from daceopt.errors import DaceoptError
from daceopt.explore.report.step_timeline import page

_MODEL = "file.py:name of a module whose result is the loss, of a training_step, or of what makes one"
_ESTIMATORS = ("network", "roofline")


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", help=_MODEL)
    parser.add_argument("--world", type=int, required=True, metavar="N", help="how many workers train")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="write the strategy here")
    parser.add_argument("--bandwidth", metavar="RATE", help="of each link, such as 10Gbit (default: as measured here)")
    parser.add_argument("--latency", default="0us", metavar="TIME", help="of each link (default: 0us)")
    parser.add_argument("--budget", default="60s", metavar="TIME", help="time to search at most (default: 60s)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from this file, and write the search to it")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each worker (default: 1)")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    help_text = "search from so many seeds at once (default: one for each core)"
    parser.add_argument("--processes", type=int, default=cores, metavar="N", help=help_text)
    parser.add_argument("--slowdown", type=float, default=1.0, metavar="X", help="of the slowest worker (default: 1)")
    parser.add_argument("--estimator", choices=_ESTIMATORS, default="network", help="of kernels (default: network)")
    help_text = "time nothing here: library calls by the machine's rates, kernels by the estimator"
    parser.add_argument("--estimated", action="store_true", help=help_text)
    parser.add_argument("--calibrate", metavar="TIME", help="time kernels for so long first, and tune the estimator")
    parser.add_argument("--timeline", type=Path, metavar="FILE", help="draw the step as HTML")
    for name, kind in (("alpha", float), ("beta", int), ("seed", int), ("patience", int)):
        default = getattr(SearchEffort(), name)
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"of the search (default: {default})")


def run(options: Namespace) -> None:
    outcome = _search(options)
    outcome.strategy.save(options.output)
    print(outcome)
    print(f"written: {options.output}")
    if options.timeline is not None:
        options.timeline.write_text(page({"simulated": outcome.state.timeline()}, str(outcome)), encoding="utf-8")
        print(f"written: {options.timeline}")


def _search(options: Namespace) -> SearchOutcome:
    effort = SearchEffort(options.alpha, options.beta, options.patience, options.seed)
    budget, reduction = duration_of(options.budget), _reduction(options)
    if options.threads < 1 or not 1 <= options.slowdown < float("inf"):
        raise DaceoptError("expected one thread or more for each worker, and a slowest one that is no faster")
    if not options.output.parent.is_dir():
        raise DaceoptError(f"{options.output}: there is no folder {options.output.parent}")
    subject = model.find(options.model, steps=True)
    if isinstance(subject, Path):
        raise DaceoptError(f"{options.model} is no module that trains; expected file.py:name")

    from daceopt.cost.rates import rates
    from daceopt.distributed.search.step_capture import capture
    from daceopt.distributed.search.timed_step import time_step

    machine = rates().of_cores(options.threads)
    whole, processes = subject.step is not None, options.processes
    step = capture(subject.step or subject.module, subject.args, subject.kwargs, options.world)
    estimate, slowdowns = _estimate(options, machine), (1.0, options.slowdown)
    timed = time_step(step, estimate, reduction, slowdowns, options.threads, measured=not options.estimated)
    print(f"times: {timed.said}")
    return search(timed.problem, timed.groups, subject.module, effort, budget, options.resume, whole, processes)


def _reduction(options: Namespace) -> AllReduceTime:
    """By a ring over the given links, or as measured between processes of this machine."""
    if options.world < 1:
        raise DaceoptError(f"--world {options.world}: expected 1 or more")
    latency = duration_of(options.latency)
    if options.bandwidth is not None:
        return AllReduceTime.ring(options.world, bandwidth_of(options.bandwidth), latency)
    from daceopt.distributed.search.allreduce_measurement import on_this_machine

    return on_this_machine(options.world)


def _estimate(options: Namespace, machine: Any) -> Any:
    from daceopt.distributed.search import estimator_training, program_operators

    if options.estimator == "roofline":
        return program_operators.by_roofline(machine)
    if options.calibrate is not None:
        return estimator_training.fine_tuned(machine, duration_of(options.calibrate)).estimate(machine)
    return estimator_training.load(machine).estimate(machine)
