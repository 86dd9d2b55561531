"""Guided optimizations step by step: programs of their own, each of which computes what the model does."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch

import daceopt
from benchmarks import guided
from benchmarks.harness import OURS, Budget
from benchmarks.models.guided import BertLayer, MBConv, Mish
from benchmarks.models.suite import Example
from benchmarks.walks import AUTOMATIC, Stage, Walk, bert_walk, kernel_walk, mbconv_walk


def mish() -> Example:
    return Mish(), (torch.randn(2, 3, 8, 8),)


def mbconv() -> Example:
    return MBConv(8, 4, 2), (torch.randn(2, 8, 12, 12),)


def bert() -> Example:
    return BertLayer(32, 2, 64), (torch.randn(2, 8, 32),)


@cache
def stages(make: object, walk: Walk) -> dict[str, Stage]:
    model, inputs = make()  # type: ignore[operator]
    return {s.title: s for s in walk(daceopt.explore(model, *(x.requires_grad_() for x in inputs)))}


def test_fusion_then_computing_again_moves_fewer_bytes() -> None:
    found = stages(mish, kernel_walk)
    arrays = [s.bytes / (4 * 2 * 3 * 8 * 8) for s in found.values()]
    assert arrays == [21, 7, 5, 5, 5] and [s.kernels for s in found.values()] == [7, 2, 2, 2, 2]


@pytest.mark.breadth
@pytest.mark.parametrize(("make", "walk"), [(mbconv, mbconv_walk), (bert, bert_walk)], ids=["mbconv", "bert"])
def test_each_step_is_another_program(make: object, walk: Walk) -> None:
    found = stages(make, walk)
    assert AUTOMATIC in found
    assert len({s.steps for s in found.values()}) == len(found)
    first, *others = found.values()
    assert all(s.kernels < first.kernels and s.bytes < first.bytes for s in others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "walk"),
    [
        (mish, kernel_walk),
        *(pytest.param(*w, marks=pytest.mark.models) for w in ((mbconv, mbconv_walk), (bert, bert_walk))),
    ],
    ids=["mish", "mbconv", "bert"],
)
def test_steps_are_right_and_have_rows(make: object, walk: Walk) -> None:
    study = dataclasses.replace(guided._BERT, make=make, walk=walk)  # type: ignore[arg-type]
    rows = list(guided._steps("study", "", study, Budget(seconds=0.01, repeats=1)))
    assert len(rows) == 2 * len(stages(make, walk))
    assert not [r.notes for r in rows if "WRONG" in r.notes]
    assert all(r.values[OURS] > 0 and "MB" in r.notes["moves"] for r in rows)
    assert rows[0].notes["paper"] == study.paper[guided.FORWARD]
