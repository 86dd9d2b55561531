"""What keeps a training step from being one program: it runs in parts, with the reason; and errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import training_step
from daceopt.errors import FallbackWarning, Unsupported
from daceopt.training import obstacles, step_graph
from tests.training.checking import CROSS, Loop, batches, check, compare, perceptron, sgd


def _hooked(model: nn.Module, optimizer: Any) -> None:
    next(model.parameters()).register_hook(lambda g: 2 * g)


def _after(model: nn.Module, optimizer: Any) -> None:
    optimizer.register_step_post_hook(lambda *_: None)


OBSTACLES = {
    "there is no update rule for RMSprop": (torch.optim.RMSprop, None),
    "a parameter has a hook": (torch.optim.SGD, _hooked),
    "the optimizer has hooks": (torch.optim.SGD, _after),
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("reason", OBSTACLES)
def test_what_has_no_program_runs_in_parts(reason: str) -> None:
    kind, change = OBSTACLES[reason]

    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = kind(model.parameters(), lr=0.01)
        if change is not None:
            change(model, optimizer)
        return optimizer

    with pytest.warns(FallbackWarning, match=reason) as warned:
        step = check(perceptron(), CROSS, make, batches(4), accumulate=2, clip_norm=0.1, fallback="warn")
    assert len(warned) == 1
    (said,) = step.reasons
    assert said.startswith(reason) and step.reasons[said] == 4
    if kind is torch.optim.RMSprop:
        model = perceptron()
        with pytest.raises(Unsupported, match=reason):
            training_step(model, CROSS, make(model), fallback="raise")(*batches(1)[0])


@pytest.mark.usefixtures("quick")
def test_a_graph_that_breaks_runs_in_parts() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = perceptron()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return self.net(x)

    step = check(Net(), CROSS, sgd, batches(3), fallback="silent")
    assert list(step.reasons.values()) == [3]


@pytest.mark.usefixtures("quick")
def test_pytorch_s_errors_in_pytorch_s_places() -> None:
    model, (batch,) = perceptron(), batches(1)
    silent = {"fallback": "silent"}
    with pytest.raises(RuntimeError, match="scalar outputs"):
        training_step(model, nn.CrossEntropyLoss(reduction="none"), sgd(model), **silent)(*batch)
    with pytest.raises(RuntimeError, match="does not require grad"), torch.no_grad():
        training_step(model, CROSS, sgd(model), **silent)(*batch)
    with pytest.raises(RuntimeError, match="does not require grad"):
        optimizer = sgd(model)
        training_step(model.requires_grad_(False), CROSS, optimizer, **silent)(*batch)
    with pytest.raises(TypeError, match="the loss is of type tuple"):
        training_step(model, lambda x, y: (x, y), sgd(model), **silent)(*batch)


def test_what_is_no_step() -> None:
    model = perceptron()
    for error, text, arguments, options in [
        (TypeError, "takes an nn.Module", (abs, CROSS, sgd(model)), {}),
        (TypeError, "takes a torch.optim.Optimizer", (model, CROSS, CROSS), {}),
        (TypeError, "loss is of type str", (model, "cross", sgd(model)), {}),
        (ValueError, "no parameter of Sequential", (model, CROSS, sgd(perceptron())), {}),
        (ValueError, "expected one of them", (model, CROSS, sgd(model)), {"clip_norm": 1, "clip_value": 1}),
        (ValueError, "clip_norm=-1", (model, CROSS, sgd(model)), {"clip_norm": -1}),
        (ValueError, "accumulate=0", (model, CROSS, sgd(model)), {"accumulate": 0}),
        (ValueError, "targets=-1", (model, CROSS, sgd(model)), {"targets": -1}),
        (ValueError, "any number of arguments", (model, lambda *x: x[0], sgd(model)), {}),
        (ValueError, "fallback='loud'", (model, CROSS, sgd(model)), {"fallback": "loud"}),
    ]:
        with pytest.raises(error, match=text):
            training_step(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("quick")
def test_sparse_gradients_run_in_parts() -> None:
    torch.manual_seed(9)
    model = nn.Sequential(nn.Embedding(7, 6, sparse=True), nn.Flatten(), nn.Linear(12, 4))
    given = [(torch.randint(0, 7, (5, 2)), torch.randint(0, 4, (5,))) for _ in range(3)]
    step = check(model, CROSS, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), given, fallback="silent")
    assert list(step.reasons.values()) == [3] and "sparse" in next(iter(step.reasons))


def _steps(model: nn.Module, make: Any = sgd, **options: Any) -> tuple[Any, Loop, Any]:
    """A step, the loop beside it, and a function that does the same with both and compares what they leave."""
    copied = {k: v for k, v in options.items() if k == "accumulate"}
    ours, peer = copy.deepcopy(model), Loop(copy.deepcopy(model), CROSS, make, **copied)
    exact = Loop(copy.deepcopy(model).double(), CROSS, make, **copied)
    step = training_step(ours, CROSS, make(ours), fallback="silent", **options)

    def both(x: torch.Tensor, y: torch.Tensor) -> None:
        step(x, y)
        peer(x, y)
        exact(x.double(), y)
        compare(step.optimizer, ours, peer, exact)

    return step, peer, both


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("first", [False, True])
def test_a_step_is_one_program_again_once_the_obstacle_is_gone(first: bool) -> None:
    step, _, both = _steps(perceptron())
    for k, (x, y) in enumerate(batches(6)):
        both(x.requires_grad_() if k in ((0, 1) if first else (2, 3)) else x, y)
    assert list(step.reasons.values()) == [2] and step.daceopt.stats.calls <= 5
    assert step.daceopt.stats.programs == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_a_hook_of_the_first_steps_is_no_obstacle_to_later_ones() -> None:
    step, peer, both = _steps(perceptron())
    for k, (x, y) in enumerate(batches(4)):
        hooks = [m[0].register_full_backward_hook(lambda *_: None) for m in (step.model, peer.model) if k < 2]
        both(x, y)
        for hook in hooks:
            hook.remove()
    assert list(step.reasons.values()) == [2] and step.daceopt.stats.programs == 1


@pytest.mark.usefixtures("quick")
def test_a_sparse_gradient_of_one_micro_batch_is_in_the_way_of_its_update_alone() -> None:
    step, peer, both = _steps(perceptron(), accumulate=2)
    for k, (x, y) in enumerate(batches(8)):
        both(x, y)
        if k == 2:
            for model in (step.model, peer.model):
                model[0].weight.grad = model[0].weight.grad.to_sparse()
    assert len(step.reasons) == 1 and list(step.reasons.values()) == [1], step.reasons


@pytest.mark.usefixtures("quick")
def test_kinds_of_updates_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_graph, "PLAN_LIMIT", 2)
    step, peer, both = _steps(perceptron())
    for k, (x, y) in enumerate(batches(8)):
        for optimizer in (step.optimizer, peer.optimizer):
            optimizer.param_groups[0]["weight_decay"] = 0.1 if k in (2, 3, 5) else 0
            optimizer.param_groups[0]["momentum"] = 0.9 if k > 3 else 0.0
        both(x, y)
    assert step.reasons == {"there are programs for 2 kinds of update already": 4}, step.reasons


@pytest.mark.usefixtures("quick")
def test_a_capturable_optimizer_is_refused_on_the_cpu_as_by_pytorch() -> None:
    model, (batch,) = perceptron(), batches(1)
    step = training_step(model, CROSS, torch.optim.Adam(model.parameters(), capturable=True), fallback="silent")
    with pytest.raises(AssertionError, match="capturable=True"):
        step(*batch)


def test_gradients_that_go_elsewhere_run_in_parts() -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = perceptron()

    model = DistributedDataParallel()
    assert obstacles.permanent(model, sgd(model)) == ("DistributedDataParallel exchanges gradients between processes")
