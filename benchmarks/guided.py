"""Figures 5, 7 and 9 and table 1 of Rausch et al. (DaCeML, ICS 2022): step by step beside eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import nn

import daceopt
from benchmarks.checking import reference, results
from benchmarks.contenders import EAGER, Call, Contender, Inputs, step, wrong
from benchmarks.harness import OURS, Budget, Result, case
from benchmarks.kernel_set import KERNELS, Applied
from benchmarks.measurement import Measurement, measure
from benchmarks.models.guided import BertLayer, MBConv, Mish
from benchmarks.models.suite import SUITE, Example
from benchmarks.suite import network
from benchmarks.walks import Stage, Walk, bert_walk, kernel_walk, mbconv_walk
from daceopt import Recipe, optimized_module

FORWARD, BOTH = "forward", "forward + backward"


@dataclass(frozen=True)
class Study:
    """A model, the walk through its optimization, and what the paper says of it on a V100, by measure."""

    make: Callable[[], Example]
    walk: Walk
    paper: Mapping[str, str]


def _kernel(name: str) -> Callable[[], Example]:
    kernel = KERNELS[name]
    return lambda: (Applied(kernel.function), kernel.inputs())


_OPERATORS = {
    "layer norm": Study(
        _kernel("layer-norm"),
        kernel_walk,
        {FORWARD: "PyTorch slightly ahead of DaCeML", BOTH: "DaCeML ahead of all, JAX close"},
    ),
    "mish": Study(
        lambda: (Mish(), KERNELS["mish"].inputs()),
        kernel_walk,
        {FORWARD: "3.43 x PyTorch, 3 x torch.jit", BOTH: "2.67 x PyTorch, 1.06 x TF+XLA"},
    ),
    "softmax": Study(_kernel("softmax"), kernel_walk, {FORWARD: "as PyTorch", BOTH: ""}),
}
_MBCONV = Study(
    lambda: (MBConv(), (torch.randn(8, 32, 112, 112),)),
    mbconv_walk,
    {
        FORWARD: "PyTorch 2.05 ms; automatic 1.31 x, guided 1.46 x",
        BOTH: "PyTorch 6.90 ms; automatic 0.46 x, guided 1.16 x",
    },
)
_BERT = Study(
    lambda: (BertLayer(), (torch.randn(2, 512, 1024),)),
    bert_walk,
    {
        FORWARD: "PyTorch 2.94 ms; automatic 0.88 x, guided 1.07 x",
        BOTH: "PyTorch 8.18 ms; automatic 0.88 x, guided 1.07 x",
    },
)


@case
def guided_operators(budget: Budget) -> Iterator[Result]:
    """Figure 5: layer normalization (4096x1024), Mish (8x32x224x224) and softmax (8x16x512x512)."""
    for name in filter(budget.wants, _OPERATORS):
        yield from _steps("guided-operators", f"{name}, ", _OPERATORS[name], budget)


@case
def guided_mbconv(budget: Budget) -> Iterator[Result]:
    """Figure 7: the first MBConv block of EfficientNet-B0, 8x32x112x112."""
    yield from _steps("guided-mbconv", "", _MBCONV, budget)


@case
def guided_bert(budget: Budget) -> Iterator[Result]:
    """Figure 9: a layer of BERT-large in mixed precision, 2x512 (the paper: 8x512)."""
    yield from _steps("guided-bert", "", _BERT, budget)


def _steps(name: str, prefix: str, study: Study, budget: Budget) -> Iterator[Result]:
    """Each stage beside eager, all of them in turns; forward keeps what backward needs, as in the paper."""
    torch.manual_seed(0)
    model, arguments = study.make()
    inputs = [x.requires_grad_(x.is_floating_point()) for x in arguments]
    stages = list(study.walk(daceopt.explore(model, *inputs)))
    torch._dynamo.reset()  # or what earlier cases compiled counts towards the limit of recompilations
    modules = {EAGER: copy.deepcopy(model), **{s.title: _build(model, s) for s in stages}}
    contenders = {who: Contender(step(m, inputs), results(m, inputs, True)) for who, m in modules.items()}
    faults = wrong(contenders, reference(model, inputs, True).fault)
    calls = {who: m for who, m in modules.items() if who not in faults}
    for what, timed in ((FORWARD, _forward), (BOTH, step)):
        measured = measure({who: timed(m, inputs) for who, m in calls.items()}, budget)
        for k, stage in enumerate(stages):
            notes = {"paper": study.paper[what]} if k == 0 and study.paper[what] else {}
            yield _row(name, f"{prefix}{what}: {stage.title}", stage, measured, faults.get(stage.title), notes)


def _build(model: nn.Module, stage: Stage) -> nn.Module:
    return optimized_module(copy.deepcopy(model), recipe=Recipe(stage.title, stage.steps), fallback="raise")


def _forward(model: nn.Module, inputs: Inputs) -> Call:
    return lambda: model(*inputs)


def _row(
    name: str, measured: str, stage: Stage, measurement: Measurement, fault: str | None, notes: dict[str, str]
) -> Result:
    notes = {"kernels": str(stage.kernels), "moves": f"{stage.bytes / 1e6:.3g} MB", **notes}
    if fault is not None:
        return Result(name, measured, "ms", {}, "right results", False, {**notes, "WRONG": fault})
    pair = Measurement({EAGER: measurement.samples[EAGER], OURS: measurement.samples[stage.title]})
    if not pair.is_steady:
        notes["too noisy to tell"] = f"halves differ by {pair.drift:.0%}"
    values = {who: seconds * 1e3 for who, seconds in pair.medians.items()}
    return Result(name, measured, "ms", values, notes=notes, spread=pair.spread)


# -------------------------------------------------------------------- table 1


def _small(make: Callable[[], nn.Module], *shape: int) -> Callable[[], Example]:
    return lambda: (make(), (torch.randn(shape),))


# row -> its model; ms of the paper, forward and both: PyTorch, the best compiler, DaCeML with its recipe
_TABLE: dict[str, tuple[Callable[[], Example], tuple[float, float, float], tuple[float, float, float]]] = {
    "ResNet-50": (SUITE["resnet50"], (14.55, 9.98, 10.03), (32.04, 31.94, 32.45)),
    "Wide ResNet-50-2": (SUITE["wide_resnet50"], (22.50, 22.45, 20.62), (70.94, 70.83, 67.99)),
    "MobileNet V2": (SUITE["mobilenet_v2"], (9.98, 6.22, 4.74), (18.45, 15.53, 14.77)),
    "EfficientNet, MBConv 1": (_small(MBConv, 8, 32, 112, 112), (2.05, 1.54, 1.57), (6.90, 6.37, 15.00)),
    "MLP Mixer": (SUITE["mlp_mixer"], (1.63, 1.36, 1.48), (3.65, 3.66, 4.25)),
    "FCN8s": (SUITE["fcn8s"], (46.85, 46.82, 45.97), (158.42, 158.40, 166.30)),
    "WaveNet": (SUITE["wavenet"], (23.21, 18.67, 26.16), (46.39, 41.49, 41.07)),
    "BERT-large layer, single": (
        _small(lambda: BertLayer(mixed=False), 2, 512, 1024),
        (11.05, 10.93, 11.44),
        (31.76, 29.94, 32.98),
    ),
    "BERT-large layer, mixed": (_small(BertLayer, 2, 512, 1024), (2.94, 2.92, 3.34), (8.18, 8.11, 9.25)),
    "DLRM": (SUITE["dlrm"], (118.07, 117.38, 117.69), (126.55, 126.83, 126.42)),
}


@case
def daceml_networks(budget: Budget) -> Iterator[Result]:
    """Table 1, with the recipe that is the default; sizes as in ``networks-training``, not the paper's."""
    for (name, (make, *paper)), training in product(_TABLE.items(), (False, True)):
        if not budget.wants(name.partition(",")[0]):
            continue
        what = BOTH if training else FORWARD
        eager, compiler, automatic = paper[training]
        result = network(what, name, make, training, budget)
        text = f"PyTorch / DaCeML {eager / automatic:.2f}, best compiler / DaCeML {compiler / automatic:.2f}"
        yield replace(result, case="daceml-networks", measure=f"{name}, {what}", notes={**result.notes, "paper": text})
