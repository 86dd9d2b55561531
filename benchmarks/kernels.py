"""Twenty-four kernels beside the peers and beside what memory can deliver."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import torch

from benchmarks.checking import reference
from benchmarks.comparison import compare, participants
from benchmarks.contenders import COMPILED, EAGER, Contender, Unavailable, enter
from benchmarks.harness import OURS, Budget, Result, case
from benchmarks.kernel_set import KERNELS, Applied
from benchmarks.limits import byte_limit
from benchmarks.peers import jax_process

_MEAN = 2.0  # the best peer's time over ours, by geometric mean
_CONTENDERS = (EAGER, OURS, COMPILED, jax_process.JAX)


@case
def kernels(budget: Budget) -> Iterator[Result]:
    """Forward, and forward and backward, of the kernels of ``kernel_set``."""
    for training in (False, True):
        rows = []
        for name in filter(budget.wants, KERNELS):
            rows.append(_kernel(name, training, budget))
            yield rows[-1]
        ratios = [ratio for r in rows if (ratio := r.best) is not None]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            values, measure = {"best peer / ours": mean}, f"{_what(training)}, mean of {len(ratios)}"
            yield Result("kernels", measure, "x", values, f"{_MEAN:g}x the best peer", mean >= _MEAN)


def _kernel(name: str, training: bool, budget: Budget) -> Result:
    torch.manual_seed(0)
    kernel = KERNELS[name]
    module = Applied(kernel.function)
    inputs = [x.requires_grad_(training and x.is_floating_point()) for x in kernel.inputs()]
    who = participants(_CONTENDERS, budget)
    contenders, absent = enter(module, inputs, training, [w for w in who if w != jax_process.JAX])
    if jax_process.JAX in who:
        _enter_jax(name, inputs, training, contenders, absent)
    check, limit = reference(module, inputs, training), byte_limit(module, inputs, training)
    return compare("kernels", f"{name}, {_what(training)}", contenders, check, budget, limit=limit, absent=absent)


def _enter_jax(
    name: str,
    inputs: Sequence[torch.Tensor],
    training: bool,
    contenders: dict[str, Contender],
    absent: dict[str, str],
) -> None:
    try:
        contenders[jax_process.JAX] = jax_process.enter(name, inputs, training)
    except Unavailable as reason:
        absent[jax_process.JAX] = str(reason)


def _what(training: bool) -> str:
    return "forward + backward" if training else "forward"
