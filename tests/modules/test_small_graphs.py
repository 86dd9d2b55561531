"""Graphs of little work stay in eager PyTorch where the recipe is chosen for them, and say so."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from torch import nn

from daceopt import optimized_module
from daceopt.errors import Unsupported
from daceopt.modules import call_times, small_calls

pytestmark = pytest.mark.usefixtures("interpreted", "small_in_eager")

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


class Many(nn.Module):
    """A program is faster, whatever eager PyTorch takes for a few elements."""

    def forward(self, x):
        for _ in range(12):
            x = torch.tanh(x) * 2
        return x


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.step = nn.Linear(8, 8), 0

    def forward(self, x):
        self.step += 1
        return self.linear(x) * self.step


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, *, scale=None, shift=False):
        x = self.linear(x) if scale is None else self.linear(x) * scale
        return x + 1 if shift else x


def stats_of(model):
    s = model.daceopt.stats
    return s.calls, s.eager_calls, s.eager_pieces, s.chosen_pieces, s.programs


@pytest.mark.parametrize("grad", [False, True])
def test_a_small_graph_stays(grad):
    model, twin = optimized_module(nn.Linear(8, 8), fallback="raise"), nn.Linear(8, 8)
    twin.load_state_dict(model.state_dict())
    with torch.set_grad_enabled(grad):
        for _ in range(5):
            assert torch.equal(model(X), twin(X))
    assert stats_of(model) == (5, 5, 5, 5, 0) and not model.daceopt.reasons
    times = call_times.TRAINING if grad else call_times.INFERENCE
    (choice,) = model.daceopt.stats.choices
    assert choice.startswith("eager PyTorch, by the cost model: ")
    assert f"a call of a program {times.of_program(3):.1f} us" in choice
    assert repr(model.daceopt) == "<daceopt: 0 programs, 5 calls, 5 of them eager, 5 pieces in eager (5 by choice)>"


def test_arguments_by_name():
    model, seen = optimized_module(Named(), fallback="raise"), []
    twin = Named()
    twin.load_state_dict(model.state_dict())
    for k in range(6):
        assert torch.equal(model(X, scale=X, shift=k % 2 == 0), twin(X, scale=X, shift=k % 2 == 0))
        seen.append(model.daceopt.stats.chosen_pieces)
    assert torch.equal(model(X, shift=True), twin(X, shift=True))
    assert seen == list(range(1, 7)) and not model.daceopt.reasons
    assert model.forward.dispatcher._small.known


@pytest.mark.parametrize("options", [{"recipe": "cpu"}, {"verify": "structure"}])
def test_who_names_a_recipe_or_verifies_has_a_program(options):
    model = optimized_module(nn.Linear(8, 8), fallback="raise", **options)
    model(X)
    assert stats_of(model) == (1, 0, 0, 0, 1)


@pytest.mark.parametrize("model", [Many(), nn.Linear(2048, 2048), nn.Conv2d(4, 8, 3)])
def test_what_a_program_may_run_faster_is_compiled(model):
    x = {"Many": X, "Linear": torch.randn(64, 2048), "Conv2d": torch.randn(8, 4, 64, 64)}[type(model).__name__]
    optimized = optimized_module(model, fallback="raise")
    with torch.no_grad():
        optimized(x)
    assert stats_of(optimized) == (1, 0, 0, 0, 1)


def test_larger_calls_of_a_small_graph_are_compiled():
    model = optimized_module(nn.Tanh(), fallback="raise")
    for n in (4, 6, 5, 6, 4):
        model(torch.randn(n, 8))
    assert stats_of(model)[-2:] == (5, 0)
    for n in (1 << 18, 1 << 19, 6):
        x = torch.randn(n, 8)
        assert torch.allclose(model(x), torch.tanh(x))
    calls, eager, _, chosen, programs = stats_of(model)
    assert (calls, eager, chosen, programs) == (8, 6, 6, 1)


def test_numbers_that_change_stay_small():
    model = optimized_module(Counted(), fallback="raise")
    for k in range(1, 6):
        assert torch.equal(model(X), model.linear(X) * k)
    assert model.step == 5 and stats_of(model) == (5, 5, 5, 5, 0)


def test_a_temperature_that_changes_stays_small():
    class Tempered(nn.Module):
        tau = 1.0

        def forward(self, x):
            return torch.softmax(x / self.tau, -1)

    model = optimized_module(Tempered(), fallback="raise")
    for k in range(5):
        model.tau = 1.0 + k / 3
        assert torch.equal(model(X), torch.softmax(X / model.tau, -1))
    assert stats_of(model) == (5, 5, 5, 5, 0)


def test_a_call_that_is_taken_for_a_small_one_is_right():
    """What is not looked at may have changed: the module's own forward runs."""
    model = optimized_module(Counted(), fallback="raise")
    for _ in range(3):
        model(X)
    model.linear = Many()
    assert torch.equal(model(X), Many()(X) * 4)
    model.__class__ = type("Other", (Counted,), {"forward": lambda self, x: x + 1})
    assert torch.equal(model(X), X + 1)


def test_what_the_module_became_is_noticed_by_and_by(monkeypatch):
    monkeypatch.setattr("daceopt.modules.small_calls.LOOKS", 3)
    model = nn.Sequential(nn.Linear(8, 8))
    optimized_module(model, fallback="raise")
    for _ in range(3):
        model(X)
    model[0] = Many()
    for _ in range(1000):
        model(X)
        if model.daceopt.stats.programs:
            break
    assert model.daceopt.stats.programs == 1


