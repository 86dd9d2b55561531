"""Optimized modules in the hands of others: wrappers of forwards, TorchScript, parallel modules, what is installed at
the first call; and wrong calls."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import traceback
import types
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import softplus

from daceopt import optimized_module
from daceopt.errors import CaptureError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return softplus(self.last(self.first(x).tanh()))


def prepared(model: Any) -> Any:
    """A library wraps the forward, which it keeps."""
    model._original_forward = model.forward
    function = model.forward.__func__

    @functools.wraps(function)
    def forward(self, *args, **kwargs):
        with torch.autocast("cpu", torch.bfloat16):
            return function(self, *args, **kwargs).float()

    model.forward = types.MethodType(forward, model)
    return model


def unwrapped(model: Any) -> Any:
    """And takes its wrapper away by what ``functools.wraps`` has left."""
    forward, original = model.forward, model.__dict__.pop("_original_forward")
    while hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
        if forward == original:
            break
    model.forward = types.MethodType(forward, model)
    return model


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("make", [lambda: optimized_module(Net()), lambda: optimized_module(Net)()])
def test_a_wrapper_of_the_forward_is_taken_away(make):
    model, x = make(), torch.randn(3, 4)
    expected = Net.forward(model, x)
    assert (prepared(model)(x) - expected).abs().max() < 0.1 and model.daceopt.stats.programs == 1
    assert torch.allclose(unwrapped(model)(x), expected, atol=1e-6)


@pytest.mark.usefixtures("interpreted")
def test_a_copy_of_an_unwrapped_module_is_itself():
    model, x = unwrapped(prepared(optimized_module(Net()))), torch.randn(3, 4)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.last.bias += 1
    assert not torch.allclose(twin(x), model(x)) and torch.allclose(twin(x), Net.forward(twin, x), atol=1e-6)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("make", [lambda: optimized_module(Net()), lambda: optimized_module(Net)()])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_takes_the_original(make):
    model, x = make(), torch.randn(3, 4)
    script = torch.jit.script(model)
    assert "softplus" in script.code and torch.allclose(script(x), model(x), atol=1e-6)
    assert model.daceopt.stats.programs == 1
    inside = torch.jit.script(nn.Sequential(model, nn.Tanh()))
    assert torch.allclose(inside(x), model(x).tanh(), atol=1e-6)


@pytest.mark.usefixtures("interpreted")
def test_distributed_data_parallel_inside():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = Net()
        expected, x = copy.deepcopy(model), torch.randn(3, 4)
        parallel = optimized_module(nn.parallel.DistributedDataParallel(model), fallback="raise")
        for _ in range(2):
            parallel(x).sum().backward()
            expected(x).sum().backward()
    finally:
        dist.destroy_process_group()
    stats = parallel.daceopt.stats
    assert isinstance(parallel, nn.parallel.DistributedDataParallel)
    assert (stats.programs, stats.calls, stats.eager_calls) == (1, 2, 0)
    assert all(torch.allclose(p.grad, q.grad, atol=1e-5) for p, q in zip(model.parameters(), expected.parameters()))


# -------------------------------------------------------------------- what is installed at the first call


class Installing(Net):
    """Installs a hook when it is called first, under a lock, which no program can hold."""

    lock = threading.Lock()

    def forward(self, x):
        if not getattr(self, "installed", False):
            with self.lock:
                self.last.register_forward_hook(lambda module, args, result: result * 2)
                self.installed = True
        return super().forward(x)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("fallback", ["raise", "warn"])
def test_a_model_is_looked_at_again_behind_its_first_call(fallback):
    model, expected, x = Installing(), Installing(), torch.randn(3, 4)
    expected.load_state_dict(model.state_dict())
    optimized_module(model, fallback=fallback)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert torch.allclose(model(x), expected(x), atol=1e-6)
    stats = model.daceopt.stats
    assert stats.eager_calls <= 1 and not model.daceopt.reasons and len(model.last._forward_hooks) == 1
    assert model.daceopt._dispatcher._compiled.count == 1 and not model.daceopt._dispatcher._compiled.broken


@pytest.mark.usefixtures("interpreted")
def test_but_once():
    class Locked(Net):
        def forward(self, x):
            self.label = f"{getattr(self, 'label', '')}x"
            with Installing.lock:
                return super().forward(x)

    model = optimized_module(Locked(), fallback="raise")
    model(torch.randn(3, 4))
    with pytest.raises(CaptureError, match="lock"):
        model(torch.randn(3, 4))


# -------------------------------------------------------------------- wrong calls


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(10, 4), nn.Linear(4, 4)

    def forward(self, ids, x):
        h = self.table(ids) + x  # HERE
        return self.linear(h).tanh()  # HERE


IDS, X = torch.zeros(3, dtype=torch.long), torch.ones(3, 4)
WRONG = {
    "shape": (IDS, torch.ones(3, 5)),
    "dtype": (torch.zeros(3), X),
    "dtypes": (IDS, X.double()),
    "index": (IDS + 10, X),
    "none": (None, X),
    "missing": (IDS,),
    "more": (IDS, X, 1),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("fallback", ["raise", "warn"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_call_gets_the_error_of_eager_pytorch(kind, is_first, fallback, capfd):
    model = Lookup()
    expected = copy.deepcopy(model)
    optimized_module(model, fallback=fallback)
    if not is_first:
        model(IDS, X)
    with pytest.raises(Exception) as theirs:
        expected(*WRONG[kind])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(theirs.type) as ours:
            model(*WRONG[kind])
    assert type(ours.value) is type(theirs.value) and str(ours.value) == str(theirs.value)
    shown = "".join(traceback.format_exception(ours.value))
    assert "During handling" not in shown and "direct cause" not in shown and len(shown.splitlines()) < 50
    assert kind in ("missing", "more") or "# HERE" in shown
    assert capfd.readouterr() == ("", "")
    assert torch.allclose(model(IDS, X), expected(IDS, X), atol=1e-6) and model.daceopt.stats.eager_pieces <= 1


class Counted(nn.Module):
    """Counts what it normalizes before something may go wrong, in one graph or behind a break."""

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.norm, self.table, self.breaks = nn.BatchNorm1d(4), nn.Embedding(10, 4), breaks

    def forward(self, x, ids):
        h = self.norm(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return h + self.table(ids)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_wrong_call_changes_buffers_once(breaks):
    model = Counted(breaks)
    expected = copy.deepcopy(model)
    optimized_module(model, fallback="silent")
    x = torch.arange(12.0).reshape(3, 4)
    for ids in (IDS, IDS + 10, IDS):
        for net in (expected, model):
            with pytest.raises(IndexError) if ids.any() else contextlib.nullcontext():
                net(x, ids)
    assert model.norm.num_batches_tracked == expected.norm.num_batches_tracked == 3
    torch.testing.assert_close(model.norm.running_mean, expected.norm.running_mean)


class Noting(nn.Module):
    """Notes what it does where its graph breaks, and raises in what follows: by its own code, or by PyTorch's."""

    def __init__(self, raises: str) -> None:
        super().__init__()
        self.linear, self.raises, self.notes = nn.Linear(4, 4), raises, []

    def forward(self, x, other):
        try:
            if x.sum() > 1e9:
                self.notes.append("large")
            self.notes.append("begun")
            if self.raises == "own" and (other < 0).any():
                raise ValueError("below zero")
            return self.linear(x) + other
        finally:
            self.notes.append("done")


@pytest.mark.parametrize("raises", ["own", "shape"])
def test_a_wrong_call_does_once_what_python_does(raises):
    model = Noting(raises)
    expected = copy.deepcopy(model)
    optimized_module(model, fallback="silent")
    wrong = -torch.ones(3, 4) if raises == "own" else torch.ones(3, 5)
    for other in (torch.ones(3, 4), wrong, torch.ones(3, 4), wrong):
        for net in (expected, model):
            net.notes.clear()
            with pytest.raises((ValueError, RuntimeError)) if other is wrong else contextlib.nullcontext():
                net(torch.ones(3, 4), other)
        assert model.notes == expected.notes
