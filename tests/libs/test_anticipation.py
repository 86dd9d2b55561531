"""What is compiled ahead is what the program then needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

import daceopt
from daceopt.codegen import ahead, build
from daceopt.codegen.compiler import CompileJob
from daceopt.libs import anticipation


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.Conv2d(8, 8, 1)), torch.ones(2, 3, 8, 8)),
        (lambda: nn.Linear(12, 8), torch.ones(4, 12)),
        (lambda: nn.Linear(12, 8).double(), torch.ones(4, 12).double()),
    ],
    ids=["convolutions and pool", "product", "product of doubles"],
)
def test_what_is_needed(make: Callable[[], nn.Module], x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    guessed: list[CompileJob] = []
    needed: list[CompileJob] = []
    compile_objects = build.compile_objects

    def note(jobs: Sequence[CompileJob]) -> None:
        needed.extend(jobs)
        compile_objects(jobs)

    anticipation._jobs_of.cache_clear()  # what tests before had other libraries preferred for
    monkeypatch.setattr(ahead, "start", guessed.extend)
    monkeypatch.setattr(build, "compile_objects", note)
    with torch.no_grad():
        daceopt.optimized_module(make(), fallback="raise")(x)
    assert guessed and set(guessed) <= set(needed)
