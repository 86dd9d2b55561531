"""Calls that write into their arguments, whatever they are called: what is differentiated, and what eager refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from daceopt.capture.torch.writes import unrecorded_nodes, written_nodes
from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted
from tests.twins import normal

ACTIVATIONS: dict[str, Callable[..., torch.Tensor]] = {
    **{f.__name__: f for f in (F.relu, F.relu6, F.hardswish, F.hardsigmoid, F.elu, F.selu, F.celu, F.silu, F.mish)},
    "hardtanh": lambda x, inplace: F.hardtanh(x, -0.5, 0.75, inplace),
    "leaky_relu": lambda x, inplace: F.leaky_relu(x, 0.2, inplace),
    "threshold": lambda x, inplace: F.threshold(x, 0.1, 0.25, inplace),
    "rrelu": lambda x, inplace: F.rrelu(x, 0.1, 0.3, False, inplace),
    "dropout": lambda x, inplace: F.dropout(x, 0.5, False, inplace),
    "alpha_dropout": lambda x, inplace: F.alpha_dropout(x, 0.5, False, inplace),
    "feature_alpha_dropout": lambda x, inplace: F.feature_alpha_dropout(x, 0.5, False, inplace),
    "dropout1d": lambda x, inplace: F.dropout1d(x, 0.5, False, inplace),
    "dropout2d": lambda x, inplace: F.dropout2d(x, 0.5, False, inplace),
    "dropout3d": lambda x, inplace: F.dropout3d(x, 0.5, False, inplace),
}


@pytest.mark.parametrize("write", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_an_activation_writes_into_a_value_and_into_its_view(write: Callable[..., Any]) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value, other = x * 1.5, y * 1.5
        result = write(value, inplace=True)
        write(other[:, 1:], inplace=True)
        return result * 2, value, other.square()

    check(fn, normal(2, 3, 4) * 2, normal(2, 3, 4) * 3, native=False)


RANDOM: dict[str, Callable[..., torch.Tensor]] = {
    "rrelu": partial(F.rrelu, training=True, inplace=True),
    **{f.__name__: partial(f, inplace=True) for f in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)},
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_multiplied_into_a_value(name: str) -> None:
    """The gradient has the factors that the values have."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        value = x * 1
        RANDOM[name](value)
        return value

    x = normal(2, 3, 4, 5)[(..., 0) if name == "dropout1d" else ...].clone().requires_grad_()
    result = _compiled(fn)(x)
    result.sum().backward()
    torch.testing.assert_close(x.grad, (result / x).detach())
    assert len(set((result / x).detach().flatten().tolist())) > 1