class Broken(nn.Module):
    """Pieces, one of which is compiled; ``first`` is another."""

    def __init__(self, times, first=lambda x: x + 1):
        super().__init__()
        self.times, self.first = times, first

    def forward(self, x):
        y = self.first(x)
        torch._dynamo.graph_break()
        for _ in range(self.times):
            y = torch.tanh(y) * 2
        return y


def test_pieces_of_a_broken_frame_that_save_more_than_it_costs_to_enter_dynamo():
    model = optimized_module(Broken(48), fallback="silent")
    for _ in range(5):
        assert torch.allclose(model(X), Broken(48)(X), atol=1e-6)
    assert stats_of(model) == (5, 0, 5, 5, 1)


def _deep(x):
    for _ in range(12):
        x = torch.sin(x) + 1
    return x


def _chosen_by_data(x):
    return x[x > 0].sum() + x


def _counted_by_data(x):
    groups = (x[:, 0] > 0).long()
    count = int(groups.max()) + 1
    return x.new_zeros(count, 8).index_add(0, groups, x)[groups] + x


@pytest.mark.parametrize(
    ("first", "programs"),
    [(lambda x: x + 1, 1), (_deep, 2), (_chosen_by_data, 3), (_counted_by_data, None)],
    ids=["one", "two", "data decide", "data count"],
)
def test_pieces_of_a_broken_frame_that_save_less(first, programs):
    """The frame runs as it is written from the call on that follows one in which the pieces were counted."""
    model = optimized_module(Broken(6, first), fallback="silent")
    for _ in range(6):
        assert torch.allclose(model(X), Broken(6, first)(X), atol=1e-5)
    calls, eager, pieces, chosen, found = stats_of(model)
    assert (calls, eager) == (6, 3) and found == (programs or found) and pieces == chosen
    assert "to enter Dynamo for each piece takes 70.0 us" in model.daceopt.stats.choices[-1]


class Batch(nn.Module):
    """Pieces of a model that takes its tensors in containers."""

    def forward(self, batch):
        y = batch["x"] + 1
        torch._dynamo.graph_break()
        return torch.tanh(y) * 2 + batch["more"][0]


def test_members_of_containers_tell_calls_as_well(monkeypatch):
    covered = []

    def cover(self, *call):
        covered.append(of_call(self, *call))
        return covered[-1]

    of_call = small_calls.SmallCalls.cover
    monkeypatch.setattr(small_calls.SmallCalls, "cover", cover)
    model = optimized_module(Batch(), fallback="silent")
    for x in (X, X, X, X, X, X + 1, torch.randn(3, 8)):
        batch = {"x": x, "more": (x, [1])}
        assert torch.equal(model(batch), Batch()(batch))
    assert covered[-2] > 0 and covered[-1] == 0  # another shape is looked at


@pytest.mark.parametrize("container", [lambda x: [x], lambda x: (x, 1), lambda x: {"a": {"b": [x]}}])
def test_a_container_is_told_by_the_shapes_in_it(container):
    def key(x):
        return small_calls.key_of(Batch.forward, Batch(), (container(x),), {})

    assert key(X) == key(X + 1) != key(X[:1])
    assert small_calls.key_of(Batch.forward, Batch(), ([[[[X]]]],), {}) is None
    assert small_calls.key_of(Batch.forward, Batch(), ([X] * 65,), {}) is None
    assert small_calls.key_of(Batch.forward, Batch(), ([object()],), {}) is None
    assert small_calls.key_of(Batch.forward, Batch(), ({object(): X},), {}) is None
    assert small_calls.key_of(Batch.forward, Batch(), ({("user", "rates", "item"): X, 1: X},), {}) is not None


def test_pieces_are_not_counted_in_the_place_of_a_profiler():
    model, seen = optimized_module(Broken(6), fallback="silent"), []

    def profile(frame, event, argument):
        seen.append(event)

    sys.setprofile(profile)
    try:
        for _ in range(4):
            model(X)
        assert sys.getprofile() is profile and seen
    finally:
        sys.setprofile(None)
    assert model.daceopt.stats.eager_calls == 0


def test_what_has_no_program_says_why():
    model = optimized_module(nn.Linear(8, 8))
    model(X)
    with pytest.raises(Unsupported, match="no compiled program: eager PyTorch, by the cost model"):
        model.daceopt.source()


def test_torch_compile_leaves_small_graphs_as_well():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = torch.compile(nn.Linear(8, 8), backend="daceopt", fullgraph=True)
        assert compiled(X).shape == (4, 8)


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: nn.functional.max_pool1d(x, 2),
        lambda x: nn.functional.interpolate(x[None], 16, mode="linear"),
        lambda x: x.repeat_interleave(torch.full((4,), 2), 0, output_size=8),
        lambda x: (x + 1).masked_fill_(x > 0, 2.0),  # what works in place has no mark
        nn.functional.glu,
    ],
    ids=["pool", "interpolation", "repeat", "in place", "glu"],
)
def test_the_times_of_what_torch_does_not_mark_are_known(function):
    model = optimized_module(Called(function), fallback="raise")
    for _ in range(2):
        assert torch.equal(model(X), function(X))
    assert stats_of(model)[2:] == (2, 2, 0)


class Skipped(nn.Module):
    """Dynamo leaves the frame, because its graph breaks in a loop, and compiles what that calls."""

    def forward(self, x):
        for _ in range(2):
            torch._dynamo.graph_break()
            x = _deep(x)
        return x


def test_pieces_below_a_frame_that_dynamo_leaves_are_weighed():
    model = optimized_module(Skipped(), fallback="silent")
    for _ in range(6):
        assert torch.allclose(model(X), Skipped()(X), atol=1e-6)
    assert stats_of(model)[3] > 0 and "to enter Dynamo for each piece" in model.daceopt.stats.choices[-1]
