"""``torch.compile(model, backend="daceopt")``."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from daceopt.errors import FallbackWarning

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _programs(interpreted):
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def step(module: nn.Module, batch: int) -> list[torch.Tensor]:
    module.zero_grad()
    a = torch.arange(batch * 4.0).reshape(batch, 4).sin().requires_grad_()
    out = module(a)
    out.square().sum().backward()
    return [out, a.grad, *[p.grad for p in module.parameters()], *[b.float() for b in module.buffers()]]


def test_the_backend_is_registered_by_name():
    assert "daceopt" in torch._dynamo.list_backends()


def test_training_with_changing_batches_and_batch_norm():
    reference = model()
    compiled = torch.compile(copy.deepcopy(reference), backend="daceopt")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for batch in (3, 5, 7):
            for a, b in zip(step(compiled, batch), step(reference, batch), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_graph_breaks_leave_python_in_between():
    def function(a):
        b = torch.tanh(a)
        if b.sum() > 0:
            return b * 2
        return b - 1

    compiled = torch.compile(function, backend="daceopt")
    for a in (torch.ones(4), -torch.ones(4)):
        torch.testing.assert_close(compiled(a), function(a))


def breaks_in_a_loop(a):
    for _ in range(2):
        torch._dynamo.graph_break()
        a = torch.tanh(a)
    return a


def test_other_backends_compile_what_they_did():
    torch.compile(torch.tanh, backend="daceopt")(torch.ones(4))  # Dynamo's methods are replaced by now
    torch.testing.assert_close(
        torch.compile(breaks_in_a_loop, backend="eager")(torch.ones(4)), torch.ones(4).tanh().tanh()
    )


def test_options_reach_the_backend():
    with pytest.raises(Exception, match="did you mean 'auto'"):
        torch.compile(lambda a: a.cumsum(0), backend="daceopt", options={"recipe": "atuo"})(torch.ones(4))


def test_modes_of_torch_compile_are_accepted():
    compiled = torch.compile(torch.tanh, backend="daceopt", mode="max-autotune")
    torch.testing.assert_close(compiled(torch.ones(4)), torch.tanh(torch.ones(4)))


def test_unsupported_graphs_run_eagerly_with_the_reason():
    compiled = torch.compile(lambda a: a * 2, backend="daceopt")
    with pytest.warns(FallbackWarning, match="device meta"):
        assert compiled(torch.ones(4, device="meta")).device.type == "meta"
