"""``training_step`` beside PyTorch's own loop: options of the optimizers, gradients, arguments, sizes."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from daceopt import optimized_module, training_step
from daceopt.programs.tuning import search
from daceopt.programs.tuning.variations import variations
from tests.training.checking import CROSS, Loop, adam, batches, check, perceptron, sgd

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "decay": (torch.optim.SGD, {"weight_decay": 0.1}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "dampening": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.05}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05}),
    "maximize": (torch.optim.SGD, {"momentum": 0.5, "maximize": True, "foreach": True}),
    "adam": (torch.optim.Adam, {}),
    "adam-decay": (torch.optim.Adam, {"weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-6}),
    "adam-maximize": (torch.optim.Adam, {"maximize": True, "foreach": True}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "adam-decoupled": (torch.optim.Adam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adam-tensor-rate": (torch.optim.Adam, {"foreach": False}),
    "adamw": (torch.optim.AdamW, {"fused": True}),
    "adamw-amsgrad": (torch.optim.AdamW, {"amsgrad": True, "maximize": True}),
}


def test_a_fused_optimizer_counts_beside_its_parameters() -> None:
    """As PyTorch's does, whatever the default device is."""
    module = perceptron()
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    step = training_step(module, CROSS, optimizer, fallback="raise")
    for x, target in batches(2):
        with torch.device("meta"):
            step(x, target)
    assert {(s["step"].device.type, s["step"].item()) for s in optimizer.state.values()} == {("cpu", 2.0)}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_option_is_pytorch_s(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    rate: Any = torch.tensor(0.01) if "tensor" in name else 0.01
    step = check(perceptron(), CROSS, lambda m: kind(m.parameters(), lr=rate, **options), batches(6))
    assert step.daceopt.stats.programs == 1 and not step.reasons


@pytest.mark.usefixtures("quick")
def test_a_tuned_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried works on copies: parameters and states are those of as many updates as there were calls."""
    monkeypatch.setattr(search, "variations", lambda recipe: variations(recipe)[:1])
    step = check(perceptron(), CROSS, adam, batches(4), recipe="cpu", tune="60s")
    (result,) = step.daceopt.stats.tuning
    assert len(result.trials) == 2 and not result.untried and not step.reasons


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ["nesterov", "amsgrad"])
@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.1}, {"clip_value": 0.01}], ids=["", "norm", "value"])
def test_built(name: str, clip: dict[str, float]) -> None:
    kind, options = OPTIMIZERS[name]
    check(perceptron(), CROSS, lambda m: kind(m.parameters(), lr=0.01, **options), batches(5), **clip)


def test_built_and_verified() -> None:
    check(perceptron(), CROSS, adam, batches(2), verify="numerics", clip_norm=0.5)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("clip", [{"clip_norm": 0.1}, {"clip_norm": 100}, {"clip_value": 0.01}, {"clip_value": 0}])
def test_clipping(clip: dict[str, float]) -> None:
    check(perceptron(), CROSS, sgd, batches(5), **clip)


@pytest.mark.parametrize("make", [sgd, adam], ids=["sgd", "adam"])
def test_gradients_whose_squares_are_no_numbers_are_clipped(make: Any) -> None:
    def loss(found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(found, target) * 1e25

    check(perceptron(), loss, make, batches(3), clip_norm=0.1)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.1}], ids=["", "norm"])
def test_micro_batches(clip: dict[str, float]) -> None:
    step = check(perceptron(), CROSS, adam, batches(9), accumulate=3, **clip)
    assert all(p.grad is None for p in step.model.parameters())
    assert step.daceopt.stats.programs == 3  # the first, those in between, the last


@pytest.mark.usefixtures("quick")
def test_gradients_are_kept_where_asked_for() -> None:
    model, twin = perceptron(), perceptron()
    step = training_step(model, CROSS, sgd(model), keep_gradients=True, clip_value=0.01, fallback="raise")
    loop = Loop(twin, CROSS, sgd, clip_value=0.01)
    for batch in batches(3):
        step(*batch)
        loop(*batch)
        for p, q in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad)
            assert p.grad is not None and p.grad.data_ptr() != p.data_ptr()


@pytest.mark.usefixtures("quick")
def test_schedulers_change_numbers_and_compile_nothing() -> None:
    model, twin = perceptron(), perceptron()
    ours, loop = adam(model), Loop(twin, CROSS, adam)
    step = training_step(model, CROSS, ours, fallback="raise")
    one, other = (torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9) for o in (ours, loop.optimizer))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scheduler warns where the optimizer has made no step
        for batch in batches(6):
            step(*batch)
            one.step()
            loop(*batch)
            other.step()
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p, q)
    assert step.daceopt.stats.programs == 1


@pytest.mark.usefixtures("quick")
def test_groups_have_options_of_their_own() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        first, _, last = model
        groups = [{"params": first.parameters(), "lr": 0.1}, {"params": last.parameters(), "weight_decay": 0.2}]
        return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0)

    check(perceptron(), CROSS, make, batches(5))


@pytest.mark.usefixtures("quick")
def test_what_is_computed_of_a_rate_that_is_a_tensor_has_its_precision() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), weight_decay=0.2)

    model = perceptron().double()
    loop = Loop(copy.deepcopy(model), CROSS, make)
    step = training_step(model, CROSS, make(model), fallback="raise")
    for x, y in batches(3):
        step(x.double(), y)
        loop(x.double(), y)
    for p, q in zip(model.parameters(), loop.model.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("quick")
def test_a_group_that_comes_later_starts_at_its_own_first_step() -> None:
    model, twin = perceptron(), perceptron()
    ours, loop = (torch.optim.Adam(m[0].parameters(), lr=0.01) for m in (model, twin))
    peer = Loop(twin, CROSS, lambda _: loop)
    step = training_step(model, CROSS, ours, fallback="raise")
    for k, batch in enumerate(batches(6)):
        if k == 3:
            ours.add_param_group({"params": list(model[2].parameters())})
            loop.add_param_group({"params": list(twin[2].parameters())})
        step(*batch)
        peer(*batch)
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p, q)
    assert [int(s["step"]) for s in ours.state.values()] == [6, 6, 3, 3]


@pytest.mark.usefixtures("quick")
def test_frozen_unused_and_tied_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.tied = nn.Linear(6, 6), nn.Linear(6, 6)
            self.tied.weight = self.first.weight
            self.frozen, self.unused = nn.Linear(6, 4), nn.Linear(3, 3)
            self.frozen.weight.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(torch.tanh(self.tied(torch.relu(self.first(x)))))

    torch.manual_seed(3)
    step = check(Net(), CROSS, lambda m: torch.optim.Adam(m.parameters(), weight_decay=0.1), batches(5))
    assert len(step.optimizer.state) == 4  # torch makes none for what gets no gradient


@pytest.mark.usefixtures("quick")
def test_requires_grad_flipped_between_steps() -> None:
    model, twin = perceptron(), perceptron()
    step, loop = training_step(model, CROSS, sgd(model), fallback="raise"), Loop(twin, CROSS, sgd)
    for k, batch in enumerate(batches(6)):
        for m in (model, twin):
            m[0].requires_grad_(k not in (2, 3))
        step(*batch)
        loop(*batch)
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p, q)


def test_batch_norm_and_inference_with_fresh_weights() -> None:
    torch.manual_seed(4)  # a bias before a normalization has a gradient of 0, of which each has its own rounding
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))
    given = [(torch.randn(5, 3, 6, 6), torch.randint(0, 4, (5,))) for _ in range(4)]
    step = check(model, CROSS, sgd, given)
    trained = step.model.eval()
    plain = copy.deepcopy(model).eval()
    plain.load_state_dict(trained.state_dict())
    assert torch.equal(trained(given[0][0]), plain(given[0][0]))


@pytest.mark.usefixtures("quick")
def test_the_last_batch_may_be_smaller() -> None:
    check(perceptron(), CROSS, sgd, [*batches(3), *batches(1, rows=3), *batches(2, rows=2)])


@pytest.mark.usefixtures("quick")
def test_dropout_follows_manual_seed() -> None:
    def run() -> torch.Tensor:
        model = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 4))
        nn.init.ones_(model[0].weight)
        nn.init.ones_(model[2].weight)
        step = training_step(model, CROSS, sgd(model), fallback="raise")
        torch.manual_seed(5)
        return torch.stack([step(*batch) for batch in batches(3)])

    torch.manual_seed(6)
    first = run()
    torch.manual_seed(6)
    assert torch.equal(first, run())


@pytest.mark.usefixtures("quick")
def test_several_inputs_results_of_any_form_and_keywords() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> dict[str, Any]:
            return {"logits": self.a(x) * scale, "others": (self.b(y), x.sum())}

    def loss(found: dict[str, Any], target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (functional.cross_entropy(found["logits"] + found["others"][0], target) * weight).sum()

    torch.manual_seed(7)
    given = [(torch.randn(5, 6), torch.randn(5, 6), y, torch.rand(1)) for _, y in batches(4)]
    check(Net(), loss, sgd, given, inputs=2)
    step = training_step(net := Net(), loss, sgd(net), fallback="raise")
    step(*given[0], scale=2.0)


@pytest.mark.usefixtures("quick")
def test_what_a_model_keeps_of_a_call_beside_its_result() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.kept = perceptron(), torch.zeros(())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.net(x)
            self.kept = found.detach().amax()
            return found

    given = batches(3)
    step = check(Net(), CROSS, sgd, given)
    assert step.model.kept != 0 and not step.model.kept.requires_grad


@pytest.mark.usefixtures("quick")
def test_an_optimized_model_and_autocast() -> None:
    model, twin, (batch, *_) = optimized_module(perceptron(), fallback="raise"), perceptron(), batches(1)
    step, loop = training_step(model, CROSS, sgd(model), fallback="raise"), Loop(twin, CROSS, sgd)
    step(*batch)
    loop(*batch)
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p, q)
    with torch.autocast("cpu", torch.bfloat16):
        assert step(*batch).dtype == torch.float32
        loop(*batch)
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p, q, rtol=2**-6, atol=2**-10)


@pytest.mark.usefixtures("quick")
def test_the_model_s_own_result_may_be_the_loss() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = perceptron()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.net(x), y)

    check(Net(), None, adam, batches(5), inputs=2)


@pytest.mark.usefixtures("quick")
def test_numbers_that_change_between_steps() -> None:
    model, loop = perceptron(), Loop(perceptron(), CROSS, sgd)
    step = training_step(model, CROSS, sgd(model), fallback="raise")
    for k, batch in enumerate(batches(6)):
        for optimizer in (step.optimizer, loop.optimizer):
            optimizer.param_groups[0].update(momentum=0.9 - k / 10, lr=0.1 / (k + 1), dampening=k / 20)
            optimizer.param_groups[0]["weight_decay"] = 0.1 * (k > 3)  # another program
        step(*batch)
        loop(*batch)
    for p, q in zip(model.parameters(), loop.model.parameters()):
        torch.testing.assert_close(p, q)
    assert step.daceopt.stats.programs == 2
