"""What Dynamo is told for our frames, it is told while it looks at them only."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch._dynamo import config
from torch._dynamo.exc import InternalTorchDynamoError, ResumePrologueTracingError

from daceopt import optimized_module
from daceopt.errors import DaceoptError, FallbackWarning
from tests.twins import module, normal

SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def _programs(interpreted):
    SEEN.clear()


@torch.compiler.disable
def _look(x):
    warnings.warn("The .grad attribute of a Tensor that is not a leaf, says the user", UserWarning, stacklevel=1)
    SEEN.append((config.allow_rnn, config.skip_nnmodule_hook_guards, config.suppress_errors))
    return x


def test_the_model_s_own_code_runs_under_its_own_settings():
    net = optimized_module(module(lambda self, x: _look(x.sin()).cos()), fallback="silent")
    outside = (config.allow_rnn, config.skip_nnmodule_hook_guards, config.suppress_errors)
    for _ in range(3):
        with pytest.warns(UserWarning, match="says the user"):
            torch.testing.assert_close(net(normal(3)), normal(3).sin().cos())
    assert [outside] * 3 == SEEN
    assert net.daceopt.stats.programs == 2


def _other_where_compiled(self, x):
    """A model that adds what does not fit, but only if it is compiled."""
    x = torch.tanh(x @ self.w)
    return x + torch.ones(7) if torch.compiler.is_compiling() else x * 2


@pytest.mark.parametrize("inside", [False, True])
def test_an_operator_that_fails_in_the_trace_alone(inside):
    """The whole call is that of eager PyTorch, for what it calls as well."""
    net = module(_other_where_compiled, w=torch.ones(3, 3))
    net = torch.nn.Sequential(torch.nn.Tanh(), net, torch.nn.Tanh()) if inside else net
    x, seen = torch.randn(2, 3), []
    expected = net(x)
    optimized_module(net, fallback="warn")
    with pytest.warns(FallbackWarning, match="PyTorch refuses this call: Attempting to broadcast"):
        seen.append(net(x))
    seen += [net(x), net(x)]
    assert all(torch.equal(y, expected) for y in seen)
    assert net.daceopt.stats.programs == 0 and net.daceopt.stats.eager_calls == 3
    with pytest.raises(DaceoptError, match="cannot be compiled as a whole"):
        optimized_module(copy.deepcopy(net), fallback="raise")(x)


@pytest.mark.parametrize("kind", [InternalTorchDynamoError, ResumePrologueTracingError, AssertionError])
def test_whatever_dynamo_fails_with_ends_in_eager(kind, monkeypatch):
    def broken(*args, **kwargs):
        raise kind("out of order")

    monkeypatch.setattr(torch._dynamo.convert_frame, "trace_frame", broken)
    net, x = optimized_module(torch.nn.Linear(3, 3), fallback="warn"), torch.randn(2, 3)
    with pytest.warns(FallbackWarning, match="out of order"):
        found = net(x)
    assert torch.equal(found, torch.nn.functional.linear(x, net.weight, net.bias))
    assert net.daceopt.stats.eager_calls == 1 and any("out of order" in r for r in net.daceopt.reasons)
    strict = optimized_module(torch.nn.Linear(3, 3), fallback="raise")
    with pytest.raises(DaceoptError, match="out of order"):
        strict(x)


def test_nothing_is_printed_of_what_runs_as_it_is(capfd):
    net = optimized_module(module(_other_where_compiled, w=torch.ones(3, 3)), fallback="silent")
    net(torch.randn(2, 3))
    assert "".join(capfd.readouterr()) == ""


def test_recurrent_layers_are_compiled():
    net = optimized_module(torch.nn.GRU(3, 3), fallback="raise")
    assert net(torch.randn(2, 1, 3))[0].shape == (2, 1, 3)
    assert net.daceopt.stats.programs == 1


def _doubled(self, x):
    return x.sin() * 2


def test_sizes_of_another_instance_are_not_taken_for_sizes_that_vary():
    """Each has its own sizes as numbers at first; one whose sizes vary has them open from its second program on."""
    nets = [optimized_module(module(_doubled), fallback="raise") for _ in range(2)]
    for net in nets:
        for count, programs in ((3, 1), (4, 2), (5, 2)):
            x = normal(count * len(nets))
            torch.testing.assert_close(net(x), x.sin() * 2)
            assert net.daceopt.stats.programs == programs


class _Shared(torch.nn.Module):
    """Its code is that of a frame of its own, where a caller's graph breaks in it."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(normal(3))

    def forward(self, x):
        return _look(x * self.scale).sin() + 1


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_programs_of_other_modules_do_not_count_against_the_limit(monkeypatch):
    monkeypatch.setattr("daceopt.modules.options.RECOMPILE_LIMIT", 2)
    for _ in range(4):
        shared = _Shared()
        net, x = optimized_module(torch.nn.Sequential(torch.nn.Tanh(), shared).double(), fallback="silent"), normal(3)
        torch.testing.assert_close(net(x), (x.tanh() * shared.scale).sin() + 1)
        assert net.daceopt.stats.programs == 2 and net.daceopt.stats.eager_pieces == 0


