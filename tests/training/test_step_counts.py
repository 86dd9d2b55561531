"""Counted steps: read once where they are on a device, again where somebody else has written them."""

from __future__ import annotations

import gc

import pytest
import torch

from daceopt.training import step_counts
from daceopt.training.step_counts import StepCounts


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> StepCounts:
    """All tensors are taken for those of a device."""
    monkeypatch.setattr(step_counts.StepCounts, "_is_near", staticmethod(lambda step: False))
    return StepCounts()


def test_a_number_is_read_once(far: StepCounts) -> None:
    step = torch.tensor(3.0)
    assert far.value(step) == 3
    step.data.fill_(100.0)  # past its version: whoever reads again would see it
    far.advance([step])
    assert far.value(step) == 4 and step.item() == 101


def test_what_others_write_is_read_again(far: StepCounts) -> None:
    steps = [torch.tensor(3.0), torch.tensor(5.0)]
    far.advance(steps)
    steps[0].fill_(10.0)
    assert [far.value(s) for s in steps] == [10, 6]
    far.advance(steps)
    assert [far.value(s) for s in steps] == [11, 7] == [s.item() for s in steps]


def test_tensors_that_are_gone_are_forgotten(far: StepCounts) -> None:
    for _ in range(8):
        far.advance([torch.tensor(1.0)])
    gc.collect()
    assert len(far._known) == 0


def test_numbers_of_the_host_are_always_read() -> None:
    counts, step = StepCounts(), torch.tensor(3.0)
    counts.advance([step])
    step.data.fill_(7.0)
    assert counts.value(step) == 7
