"""Networks and a tiny module on a CUDA device, beside eager PyTorch and torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from benchmarks.calls import in_turns
from benchmarks.checking import reference
from benchmarks.comparison import compare, participants
from benchmarks.contenders import CHANNELS_LAST, COMPILED, EAGER, Contender, enter, forward, step, torch_modules
from benchmarks.cuda import without_device
from benchmarks.harness import OURS, Budget, Result, at_most, case
from benchmarks.mixed_precision import Mixed
from benchmarks.models.named import tiny
from benchmarks.models.suite import Example
from benchmarks.steps import step_reference, steps
from benchmarks.suite import networks
from daceopt.cost.measure import on_stream

_TABLE_1 = (
    "resnet50",
    "wide_resnet50",
    "mobilenet_v2",
    "efficientnet",
    "mlp_mixer",
    "fcn8s",
    "wavenet",
    "bert_layer",
    "dlrm",
)
"""Rausch et al., DaCeML, Table 1."""
_LARGER = 8  # times the batch that two cores are measured with; DLRM's stays
_BOUND = 10.0  # microseconds above eager
_KNOWN = (EAGER, OURS, CHANNELS_LAST, COMPILED)


@case
def cuda_inference(budget: Budget) -> Iterator[Result]:
    """Calls without gradients, in eval mode."""
    yield from _rows("inference on cuda", budget, _of_kind(training=False))


@case
def cuda_training(budget: Budget) -> Iterator[Result]:
    """Forward and backward, in training mode."""
    yield from _rows("training on cuda", budget, _of_kind(training=True))


@case
def cuda_inference_autocast(budget: Budget) -> Iterator[Result]:
    """Calls without gradients under autocast to bfloat16."""
    yield from _rows("inference on cuda, bfloat16", budget, _of_kind(training=False, mixed=True))


@case
def cuda_training_autocast(budget: Budget) -> Iterator[Result]:
    """Forward and backward, the forward under autocast to bfloat16."""
    yield from _rows("training on cuda, bfloat16", budget, _of_kind(training=True, mixed=True))


@case
def cuda_step(budget: Budget) -> Iterator[Result]:
    """Loss, gradients and update by SGD with momentum: ``training_step`` beside PyTorch's own fused update."""
    yield from _rows("training step on cuda", budget, _step)


@case
def cuda_call(budget: Budget) -> Iterator[Result]:
    """Microseconds per call of a tiny module, for which the host alone takes time."""
    if without_device("cuda-call"):
        return
    model, inputs = tiny()
    model, inputs = model.cuda(), tuple(x.cuda() for x in inputs)
    for measure, make in (("forward", forward), ("forward + backward", step)):
        calls = {who: make(module, inputs) for who, module in torch_modules(model).items()}
        values = in_turns(calls, budget)
        goal = at_most(values[OURS] - values[EAGER], _BOUND, f"at most {_BOUND:g} us above eager")
        yield Result("cuda-call", measure, "us", values, *goal)


Row = Callable[[str, str, Callable[[], Example], Budget], Result]


def _rows(what: str, budget: Budget, row: Row) -> Iterator[Result]:
    if not without_device(what):
        yield from networks(what, budget, 1.0, row, _TABLE_1)


def _of_kind(training: bool, mixed: bool = False) -> Row:
    def row(what: str, name: str, make: Callable[[], Example], budget: Budget) -> Result:
        torch.manual_seed(0)
        model, inputs = _place(make())
        model = Mixed(model, "cuda") if mixed else model
        contenders, absent = enter(model, inputs, training, participants(_KNOWN, budget))
        check = reference(model, inputs, training)
        return compare(what, name, _on_stream(contenders), check, budget, limit=None, absent=absent)

    return row


def _step(what: str, name: str, make: Callable[[], Example], budget: Budget) -> Result:
    torch.manual_seed(0)
    model, inputs = _place(make())
    contenders, absent = steps(model.train(), inputs, participants(_KNOWN, budget))
    check = step_reference(model, inputs)
    return compare(what, name, _on_stream(contenders), check, budget, limit=None, absent=absent)


def _place(example: Example) -> Example:
    """On the device, with a batch that keeps it busy."""
    model, inputs = example
    if len(inputs) == 1:
        inputs = (inputs[0].repeat(_LARGER, *(1 for _ in inputs[0].shape[1:])),)
    return model.cuda(), tuple(x.cuda() for x in inputs)


def _on_stream(contenders: dict[str, Contender]) -> dict[str, Contender]:
    return {who: replace(c, call=on_stream(c.call)) for who, c in contenders.items()}
