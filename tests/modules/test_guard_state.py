"""Guards of a model's state, replaced by words that change with it: what is said is what the guards say."""

from __future__ import annotations

import gc
import types
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from daceopt import optimized_module
from daceopt.modules import guard_state, object_words

pytestmark = pytest.mark.skipif(not object_words.are_known(), reason="this Python has the words elsewhere")


FACTOR = 1.0
TABLE = {"factor": 1.0, "inner": {"shift": 0.0}}


class Defaults(dict):
    """Reads otherwise than it was written."""

    def __missing__(self, key):
        return 1.0


def _shift(x):
    return x + 1.0


class Settings:
    def __init__(self):
        self.scale = 2.0


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.factor, self.shape, self.parts = 1.5, (4,), [1.0, 2.0]

    def forward(self, x):
        return self.norm(F.relu(self.linear(x))) * self.factor + self.parts[0] + len(self.shape)


class Other(Layer):
    def forward(self, x):
        return super().forward(x) + 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(12))
        self.settings, self.defaults = Settings(), Defaults(factor=1.0)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x, y=None):
        for layer in self.layers:
            x = layer(x)
        x = x * self.settings.scale * self.defaults["factor"] + self.shift
        x = _shift(x) * FACTOR * TABLE["factor"] + TABLE["inner"]["shift"]
        return x if y is None else x + y


def _hook(module, inputs, output):
    return output * 2


CHANGES = {
    "mode": lambda m: m.layers[3].norm.train(),
    "number": lambda m: setattr(m.layers[5], "factor", 2.5),
    "number of a plain object": lambda m: setattr(m.settings, "scale", 3.0),
    "member of a dictionary of another class": lambda m: m.defaults.__setitem__("factor", 3.0),
    "class of a dictionary": lambda m: setattr(m, "defaults", {"factor": 2.0}),
    "member of a list": lambda m: m.layers[2].parts.__setitem__(0, 5.0),
    "tuple": lambda m: setattr(m.layers[2], "shape", (4, 4)),
    "layer": lambda m: m.layers.__setitem__(7, Other()),
    "layers": lambda m: m.layers.append(Layer()),
    "parameter": lambda m: setattr(m.layers[1].linear, "weight", nn.Parameter(torch.randn(4, 4).double().float() + 1)),
    "parameter, past the module": lambda m: m.layers[1].linear._parameters.__setitem__("bias", None),
    "gradient": lambda m: m.layers[4].linear.weight.requires_grad_(False),
    "data of another order": lambda m: setattr(
        m.layers[4].linear.weight, "data", m.layers[4].linear.weight.data.t().contiguous().t()
    ),
    "buffer": lambda m: setattr(m, "shift", torch.full((1,), 3.0)),
    "hook": lambda m: m.layers[6].register_forward_hook(_hook),
    "class": lambda m: setattr(m.layers[8], "__class__", Other),
    "dictionary": lambda m: setattr(m.layers[8], "__dict__", {**m.layers[8].__dict__, "factor": 4.0}),
    "method of an object": lambda m: setattr(
        m.layers[9], "forward", types.MethodType(lambda self, x: Layer.forward(self, x) * 3, m.layers[9])
    ),
}


@pytest.fixture
def few(monkeypatch):
    """A state is recorded for small trees, and soon."""
    monkeypatch.setattr(guard_state, "_FEWEST", 8)


def _settled(model, *arguments):
    """The optimized module, its guards, and the state that is recorded."""
    optimized = optimized_module(model, recipe="cpu")
    for _ in range(8):
        optimized(*arguments)
    return optimized, _guards(optimized)


def _guards(optimized):
    return [guards for guards, _ in optimized.daceopt._dispatcher._compiled._checked]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_shows(few, change):
    model, plain, x = Model().eval(), Model().eval(), torch.randn(3, 4)
    plain.load_state_dict(model.state_dict())
    optimized, [guards] = _settled(model, x)
    state, variables = guards._state, {"self": optimized, "x": x, "y": None}
    assert state.allows(variables) is True
    for network in (optimized, plain):
        torch.manual_seed(0)
        change(network)
    assert state.allows(variables) is not True
    for _ in range(12):  # through the guards, and by the next state
        torch.testing.assert_close(optimized(x), plain(x))


