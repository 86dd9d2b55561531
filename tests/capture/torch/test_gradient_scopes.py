"""Regions without gradients inside of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests import twins
from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted
from tests.twins import normal


def test_what_is_written_later_does_not_connect_what_a_region_read() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            kept = x.square() * 3
        kept.sub_(y)
        return kept

    check(fn, torch.randn(3), torch.randn(3))


def test_what_is_written_after_a_value_was_read_does_not_connect_it() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        padded = x + 1
        result = padded.sum()
        padded.add_(y)
        return result

    assert _gradients_are_absent(fn) == [False, True]


def test_what_is_written_through_a_view_connects_its_base() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        base = x + 1
        base.view(3, 1)[1:].view(2).add_(y[1:])
        return base * 0 + base

    assert _gradients_are_absent(fn) == [False, False]


@pytest.mark.parametrize(
    "made",
    [torch.zeros_like, lambda x: x.detach() * 1, lambda x: x.new_ones(3)],
    ids=["zeros_like", "detached", "new_ones"],
)
def test_what_is_written_into_a_new_value_does_not_connect_what_it_was_made_like(made: Callable[..., Any]) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        new = made(x)
        new.lerp_(y, 0.25)
        return new * new

    assert _gradients_are_absent(fn) == [True, False]


def _compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True)(fn)
    return compiled


def _gradients_are_absent(fn: Callable[..., Any]) -> list[bool]:
    given = [torch.randn(3, requires_grad=True) for _ in range(2)]
    _compiled(fn)(*given).sum().backward()
    return [x.grad is None for x in given]


def test_what_gives_its_very_operand_keeps_the_gradient_in_a_region() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        with torch.no_grad():
            same = y.contiguous()
        same.mul_(2)
        return same * 3, y.detach() + same

    check(fn, torch.randn(2, 3))


def test_dropout_that_drops_nothing_is_refused_where_it_leaves_a_region() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            same = F.dropout(x, 0.5, training=False)
        return same * 2

    with pytest.raises(Exception, match="drops nothing of a value that requires a gradient"):
        check(fn, torch.randn(2, 3))


def test_dropout_that_drops_nothing_of_a_parameter_where_gradients_are_off() -> None:
    weight = torch.randn(2, 3, requires_grad=True)
    compiled = _compiled(lambda x: F.dropout(x, 0.5, training=False)[1:] * F.dropout(x, 0.0).exp())
    with torch.no_grad():
        assert torch.allclose(compiled(weight), weight[1:] * weight.exp())
        with pytest.raises(Exception, match="drops nothing of a value that requires a gradient"):
            _compiled(lambda x: F.dropout(x, 0.5, training=False))(weight)


@pytest.mark.parametrize("written", [0, 1])
@pytest.mark.parametrize("read", [0, 1])
@pytest.mark.parametrize("options", [{"training": False}, {"p": 0.0}], ids=str)
def test_writes_after_dropout_that_drops_nothing_connect_both_names(
    written: int, read: int, options: dict[str, Any]
) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = x * 2
        names = value, F.dropout(value, **options)[1:]
        names[written][-1:].sub_(y * y)
        return names[read] * 3

    check(fn, torch.randn(2, 3), torch.randn(3))


@pytest.mark.parametrize("written", [0, 1])
def test_dropout_that_drops_nothing_of_what_comes_to_require_a_gradient_is_refused(written: int) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value = x.detach() * 2
        names = value, F.dropout(value, training=False)
        names[written].sub_(x)
        return names

    with pytest.raises(Exception, match="drops nothing of a value that is written into"):
        check(fn, torch.randn(2, 3))


def test_an_argument_is_changed_through_a_detached_value() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x + y
        x.data.mul_(3)
        return z.exp() + x.detach()

    given = [torch.tensor([0.5, -1.0], requires_grad=True) for _ in range(2)]
    _compiled(fn)(*given)
    assert given[0].tolist() == [1.5, -3.0] and given[0].is_leaf and given[0].requires_grad


@pytest.mark.parametrize("read", [lambda x, y: x * 2, lambda x, y: (y * 2, x), lambda x, y: x.add_(1)])
def test_a_value_that_changed_where_it_was_detached_is_differentiated(read: Callable[..., Any]) -> None:
    def fn(x: torch.Tensor) -> Any:
        base = x * 1
        detached = base.detach()
        detached[0].mul_(3)
        return read(base, detached)

    check(fn, torch.randn(2, 3))


@pytest.mark.parametrize("read", [lambda base, new: new * new, lambda base, new: new])
def test_a_detached_value_that_comes_to_require_a_gradient_is_refused(read: Callable[..., Any]) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        base = x.detach() * 1
        new = base.detach()
        new.mul_(y)
        return read(base, new) * x

    with pytest.raises(Exception, match="a detached value, require a gradient"):
        check(fn, torch.randn(3), torch.randn(3))


@pytest.mark.parametrize("write", [torch.Tensor.mul_, lambda t, y: t.lerp_(y, 0.1), lambda t, y: t[0].add_(y[0])])
def test_a_detached_value_that_only_writes_read(write: Callable[..., Any]) -> None:
    """A moving average of what is differentiated elsewhere, by ``.data``."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        base = x.detach() * 1
        write(base.data, y)
        write(base.detach(), y * x)
        return base * x + y

    check(fn, normal(3), normal(3))


