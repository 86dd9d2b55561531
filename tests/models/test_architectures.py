"""Many architectures of ``transformers``, trained for a step: compiled, graph breaks and all, and never wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import daceopt
from tests.models.architectures import ROWS, build
from tests.models.more_architectures import MORE
from tests.models.test_models import compare, gradients, tensors, widened
from tests.numerics import assert_within_rounding

ALL = {**ROWS, **MORE}
BROKEN = {
    "yoso": "duplicate tensor input",
    "longformer": "a number is read out of a tensor",
    "led": "a number is read out of a tensor",
    "mixtral": "a loop, or an index into a list, depends on a number that only the data decide",
    "ctrl": "an iterator, or an unpacking, that cannot be traced",
}
"""Models whose code no compiler takes as a whole, and a part of the reason that is reported."""

REFUSED = {"nystromformer": "PyTorch (refuses this call|cannot tell the shapes)"}
"""Models that are not compiled, and a part of the reason. When it is traced, it makes a mask that it cannot add: under
no compiler does it work."""

QUICK = ("distilbert", "segformer", "mixtral")  # the others are run by `make test-models`


def _marks(name: str) -> Any:
    return () if name in QUICK else (pytest.mark.slow, pytest.mark.models)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")  # what it traces through
@pytest.mark.parametrize("name", [pytest.param(n, marks=_marks(n)) for n in ALL if n not in REFUSED])
def test_architecture(name: str) -> None:
    """The results and the gradients of all parameters, from the same programs."""
    found = build(ALL[name])
    fallback = "silent" if name in BROKEN else "raise"
    optimized = daceopt.optimized_module(copy.deepcopy(found.module), fallback=fallback)
    compare(tensors(optimized(**found.inputs)), found)
    exact = gradients(copy.deepcopy(found.module).double(), widened(found.inputs))
    assert_within_rounding(gradients(optimized, found.inputs), exact, gradients(found.module, found.inputs))
    stats = optimized.daceopt.stats
    assert stats.programs > 0
    assert stats.eager_calls == 0
    reasons = " ".join(optimized.daceopt.reasons)
    assert BROKEN.get(name, "") in reasons


@pytest.mark.models
@pytest.mark.parametrize("name", REFUSED)
def test_architecture_that_is_refused(name: str) -> None:
    found = build(ALL[name])
    refused = daceopt.optimized_module(copy.deepcopy(found.module), fallback="raise")
    with pytest.raises(daceopt.errors.DaceoptError, match=REFUSED[name]):
        refused(**found.inputs)


@pytest.mark.models
def test_rows_are_of_architectures_that_exist() -> None:
    """Every row builds, and its gradients are finite in eager PyTorch: what the others are compared with."""
    for name in ALL:
        found = build(ALL[name])
        assert torch.isfinite(gradients(found.module, found.inputs)).all(), name