@pytest.mark.parametrize(
    "change",
    (
        lambda patch: patch.setitem(globals(), "FACTOR", 2.0),
        lambda patch: patch.setitem(globals(), "TABLE", {"factor": 1.0, "inner": {"shift": 4.0}}),
        lambda patch: patch.setitem(TABLE, "factor", 3.0),
        lambda patch: patch.setitem(TABLE["inner"], "shift", 3.0),
        lambda patch: patch.setattr(F, "relu", torch.abs),
        lambda patch: patch.setattr(_shift, "__code__", (lambda x: x - 1.0).__code__),
        lambda patch: patch.setattr(Layer, "forward", lambda self, x: self.linear(x)),
    ),
    ids=("number", "dictionary", "member", "inner member", "function", "code", "method"),
)
def test_a_change_around_the_model_shows(few, monkeypatch, change):
    model, plain, x = Model().eval(), Model().eval(), torch.randn(3, 4)
    plain.load_state_dict(model.state_dict())
    optimized, [guards] = _settled(model, x)
    state, variables = guards._state, {"self": optimized, "x": x, "y": None}
    assert state.allows(variables) is True
    with monkeypatch.context() as patch:
        change(patch)
        assert state.allows(variables) is not True
        for _ in range(3):
            torch.testing.assert_close(optimized(x), plain(x))


def test_inputs_are_checked_each_time(few):
    model, x = Model().eval(), torch.randn(3, 4)
    _, [guards] = _settled(model, x)
    variables = {"self": model, "x": x, "y": None}
    assert guards._state.allows(variables | {"x": x.double()}) is False
    assert guards._state.allows(variables | {"y": 1.0}) is False
    assert guards._state.allows(variables | {"self": Model().eval()}) is not True
    assert guards._state.allows(variables) is True


def test_other_arguments_that_alias(few):
    """Guards that compare arguments with each other see them anew in each call."""
    model, x, y = Model().eval(), torch.randn(3, 4), torch.randn(3, 4)
    optimized, [guards] = _settled(model, x, y)
    variables = {"self": optimized, "x": x, "y": y}
    for _ in range(3):
        assert guards._state.allows(variables) is True
        assert guards._state.allows(variables | {"y": x}) is False
        assert guards._state.allows(variables | {"y": y.double()}) is False
    torch.testing.assert_close(optimized(x, x), optimized(x, x.clone()))


def test_open_sizes_are_checked_each_time(few):
    model, plain = Model().eval(), Model().eval()
    plain.load_state_dict(model.state_dict())
    optimized = optimized_module(model, recipe="cpu")
    for rows in (3, 5, 6, 7, 8, 9, 10, 11):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(optimized(x), plain(x))
    assert any(guards._state for guards in _guards(optimized))
    torch.testing.assert_close(optimized(x[:1]), plain(x[:1]))
    with pytest.raises(RuntimeError):
        optimized(torch.randn(3, 5))


def test_a_state_that_changes_all_the_time_is_recorded_ever_more_rarely(few, monkeypatch):
    records = []
    record = guard_state.record
    monkeypatch.setattr(guard_state, "record", lambda *a: records.append(1) or record(*a))
    model, x = Model().eval(), torch.randn(3, 4)
    optimized = optimized_module(model, recipe="cpu")
    for k in range(60):
        optimized.note = k  # a number that nobody reads
        optimized(x)
    assert 2 <= len(records) <= 4


def test_tied_parameters_have_a_state(few):
    model, x = Model().eval(), torch.randn(3, 4)
    model.layers[1].linear.weight = model.layers[0].linear.weight
    optimized, [guards] = _settled(model, x)
    variables = {"self": optimized, "x": x, "y": None}
    assert guards._state.allows(variables) is True
    optimized.layers[1].linear.weight = nn.Parameter(torch.zeros(4, 4))
    assert guards._state.allows(variables) is not True


def test_small_trees_have_no_state():
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    _, [guards] = _settled(model, x)
    assert guards._state is None


def test_what_is_replaced_is_not_kept(few):
    model, x = Model().eval(), torch.randn(3, 4)
    optimized, _ = _settled(model, x)
    old = weakref.ref(optimized.layers[0])
    optimized.layers[0] = Layer().eval()
    optimized(x)
    gc.collect()
    assert old() is None
    alive = weakref.ref(optimized)
    del optimized, model, _
    gc.collect()
    assert alive() is None
