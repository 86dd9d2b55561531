"""What a training step leaves: checkpoints, versions, layouts, copies, and everything as it was after an error."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import training_step
from tests.training.checking import CROSS, Loop, adam, batches, check, perceptron, sgd


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("make", [sgd, adam], ids=["sgd", "adam"])
def test_a_checkpoint_goes_to_pytorch_and_back(make: Any) -> None:
    model, loop = perceptron(), Loop(perceptron(), CROSS, make)
    step = training_step(model, CROSS, make(model), fallback="raise")
    given = batches(9)
    for batch in given[:3]:
        step(*batch)
        loop(*batch)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": step.optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    plain = Loop(perceptron(), CROSS, make)
    plain.model.load_state_dict(saved["model"])
    plain.optimizer.load_state_dict(saved["optimizer"])
    for batch in given[3:6]:
        plain(*batch)
        loop(*batch)
    again = perceptron()
    resumed = training_step(again, CROSS, make(again), fallback="raise")
    again.load_state_dict(plain.model.state_dict())
    resumed.optimizer.load_state_dict(plain.optimizer.state_dict())
    for batch in given[6:]:
        resumed(*batch)
        loop(*batch)
    for p, q in zip(again.parameters(), loop.model.parameters()):
        torch.testing.assert_close(p, q)


def test_what_autograd_has_saved_knows_that_weights_have_changed() -> None:
    model = perceptron()
    step = training_step(model, CROSS, sgd(model), fallback="raise")
    (batch,) = batches(1)
    held = model(batch[0]).sum()
    average = torch.optim.swa_utils.AveragedModel(model)
    step(*batch)
    average.update_parameters(model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        held.backward()


def test_parameters_that_are_not_dense_in_rows() -> None:
    torch.manual_seed(8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))
    model = model.to(memory_format=torch.channels_last)
    assert not model[0].weight.is_contiguous()
    given = [(torch.randn(5, 3, 6, 6), torch.randint(0, 4, (5,))) for _ in range(3)]
    check(model, CROSS, adam, given)


@pytest.mark.parametrize("make", [sgd, adam], ids=["sgd", "adam"])
def test_an_error_of_the_call_leaves_everything_as_it_was(make: Any) -> None:
    model = nn.Sequential(nn.Embedding(7, 6), nn.Flatten(), nn.Linear(12, 4))
    step = training_step(model, CROSS, make(model), fallback="raise")
    x, y = torch.randint(0, 7, (5, 2)), torch.randint(0, 4, (5,))
    for wrong in ((torch.full((5, 2), 7), y), (x, torch.full((5,), 4))):
        before = copy.deepcopy(model.state_dict()), copy.deepcopy(step.optimizer.state_dict())
        with pytest.raises(IndexError):
            step(*wrong)
        after = model.state_dict(), step.optimizer.state_dict()
        assert all(torch.equal(a, b) for a, b in zip(before[0].values(), after[0].values()))
        torch.testing.assert_close(before[1], after[1], rtol=0, atol=0)
        step(x, y)
    assert step.daceopt.stats.programs == 1


@pytest.mark.usefixtures("quick")
def test_parameters_that_share_memory() -> None:
    def make() -> nn.Module:
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4))
        model[1].weight.data = model[0].weight.data
        return model

    model, loop = make(), Loop(make(), CROSS, sgd)
    step = training_step(model, CROSS, sgd(model), fallback="silent")
    for batch in batches(3):
        step(*batch)
        loop(*batch)
    for p, q in zip(model.parameters(), loop.model.parameters()):
        torch.testing.assert_close(p, q)
    assert list(step.reasons) == ["an argument that the call changes shares memory with another"]


@pytest.mark.usefixtures("quick")
def test_modes_and_copies() -> None:
    model, (first, *rest) = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)), batches(4)
    step = training_step(model, CROSS, adam(model), fallback="raise")
    step(*first)
    twins = copy.deepcopy(step), pickle.loads(pickle.dumps(step))
    for batch in rest:
        model.eval()
        model(batch[0])
        model.train()
        step(*batch)
        for twin in twins:
            twin(*batch)
    assert step.daceopt.stats.programs == 1
    for twin in twins:
        assert twin.model is not model and len(twin.optimizer.state) == 6
        for p, q in zip(model.parameters(), twin.model.parameters()):
            torch.testing.assert_close(p, q)