def test_a_call_that_computes_nothing_does_not_keep_later_ones_from_being_compiled():
    def forward(self, x, more=None):
        return [x] if more is None else [x * t for t in more]

    net, x = optimized_module(module(forward), fallback="silent"), normal(3)
    for more, programs in ((None, 0), ([], 0), ([x], 1), ((x, x), 2), (None, 2)):
        for found, expected in zip(net(x, more), forward(None, x, more), strict=True):
            torch.testing.assert_close(found, expected)
        assert net.daceopt.stats.programs == programs
    assert net.daceopt.stats.eager_calls == 0


class _WithoutGradient(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient)


class _Refused(torch.nn.Module):
    """Its graph is refused; Dynamo's would lose the backward of the function, and its results differ."""

    def __init__(self) -> None:
        super().__init__()
        self.child = module(lambda self, x: x.sin() * self.w, w=torch.ones(3, dtype=torch.float64))
        self.calls: list[int] = []

    def forward(self, x, refuse=True):
        x = self.child(x)
        self.calls.append(len(self.calls))
        if not refuse:
            return x.cos()
        return torch.func.grad(lambda v: _WithoutGradient.apply(v).sum())(x) + x


def test_what_is_refused_runs_as_it_is_written():
    """And what it calls is compiled; another call is looked at anew."""
    net, x = optimized_module(_Refused(), fallback="silent"), normal(2, 3)
    for calls in range(1, 4):
        torch.testing.assert_close(net(x), x.sin())
        assert net.calls == list(range(calls))
    stats = net.daceopt.stats
    assert (stats.programs, stats.eager_calls, stats.eager_pieces) == (1, 0, 3)
    torch.testing.assert_close(net(x, False), x.sin().cos())
    assert stats.programs == 2 and stats.eager_pieces == 3


def test_what_is_refused_as_a_whole_runs_past_dynamo(monkeypatch):
    net = module(lambda self, x: torch.func.grad(lambda v: _WithoutGradient.apply(v).sum())(x) + x)
    x = normal(2, 3)
    optimized_module(net, fallback="silent")
    for _ in range(3):
        torch.testing.assert_close(net(x), x)
    monkeypatch.setattr(net.daceopt._dispatcher, "_through_dynamo", None)
    torch.testing.assert_close(net(x), x)
    stats = net.daceopt.stats
    assert (stats.programs, stats.calls, stats.eager_calls, stats.eager_pieces) == (0, 4, 4, 4)


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd")
def test_a_graph_that_another_compiler_s_call_refuses_runs_as_it_is_written():
    x = normal(2, 3)

    def fn(x):
        return torch.func.grad(lambda v: _WithoutGradient.apply(v).sum())(x) + x

    compiled = torch.compile(fn, backend="daceopt", options={"fallback": "silent"})
    torch.testing.assert_close(compiled(x), x)
    torch.testing.assert_close(compiled(x), x)


def test_what_backward_finds_written_over_raises_there():
    def forward(self, x):
        y = (x * self.w).exp()
        return torch.nn.functional.hardtanh(y, inplace=True)

    net = optimized_module(module(forward, w=torch.nn.Parameter(torch.ones(3, dtype=torch.float64))), fallback="silent")
    result = net(normal(2, 3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
