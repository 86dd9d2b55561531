"""What a call costs beyond its arithmetic: a module so small that nothing else is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from benchmarks.contenders import EAGER, Call, forward, step, torch_modules
from benchmarks.harness import OURS, Budget, Result, at_most, case
from benchmarks.models.named import tiny
from daceopt.cost.measure import interleave

_CALLS = 200  # per sample: one call is too short for the clock
_BOUND = 25.0  # microseconds above eager


@case
def tiny_call(budget: Budget) -> Iterator[Result]:
    """Microseconds per call of a tiny module."""
    model, inputs = tiny()
    for measure, make in (("forward", forward), ("forward + backward", step)):
        values = in_turns({who: make(module, inputs) for who, module in torch_modules(model).items()}, budget)
        above = values[OURS] - values[EAGER]
        goal, is_met = at_most(above, _BOUND, f"at most {_BOUND:g} us above eager")
        yield Result("tiny-call", measure, "us", values, goal, is_met, {"above eager": round(above, 1)})


def in_turns(calls: Mapping[str, Call], budget: Budget) -> dict[str, float]:
    """Microseconds of one call of each contender."""
    medians = interleave({who: _repeat(call) for who, call in calls.items()}, seconds=budget.seconds)
    return {who: seconds / _CALLS * 1e6 for who, seconds in medians.items()}


def _repeat(call: Call) -> Call:
    def calls() -> None:
        for _ in range(_CALLS):
            call()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    return calls
