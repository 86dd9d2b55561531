"""What a forward finds around it, methods of classes, autograd's graph, the environment, is looked at in every call."""

from __future__ import annotations

import functools
import os

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from daceopt import optimized_module
from daceopt.errors import CaptureError
from tests.twins import check, module, normal

pytestmark = pytest.mark.usefixtures("interpreted")

# -------------------------------------------------------------------- methods that are replaced


def test_forward_replaced_on_the_class_of_a_child(monkeypatch):
    def scenario(optimize):
        net, x = optimize(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).double()), normal(2, 3)
        seen = [net(x)]
        with monkeypatch.context() as patch:
            patch.setattr(nn.Linear, "forward", lambda self, x: x * 7)
            seen.append(net(x))
        return [*seen, net(x)]

    check(scenario)


def test_call_replaced_on_the_class_of_a_child():
    def scenario(optimize):
        class Layer(nn.Linear):
            pass

        net, x = optimize(nn.Sequential(Layer(3, 3)).double()), normal(2, 3)
        seen = [net(x)]
        Layer.__call__ = lambda self, x: x * 7
        return [*seen, net(x)]

    check(scenario)


def test_methods_that_forward_calls():
    def scenario(optimize):
        class Base(nn.Module):
            def inherited(self, x):
                return x * 2

            def overridden(self, x):
                return x * 3

        class Net(Base):
            def overridden(self, x):
                return super().overridden(x) + 1

            def forward(self, x):
                return self.inherited(x) + self.overridden(x)

        def change(net):
            yield setattr(Base, "inherited", lambda self, x: x * 5)
            yield setattr(Base, "overridden", lambda self, x: x * 7)
            yield setattr(Net, "inherited", lambda self, x: x * 11)
            yield setattr(Net, "overridden", lambda self, x: x * 13)
            yield setattr(net, "overridden", lambda x: x * 17)

        net, x = optimize(Net()), normal(2, 3)
        return [net(x), *(net(x) for _ in change(net))]

    check(scenario)


class _Made:
    """A descriptor that a class gives another of at each look, as those of torch.distributions are."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function = function

    def __get__(self, owner, cls=None):
        return _Made(self.function) if owner is None else self.function(owner)


def test_methods_of_all_kinds_of_plain_objects():
    def scenario(optimize):
        class Plain:
            def method(self, x):
                return x * 2

            @staticmethod
            def static(x):
                return x * 3

            @classmethod
            def of_class(cls, x):
                return x * 4

            @property
            def value(self):
                return 5.0

            @_Made
            def made(self):
                return 6.0

        def change():
            yield setattr(Plain, "method", lambda self, x: x * 7)
            yield setattr(Plain, "static", staticmethod(lambda x: x * 11))
            yield setattr(Plain, "of_class", classmethod(lambda cls, x: x * 13))
            yield setattr(Plain, "value", property(lambda self: 17.0))
            yield setattr(Plain, "made", _Made(lambda self: 19.0))

        def forward(self, x):
            return plain.method(x) + plain.static(x) + plain.of_class(x) * plain.value + plain.made

        plain = Plain()
        net = optimize(module(forward))
        return [net(normal(3)), *(net(normal(3)) for _ in change())]

    check(scenario)


def test_code_and_defaults_of_forward():
    def scenario(optimize):
        def forward(self, x, k=2.0):
            return x * k

        net = optimize(module(forward))
        seen = [net(normal(3))]
        forward.__defaults__ = (3.0,)
        seen.append(net(normal(3)))
        forward.__code__ = (lambda self, x, k: x + k).__code__
        return [*seen, net(normal(3))]

    check(scenario)


# -------------------------------------------------------------------- where a tensor stands


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("is_root", [lambda x: x.is_leaf, lambda x: x.grad_fn is None, lambda x: x._base is None])
def test_where_an_argument_stands_in_the_graph_of_autograd(first, is_root):
    def scenario(optimize):
        net, x = optimize(module(lambda self, x: x * 2 if is_root(x) else x * 3)), normal(3).requires_grad_()
        return [net(t) for t in ([x] if first else []) + [x * 1, x, x[:], x.detach(), x.detach()[:], x]]

    check(scenario, fallback="silent")


@pytest.mark.parametrize("read", [lambda x: x.retains_grad, lambda x: x._backward_hooks])
def test_what_hangs_on_an_argument(read):
    def scenario(optimize):
        net, x = optimize(module(lambda self, x: x * 2 if read(x) else x * 3)), normal(3).requires_grad_() * 1
        seen = [net(x)]
        x.retain_grad()
        x.register_hook(lambda g: g)
        return [*seen, net(x), net(x * 1)]

    check(scenario, fallback="silent")


def test_tensors_as_keys():
    def scenario(optimize):
        factors, x, y = {}, normal(3), normal(3) + 1
        net = optimize(module(lambda self, x: x * factors.get(x, 1.0)))
        seen = [net(x)]
        factors[x] = 2.0
        return [*seen, net(x), net(y), net(x)]

    check(scenario)


# -------------------------------------------------------------------- the environment


@pytest.mark.parametrize(
    "read",
    [
        lambda: float(os.environ.get("DACEOPT_TESTED", "1")),
        lambda: float(os.getenv("DACEOPT_TESTED", "1")),
        lambda: 2.0 if "DACEOPT_TESTED" in os.environ else 1.0,
    ],
)
def test_environment_variables(monkeypatch, read):
    def scenario(optimize):
        net, seen = optimize(module(lambda self, x: x * read())), []
        for value in (None, "2", "3", None, "2"):
            if value is None:
                monkeypatch.delenv("DACEOPT_TESTED", raising=False)
            else:
                monkeypatch.setenv("DACEOPT_TESTED", value)
            seen.append(net(normal(3)))
        return seen

    check(scenario)


def test_a_reason_is_told_to_each_module():
    """Also one that Dynamo has met before, in a module that may not break."""
    from daceopt import optimized_module
    from daceopt.errors import CaptureError, FallbackWarning

    net = module(lambda self, x: x * 2 if x.is_pinned() else x * 3)
    with pytest.raises(CaptureError, match="non-Tensor"):
        optimized_module(net, fallback="raise")(torch.ones(3))
    with pytest.warns(FallbackWarning, match="non-Tensor"):
        optimized_module(net)(torch.ones(3))


# -------------------------------------------------------------------- replicas


@pytest.mark.parametrize("own", [True, False])
def test_replicas_run_on_their_own_parameters(own):
    def scenario(optimize):
        net, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double(), normal(2, 3)
        if own:
            net.forward = lambda x: x * 2
        net = optimize(net)
        net(x)
        replica = net._replicate_for_data_parallel()
        replica._modules["0"] = nn.Linear(3, 4).double().requires_grad_(False)
        return net(x), replica(x), type(replica) is type(net), net(x)

    check(scenario)


def test_a_mode_of_functions_around_the_call():
    """It would see what the program does, not what the model calls."""

    class Doubling(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            return found * 2 if function is torch.sin else found

    def scenario(optimize):
        net, x = optimize(module(lambda self, x: torch.sin(x) + 1)), normal(3)
        seen = [net(x)]
        with Doubling():
            seen.append(net(x))
        return [*seen, net(x)]

    check(scenario, fallback="silent")
    net = optimized_module(module(lambda self, x: torch.sin(x) + 1), fallback="raise")
    with pytest.raises(CaptureError, match="Doubling"), Doubling():
        net(normal(3))