@pytest.mark.parametrize("write", [F.alpha_dropout, F.feature_alpha_dropout])
def test_what_alpha_dropout_keeps_has_one_factor(write: Callable[..., Any]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        value = x * 1
        return write(value, 0.5, True, inplace=True)

    x = normal(4, 8, 3).requires_grad_()
    _compiled(fn)(x).sum().backward()
    assert x.grad is not None and len(set(x.grad.flatten().tolist())) == 2


def _compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    backend = make_backend(compile_interpreted)
    made: Callable[..., Any] = torch._dynamo.optimize(backend, nopython=True, dynamic=False)(fn)
    return made


def test_writes_between_views_and_twice_into_one_value() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value = x * 2
        rows, column = value[1:], value[:, 0]
        F.hardtanh(value, -1.0, 1.0, True)
        rows *= 2
        column += rows[0, :2].sum()
        value[0] = value[1]
        return value * 3, rows.exp(), column

    check(fn, normal(2, 4))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_an_argument_of_the_call_is_written() -> None:
    def step(fn: Callable[..., Any]) -> tuple[Any, ...]:
        leaf = normal(2, 4).requires_grad_()
        given = leaf * 2
        result = fn(given)
        (gradient,) = torch.autograd.grad(result.sum() + given.sum(), leaf)
        return result.detach(), given.detach(), gradient

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.hardswish(x[:, 1:], inplace=True) * 3

    for ours, theirs in zip(step(_compiled(fn)), step(fn), strict=True):
        torch.testing.assert_close(ours, theirs)


def _in_region(write: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    def call(x: torch.Tensor) -> None:
        with torch.no_grad():
            write(x)

    return call


WITHOUT_GRADIENT: dict[str, Callable[[torch.Tensor], Any]] = {
    "region": _in_region(lambda x: x.clamp_(-0.5, 0.5)),
    "region, a view": _in_region(lambda x: x[:, 1:].mul_(3)),
    "region, an activation": _in_region(lambda x: F.relu6(x, inplace=True)),
    "region, out": _in_region(lambda x: torch.exp(x.detach(), out=x)),
    "data": lambda x: x.data.mul_(3),
    "detached": lambda x: x.detach()[1].sub_(x.detach()[0]),
    "detached, an activation": lambda x: F.elu(x.detach()[0], inplace=True),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("write", WITHOUT_GRADIENT.values(), ids=WITHOUT_GRADIENT)
@pytest.mark.parametrize("own", [lambda x: x, lambda x: x * 2], ids=["argument", "value"])
def test_what_autograd_does_not_record_keeps_the_gradient(
    write: Callable[..., Any], own: Callable[..., torch.Tensor]
) -> None:
    """Of what is read later the gradient is that of what was there, by way of the new numbers."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value = own(x)
        view = value[:, :2]
        write(value)
        return value.square(), view * 3, value.detach() * x

    check(fn, normal(2, 4))


@pytest.mark.parametrize("own", [lambda x: x, lambda x: x * 2], ids=["argument", "value"])
@pytest.mark.parametrize("bag", [False, True])
def test_rows_of_bounded_norm_are_differentiated(own: Callable[..., torch.Tensor], bag: bool) -> None:
    def fn(table: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value, rows = own(table), torch.tensor([[0, 1], [3, 1]])
        if bag:
            return F.embedding_bag(rows, value, max_norm=0.4, mode="sum").square(), value
        return F.embedding(rows, value, max_norm=0.4).square(), value * 2

    check(fn, normal(5, 3), native=False)


REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "what backward reads": (lambda x: F.hardtanh(x.exp(), inplace=True), "modified by an inplace operation"),
    "twice, by its result": (lambda x: F.elu(F.elu(x * 2, inplace=True), inplace=True), "by an inplace operation"),
    "a leaf": (lambda x: F.relu6(x, inplace=True), "a leaf Variable that requires grad"),
    "one of several views": (lambda x: F.hardswish((x * 2).unbind(0)[0], inplace=True), "Output 0 of Unbind"),
    "out": (lambda x: torch.add(x, 1, out=torch.empty_like(x)), "don't support automatic differentiation"),
    "one place, often": (lambda x: (x * 2).sum(1, keepdim=True).expand(2, 4).relu_(), "share memory"),
}


@pytest.mark.parametrize(("write", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_eager_raises_for_is_refused(write: Callable[..., Any], reason: str) -> None:
    with pytest.raises(RuntimeError):
        write(normal(2, 4).requires_grad_()).sum().backward()
    with pytest.raises(Exception, match=reason):
        _compiled(write)(normal(2, 4).requires_grad_())


def test_operators_say_by_their_schema_what_they_write() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    assert written_nodes(graph.call_function(torch.ops.aten.add_.Tensor, (x, y))) == [x]
    assert written_nodes(graph.call_function(torch.ops.aten.add.out, (x, x), {"out": y})) == [y]
    plain = graph.call_function(torch.ops.aten.add.Tensor, (x, y))
    assert written_nodes(plain) == unrecorded_nodes(plain) == []


def test_what_is_written_where_gradients_are_off_connects_nothing() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = x * 2
        with torch.no_grad():
            value.copy_(y)
        return value.square()

    x, y = normal(3).requires_grad_(), normal(4)[1:].clone().requires_grad_()
    _compiled(fn)(x, y).sum().backward()
    torch.testing.assert_close(x.grad, 4 * y.detach())
    assert y.grad is None


class _Shifted(torch.autograd.Function):
    """As sparsemax is written: the argument itself is shifted; the gradient is 3 times the right one, to be told."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        x -= x.max(-1, keepdim=True)[0]
        result = x.exp() * factor
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (result,) = ctx.saved_tensors
        return gradient * result * 3, None


class _Doubled(torch.autograd.Function):
    """Its argument is its result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x


CUSTOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "shifted": lambda x: _Shifted.apply(x, 2.0),
    "doubled, and marked dirty": lambda x: _Doubled.apply(x),
}


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd")
@pytest.mark.parametrize("custom", CUSTOM.values(), ids=CUSTOM)
@pytest.mark.parametrize("viewed", [False, True])
def test_custom_functions_write_into_their_argument(custom: Callable[..., torch.Tensor], viewed: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value = x * 1.5
        result = custom(value[:, 1:] if viewed else value)
        return result * y[:, viewed:], value * 3

    check(fn, normal(3, 4), normal(3, 4))