def test_a_detached_value_is_changed_and_its_source_is_only_compared() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        base = x * 1
        base.detach().mul_(3)
        return torch.where(base > 0, x, 2 * x)

    check(fn, torch.randn(2, 3))


def _into_statistics(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, kept, torch.ones(3), training=True)


def _by_numpy(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    kept.numpy()[1] = 3.0
    return x


UNNAMED = {
    "out": lambda x, kept: torch.exp(x[0].detach(), out=kept),
    "batch_norm": _into_statistics,
    "instance_norm": lambda x, kept: F.instance_norm(x[:, :, None] * torch.arange(1, 5), kept, torch.ones_like(kept)),
    "embedding": lambda x, kept: F.embedding(torch.tensor([0, 1, 1]), kept.view(3, 1), max_norm=0.1),
    "numpy": _by_numpy,
}


@pytest.mark.parametrize("write", UNNAMED.values(), ids=UNNAMED)
@pytest.mark.parametrize("own", [lambda y: y * 1, lambda y: y], ids=["value", "argument"])
def test_writes_that_no_name_tells_into_what_is_differentiated(
    write: Callable[..., Any], own: Callable[..., Any]
) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        kept = own(y)
        return write(x, kept.detach()), kept * x

    if write is _into_statistics:  # which raises no version
        with pytest.raises(Exception, match=r"writes into \w+, which requires a gradient"):
            check(fn, torch.randn(2, 3), torch.randn(3))
    else:
        check(fn, torch.randn(2, 3), torch.randn(3), native=False)


def test_writes_that_no_name_tells_without_gradients() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.exp(x, out=y) * 2, y

    check(fn, torch.randn(3), torch.randn(3), grad=False)
    with torch.no_grad():
        table = torch.randn(4, 3)
        check(lambda w: F.embedding(torch.tensor([0, 1]), w, max_norm=0.1), table, native=False, grad=False)


def test_a_table_whose_rows_are_bounded_is_trained() -> None:
    def scenario(optimize: Callable[[Any], Any]) -> Any:
        net = optimize(torch.nn.Embedding(4, 3, max_norm=0.1, _weight=normal(4, 3)))
        found = net(torch.tensor([0, 1, 1]))
        found.sum().backward()
        return found, net.weight.detach(), net.weight.grad

    twins.check(scenario, fallback="silent")


@pytest.mark.parametrize(
    ("strides", "grad"), [((2, 1), True), ((1, 1), False)], ids=["differentiated", "elements share memory"]
)
def test_writes_through_as_strided_are_refused(strides: tuple[int, int], grad: bool) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.as_strided((2, 2), strides).mul_(3)
        return y

    with pytest.raises(Exception, match="a write through as_strided"):
        check(fn, torch.randn(6), grad=grad)


def test_writes_through_as_strided_without_gradients() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.as_strided((2, 2), (1, 3)).mul_(3)
        return y

    check(fn, torch.randn(6), grad=False, native=False)


DIAGONALS = {
    "square": lambda x: x[:, :4].sin().fill_diagonal_(1.5).cos(),
    "wide": lambda x: x[:2].sin().fill_diagonal_(1.5).cos(),
    "wrapped": lambda x: torch.cat([x[:, :2], x[:, 2:4]]).fill_diagonal_(2, wrap=True).cos(),
    "not wrapped": lambda x: torch.cat([x[:, :2], x[:, 2:4]]).fill_diagonal_(2).cos(),
    "of three axes": lambda x: (x[:3, None, :3] * x[:3, :3, None]).fill_diagonal_(0.5).cos(),
    "transposed": lambda x: x.sin().t().fill_diagonal_(1.5).cos(),
    "part of another": lambda x: _filled_in_part(x.sin()).cos(),
    "integers": lambda x: x.sin() * (x * 10).int().fill_diagonal_(2.5),
    "operator": lambda x: torch.ops.aten.fill_diagonal_(x.sin(), 1.5).cos(),
}


def _filled_in_part(x: torch.Tensor) -> torch.Tensor:
    x[:3, 1:].fill_diagonal_(2)
    return x


@pytest.mark.parametrize("name", DIAGONALS)
def test_what_a_diagonal_is_filled_over_has_no_gradient(name: str) -> None:
    check(DIAGONALS[name], normal(4, 5))


def test_what_a_region_pads_requires_no_gradient() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            padded = F.pad(x, [0, 2], value=-2)
        kept = y.detach() + 0
        kept[:3] = padded[:3]
        return padded.exp(), kept, x * padded[:3]

    check(fn, torch.randn(3), torch.randn(5))
